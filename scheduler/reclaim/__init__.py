"""Frees devices for pods within their budget: whom to evict, and when."""
