from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairgpu.states import BudgetState, NamespaceState
from tests.support.ledger.seeding import Pod, post_entries, publish, seed_budget
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from tests.support.waiting import wait_until
from timekeeper.ledger import keys

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNING = Pod("0b1c2d3e-0000-4000-8000-000000000001", "team-a", "train-0")
OTHER = Pod("0b1c2d3e-0000-4000-8000-000000000002", "team-b", "serve-0", rate=300_000)
BIG = 10**18 - 1
PAST = "0b1c2d3e-0000-4000-8000-000000000009"


@pytest.fixture(scope="session")
def running_store() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def running_rest(running_store: RedisServer) -> Iterator[RestServer]:
    """A timekeeper for all files of a worker: it takes more than a second of processor time to start."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-rest-") as folder,
        RestServer(Path(folder), running_store.url) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def store(running_store: RedisServer) -> RedisServer:
    """A Redis that holds a book: team-a (with a session), team-b (spent), and amounts at the edges."""
    with running_store.client() as client:
        client.flushall()
        seed_budget(client, "research", ["team-a", "team-a2"], [RUNNING])
        seed_budget(client, "serving", ["team-b"], [OTHER], available=1_000, spent=2_000)
        seed_budget(client, "huge", ["team-h"], available=BIG, spent=10**14)
        seed_budget(client, "free", ["team-f"], available=None, spent=2**53 + 1)
        seed_budget(client, "history", ["team-y"], spent=0)
        post_entries(client, "history", PAST, [10**14 - 1, 10**14, 2**53, 2**53 + 1])
        known = [NamespaceState("team-a", "research", BudgetState.OPEN, BIG, 10**14 + 1, 1_000_000)]
        publish(client, known, new_id=uuid.uuid4().hex)
    return running_store


@pytest.fixture(scope="module")
def rest(store: RedisServer, running_rest: RestServer) -> RestServer:
    """A timekeeper that serves this book, and has written nothing yet."""
    for written in running_rest.folder.glob("*/*.json"):
        written.unlink()
    with store.client() as client:
        store_id = client.hget(keys.STATES_HEAD, "id").decode()

    def follows() -> bool:
        answer = running_rest.as_person("finance", "GET", "/v1/states?since=&wait=0")
        return answer.status == 200 and answer.document["cursor"].startswith(f"{store_id}.")

    wait_until(follows, "it serves the new book")
    running_rest.wait_for("/readyz")
    return running_rest
