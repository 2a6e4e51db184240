"""A webhook worker's cache of the cluster: budget states, permissions, priority classes, and claims without GPUs."""
