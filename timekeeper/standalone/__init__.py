"""One machine without a cluster: a folder replaces the API server, its identities, its Secrets and its Lease."""
