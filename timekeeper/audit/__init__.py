"""The auditor: recomputes the ledger's figures by separate code, and reports every figure that differs."""
