"""`fairgpu admit`: what would happen to these manifests."""
