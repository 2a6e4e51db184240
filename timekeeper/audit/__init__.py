"""The auditor: recomputes the ledger's figures by code of its own, and names every figure that differs."""
