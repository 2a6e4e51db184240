"""Admission: an AdmissionReview in, a JSON Patch or a verdict out."""
