"""The delay that an account whose every write is refused brings to the published states of all others."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from tests.bench.ledger import START, pod
from tests.support.ledger.fake_cluster import MirroredCluster, budget_object
from tests.support.servers.redis_server import RedisServer
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import SECOND
from timekeeper.ledger import keys
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.writing import take_fencing_token

BUDGETS = 1_000
MOST_ROUNDS = 20
GOAL_ROUNDS = 1
ROUND = 6 * SECOND
ALLOWANCE = {"gpuHours": "0.001"}
"""Two rounds of one pod on three tenths of a GPU."""


def rows() -> list[dict[str, Any]]:
    """The figures beside their goals."""
    return [
        row("a leader that runs", rounds_until_published(change_of_leader=False)),
        row("a new leader", rounds_until_published(change_of_leader=True)),
    ]


def rounds_until_published(*, change_of_leader: bool) -> int:
    """Rounds until all other accounts' states say `over`, from the moment at which their money is spent."""
    clock = [START]
    cluster = MirroredCluster(lambda: clock[0])
    budgets = [budget_object(f"b{number}", [f"ns-{number}"], allowance=ALLOWANCE) for number in range(BUDGETS)]
    cluster.replace("budgets", budgets)
    cluster.replace("pods", [pod(budget, 0) for budget in range(BUDGETS)])
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-bench-") as folder,
        RedisServer(Path(folder)) as server,
        server.client() as client,
    ):
        reconciler = Reconciler(client, cluster, ControllerRules(), take_fencing_token(client, 0))
        clock[0] += ROUND
        reconciler.reconcile(clock[0])
        refuse_all_writes(client, keys.AccountKeys("b0"))
        if change_of_leader:
            reconciler = Reconciler(client, cluster, ControllerRules(), take_fencing_token(client, 1))
        for number in range(1, MOST_ROUNDS + 1):
            clock[0] += ROUND
            with suppress(StoreError, redis.RedisError):
                reconciler.reconcile(clock[0])
            if over(client) == {f"ns-{number}" for number in range(1, BUDGETS)}:
                return number
    raise AssertionError(f"the other accounts' states are not published after {MOST_ROUNDS} rounds")


def refuse_all_writes(client: redis.Redis, names: keys.AccountKeys) -> None:
    """Puts texts in the place of all hashes that a settlement writes to."""
    period = client.hget(names.head, "period")
    assert isinstance(period, bytes)
    for key in (names.amounts(int(period)), names.period(int(period)), names.sessions):
        client.set(key, "no hash")


def over(client: redis.Redis) -> set[str]:
    """The namespaces whose published state is `over`."""
    states: Any = client.hgetall(keys.STATES_VALUES)
    return {name.decode() for name, text in states.items() if json.loads(text).get("state") == "over"}


def row(who: str, rounds: int) -> dict[str, Any]:
    """One figure."""
    return {
        "name": f"ledger: one account refuses every write; {who}",
        "value": rounds,
        "unit": "rounds",
        "goal": f"<= {GOAL_ROUNDS}",
        "met": rounds <= GOAL_ROUNDS,
        "context": f"until the states of {BUDGETS - 1} others are published",
    }
