"""Authenticates callers (pods by their tokens, people by TokenReviews), and checks their rights."""
