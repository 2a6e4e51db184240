"""Where the timekeeper learns what runs and what budgets there are, and where it writes what it decided.

`source.py` says what a source is; `cluster.py` is the API server, `folder.py` a folder on one machine.
"""
