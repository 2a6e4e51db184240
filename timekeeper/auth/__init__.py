"""Authentication and authorisation of callers: tokens of pods, TokenReview, SubjectAccessReview."""
