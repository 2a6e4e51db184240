"""One reconciliation: due periods and orders, settlement, closing balances, publication."""
