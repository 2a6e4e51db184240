"""`fairgpu admit`: runs manifests through admission without a cluster, or through a running webhook."""
