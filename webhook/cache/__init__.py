"""A webhook worker's knowledge of the cluster: budget states, priority classes, namespaces."""
