"""`fairgpu admit`: manifests as the webhook would admit them, without a cluster."""
