"""What keeps a worker informed: states by long poll, namespaces and priority classes by watch, the timekeeper's CA."""
