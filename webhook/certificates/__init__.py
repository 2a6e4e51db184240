"""The webhook's own CA and certificate: their renewal, their storage, and the configurations that trust them."""
