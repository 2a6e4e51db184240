from __future__ import annotations

from tests.support.ledger.exported_months import months
from tests.support.ledger.harness import harness
from tests.support.servers.redis_server import redis_server

__all__ = ["harness", "months", "redis_server"]
