from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairgpu.states import BudgetState, NamespaceState
from tests.book_seed import Pod, post_entries, publish, seed_budget
from tests.redis_server import RedisServer
from tests.rest_server import RestServer

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNING = Pod("0b1c2d3e-0000-4000-8000-000000000001", "team-a", "train-0")
OTHER = Pod("0b1c2d3e-0000-4000-8000-000000000002", "team-b", "serve-0", rate=300_000)
BIG = 10**18 - 1
PAST = "0b1c2d3e-0000-4000-8000-000000000009"


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    """A Redis that holds a book: team-a (with a session), team-b (spent), and amounts at the edges."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as server:
        with server.client() as client:
            seed_budget(client, "research", ["team-a", "team-a2"], [RUNNING])
            seed_budget(client, "serving", ["team-b"], [OTHER], available=1_000, spent=2_000)
            seed_budget(client, "huge", ["team-h"], available=BIG, spent=10**14)
            seed_budget(client, "free", ["team-f"], available=None, spent=2**53 + 1)
            seed_budget(client, "history", ["team-y"], spent=0)
            post_entries(client, "history", PAST, [10**14 - 1, 10**14, 2**53, 2**53 + 1])
            publish(client, [NamespaceState("team-a", "research", BudgetState.OPEN, BIG, 10**14 + 1, 1_000_000)])
        yield server


@pytest.fixture(scope="module")
def rest(store: RedisServer) -> Iterator[RestServer]:
    """A timekeeper that serves this book."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-rest-") as folder, RestServer(Path(folder), store.url) as server:
        server.wait_for("/readyz")
        yield server
