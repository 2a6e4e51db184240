"""Who can connect to the webhook: the addresses that API servers call from, and whether only these are let in."""
