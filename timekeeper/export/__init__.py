"""Months of use as files, and the places they are kept at: a folder, or an S3-compatible bucket."""
