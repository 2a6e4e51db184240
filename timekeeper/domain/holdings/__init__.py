"""Decides which parts of GPUs a pod holds by another stack, from pod, node and claims: one module for each stack."""
