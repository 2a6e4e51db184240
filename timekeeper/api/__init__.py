"""The REST API of the timekeeper."""
