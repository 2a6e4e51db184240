"""The parts of GPUs that a pod of another stack holds, decided from pod, node and claims: one module for each way."""
