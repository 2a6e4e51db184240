"""Authenticates callers and checks their rights: pods by signed tokens, people by TokenReviews or a folder's keys."""
