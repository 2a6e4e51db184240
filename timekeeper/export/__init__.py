"""Months of use as files, in a folder or an S3-compatible bucket."""
