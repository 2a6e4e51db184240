"""Answers kube-scheduler's extender calls: filter, prioritize and bind."""
