"""The ledger in Redis: its keys, its scripts, and the functions that read and write it."""
