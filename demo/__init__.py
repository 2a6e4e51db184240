"""`fairgpu demo`: the whole journey of GPU pods on one machine, with every service real.

The demonstration plays what a laptop lacks (API server, scheduler, kubelet, GPUs) and starts the rest as processes of
their own: Redis, the timekeeper, the webhook, the sidecars. Each step is checked before the next one begins.
"""
