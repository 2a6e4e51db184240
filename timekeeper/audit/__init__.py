"""The auditor: recomputes the ledger's figures with code of its own, and reports every figure that differs."""
