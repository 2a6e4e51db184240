"""The cluster as the timekeeper watches and writes it: one interface, with an API server or a folder behind it."""
