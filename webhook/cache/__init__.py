"""A webhook worker's cache of the cluster: budget states, priority classes, namespaces."""
