"""Serves an application over TLS with gunicorn's asgi worker, limits, renewed certificates, and an orderly shutdown."""
