"""What becomes of a review: pure functions from an AdmissionReview and what is known to a patch or a verdict."""
