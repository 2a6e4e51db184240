"""The ledger of GPU time, the budgets it is spent from, and the REST API that answers for both."""
