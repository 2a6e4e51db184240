"""Budgets, money, metering and usage as pure functions on frozen values: no I/O, no clock."""
