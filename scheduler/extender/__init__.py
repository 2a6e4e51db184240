"""Answers kube-scheduler's extender calls: filter, prioritize, preempt and bind."""
