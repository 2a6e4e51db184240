"""The container runtime: whether it applies CDI, read from its own configuration and from that of each container."""
