from __future__ import annotations

from tests.support.ledger.exported_months import scene
from tests.support.ledger.harness import stage
from tests.support.servers.redis_server import redis_server

__all__ = ["redis_server", "scene", "stage"]
