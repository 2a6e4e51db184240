from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fairgpu.states import BudgetState, NamespaceState, decode_document
from tests.contract.timekeeper_rest.conftest import BIG
from tests.support.ledger.seeding import publish
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.ledger import keys

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import RestServer


def change(store: RedisServer, namespace: str, remaining: int) -> None:
    with store.client() as client:
        publish(client, [NamespaceState(namespace, "research", BudgetState.GRACE, BIG, remaining, 1_000_000)])


def ask(rest: RestServer, since: str = "", wait: float = 0) -> Any:
    answer = rest.as_person("finance", "GET", f"/v1/states?since={since}&wait={wait}")
    assert answer.status == 200, answer.body
    return answer.document


def test_the_first_answer_holds_every_state_and_decodes_as_admission_reads_it(rest: RestServer) -> None:
    document = decode_document(ask(rest))
    assert document.full
    assert document.default is BudgetState.UNLIMITED
    states = {state.namespace: state for state in document.states}
    assert (states["team-a"].available, states["team-a"].remaining) == (BIG, 10**14 + 1)


def test_a_change_reaches_each_client_that_waits_for_it(rest: RestServer, store: RedisServer) -> None:
    since = ask(rest)["cursor"]
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(ask, rest, since, 60) for _ in range(8)]
        change(store, "team-w", 7)
        documents = [task.result(timeout=LIMIT_S) for task in waiting]
    assert all(not document["full"] for document in documents)
    assert {item["remaining"] for document in documents for item in document["states"]} == {"7"}


def test_a_wait_in_vain_ends_with_the_same_cursor(rest: RestServer) -> None:
    since = ask(rest)["cursor"]
    document = ask(rest, since, 0.3)
    assert (document["cursor"], document["full"], document["states"]) == (since, False, [])


def test_a_cursor_of_another_epoch_gets_everything(rest: RestServer) -> None:
    assert ask(rest, "another.1", 60)["full"]


def test_a_store_that_was_emptied_starts_a_new_epoch_in_which_everything_is_shown(
    rest: RestServer, store: RedisServer
) -> None:
    since = ask(rest)["cursor"]
    with store.client() as client:
        client.delete(keys.STATES_HEAD, keys.STATES_VALUES, keys.STATES_CHANGES)
        publish(client, [NamespaceState("team-n", "new", BudgetState.HELD, 1, -5, 0)], new_id="e2")

    def shown() -> Any:
        """Nothing while it answers 503: it may have looked while the store held no states."""
        answer = rest.as_person("finance", "GET", f"/v1/states?since={since}&wait=60")
        return answer.document if answer.status == 200 else None

    document = wait_until(shown, "the states are known again")
    assert document["full"]
    assert [state["namespace"] for state in document["states"]] == ["team-n"]


def test_a_client_that_waits_is_answered_when_the_service_is_asked_to_end(rest: RestServer) -> None:
    since = ask(rest)["cursor"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, rest, since, 60)
        rest.wait_for_metric("fairgpu_timekeeper_states_waiting", 1)
        rest.stop()
        assert waiting.result(timeout=LIMIT_S)["states"] == []
    rest.start()
