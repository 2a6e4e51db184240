"""Evicts pods to free devices for waiting pods within their budget: chooses them, gives notice, evicts.

Pods of spent budgets are evicted, and pods of normal task priority for those of high.
"""
