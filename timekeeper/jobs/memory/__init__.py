"""What the leader keeps in memory: accounts, metered sessions, and what follows from them."""
