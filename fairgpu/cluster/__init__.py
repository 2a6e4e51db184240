"""The Kubernetes API as raw JSON: connecting to it, requests, and views kept current by watches."""
