"""The webhook beside a real timekeeper: what becomes of a budget is what becomes of the next pod."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from fairgpu.states import BudgetState, NamespaceState
from tests.support.admission import GPU_HOUR, NAMESPACE, Answer, apply, gpu_pod, read_answer, review
from tests.support.ledger.seeding import publish, seed_budget
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from tests.support.servers.webhook_server import WebhookServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.patient

BUDGET_STATE = "fairgpu.io/budget-state"


@dataclass
class Pair:
    """A timekeeper and the webhook that asks it."""

    store: RedisServer
    rest: RestServer
    webhook: WebhookServer
    first: Any = None
    """The first pod after the webhook became ready, before any other request."""

    def publish(self, state: BudgetState, remaining: int) -> None:
        with self.store.client() as client:
            publish(client, [NamespaceState(NAMESPACE, "research", state, 100 * GPU_HOUR, remaining, 1_000_000)])

    def next_pod(self) -> tuple[Any, Answer]:
        _, body = self.webhook.ask("POST", "/mutate", review(gpu_pod()))
        answered = read_answer(body)
        return apply(gpu_pod(), answered.patch), answered

    def next_pod_in(self, state: str) -> tuple[Any, Answer]:
        def found() -> tuple[Any, Answer] | None:
            stored, answered = self.next_pod()
            return (stored, answered) if stored["metadata"]["annotations"][BUDGET_STATE] == state else None

        return wait_until(found, f"a pod finds its budget {state}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    (folder / "redis").mkdir()
    with RedisServer(folder / "redis") as store:
        with store.client() as client:
            seed_budget(client, "research", [NAMESPACE])
            publish(client, [NamespaceState(NAMESPACE, "research", BudgetState.OPEN, 100 * GPU_HOUR, GPU_HOUR, 0)])
        with RestServer(folder / "timekeeper", store.url) as rest:
            rest.wait_for("/readyz")
            token = folder / "token"
            token.write_text(rest.signer.person("finance"))
            states = {"url": rest.url, "token_file": str(token), "ca_file": str(rest.ca_file), "wait_seconds": 5}
            with WebhookServer(folder / "webhook", {"states": states}) as webhook:
                pair = Pair(store, rest, webhook)
                pair.first, _ = pair.next_pod()
                yield pair


def test_each_state_reaches_the_next_pod(pair: Pair) -> None:
    pair.publish(BudgetState.OPEN, GPU_HOUR * 90)
    stored, answered = pair.next_pod_in("open")
    assert stored["spec"]["priorityClassName"] == "gpu-in-budget"
    assert answered.warnings == []
    pair.publish(BudgetState.OVER, -GPU_HOUR)
    stored, answered = pair.next_pod_in("over")
    assert stored["spec"]["priorityClassName"] == "gpu-over-budget"
    assert "1 GPU-hours over its 100" in answered.warnings[0]
    pair.publish(BudgetState.HELD, -GPU_HOUR)
    stored, _ = pair.next_pod_in("held")
    assert stored["spec"]["schedulingGates"] == [{"name": "fairgpu.io/budget"}]
    pair.publish(BudgetState.OPEN, GPU_HOUR * 90)
    stored, _ = pair.next_pod_in("open")
    assert stored["spec"]["priorityClassName"] == "gpu-in-budget"


def test_it_is_ready_only_once_it_knows_the_states(pair: Pair) -> None:
    """The very first answer after that already goes by the budget."""
    assert pair.first["metadata"]["annotations"][BUDGET_STATE] == "open"


def test_the_last_known_states_count_while_the_timekeeper_is_away(pair: Pair) -> None:
    pair.publish(BudgetState.OVER, -GPU_HOUR)
    pair.next_pod_in("over")
    pair.rest.stop()
    stored, _ = pair.next_pod()
    assert stored["metadata"]["annotations"][BUDGET_STATE] == "over"
    assert pair.webhook.ask("GET", "/readyz")[0] == 200
    pair.publish(BudgetState.OPEN, GPU_HOUR)
    pair.rest.start()
    pair.next_pod_in("open")
