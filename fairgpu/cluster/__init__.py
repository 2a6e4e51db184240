"""The Kubernetes API as raw JSON: connecting to it, requests, views kept current by watches, and warning events."""
