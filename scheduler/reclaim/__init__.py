"""Evicts pods of spent budgets to free devices for pods within their budget: chooses them, gives notice, evicts."""
