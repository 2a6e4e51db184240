"""The Kubernetes API as raw JSON: how to reach it, how to ask, how to keep a view of it."""
