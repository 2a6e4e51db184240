"""The auditor: recomputes what the ledger says from what it rests on, and names every figure that differs."""
