"""What was spent, in Redis: `keys.py` says where everything lies, `scripts/` holds each change that must be atomic."""
