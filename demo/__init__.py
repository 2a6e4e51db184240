"""`fairgpu demo`: the whole journey of GPU pods on one machine, with real services.

The demonstration plays what a laptop lacks: the API server, kube-scheduler, the kubelet and GPUs. The scheduler's own
placement chooses the GPUs of each pod. Redis, the timekeeper, the webhook and the sidecars are processes of their own.
Each step is checked before the next one begins.
"""
