"""The ledger in Redis: its keys, its scripts, and the functions that read and write it.

An argument `client` is a client of the store whose answers are bytes. `fencing_token` is the leader's, and `now` is the
present instant by the caller's clock.
"""
