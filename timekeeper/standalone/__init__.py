"""One machine without a cluster: a folder stands for the API server, its identities, its Secrets and its Lease."""
