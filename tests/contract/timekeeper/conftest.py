from __future__ import annotations

from tests.support.ledger.harness import harness
from tests.support.servers.redis_server import redis_server

__all__ = ["harness", "redis_server"]
