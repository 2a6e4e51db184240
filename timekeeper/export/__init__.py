"""Exports closed months of usage as files, to a folder or an S3-compatible bucket."""
