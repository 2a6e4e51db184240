"""What the scheduler knows of the cluster: its nodes, its pods, and the devices that it keeps for pods."""
