"""`fairgpu admit`: runs manifests through admission as the webhook would, without a cluster."""
