"""Authenticates callers (pods by their tokens, people by TokenReviews or a folder's keys), and checks their rights."""
