"""The objects that the timekeeper watches and writes: the interface, and its implementation for the API server."""
