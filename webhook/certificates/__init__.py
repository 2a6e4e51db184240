"""The webhook's own CA and certificate: when they are renewed, where they are kept, who is to trust them."""
