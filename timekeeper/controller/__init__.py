"""The leading process: it watches, reconciles, reports, archives and writes pods."""
