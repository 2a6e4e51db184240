"""The scheduler's knowledge of the cluster: nodes, pods, and the devices that it reserves for pods."""
