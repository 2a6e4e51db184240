from __future__ import annotations

from tests.export_scene import scene
from tests.keeper_stage import stage
from tests.redis_server import redis_server

__all__ = ["redis_server", "scene", "stage"]
