"""The scheduler extender: it chooses a node and devices for each GPU pod."""
