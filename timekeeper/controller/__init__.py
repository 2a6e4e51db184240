"""The jobs process: while it leads, it watches, reconciles, reports, archives, and writes to pods."""
