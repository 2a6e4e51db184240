"""The objects that the timekeeper watches and writes: the interface, and the API server or a folder behind it."""
