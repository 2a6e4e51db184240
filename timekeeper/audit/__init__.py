"""The auditor: recomputes the ledger's figures by separate code, and names every figure that differs."""
