"""Answers `fairgpu top`, `inspect` and `why` on a workstation, from the API server's objects."""
