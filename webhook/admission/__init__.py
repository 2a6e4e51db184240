"""Decides on AdmissionReviews, as pure functions of the review and of the knowledge about the cluster."""
