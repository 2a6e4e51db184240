"""One reconciliation: opens due periods, applies orders, closes balances, settles sessions, publishes figures."""
