"""Serves an application over TLS: gunicorn's asgi worker, with limits, a chain that reloads, and a gentle end."""
