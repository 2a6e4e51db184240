"""The container runtime: whether it applies CDI, by its own configuration and by that of each container."""
