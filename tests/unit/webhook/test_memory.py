"""A worker's knowledge is received piece by piece and used as a whole."""

from __future__ import annotations

from typing import Any

import structlog

from fairgpu.permissions import Permission
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from webhook.cache.admission_cache import AdmissionCache
from webhook.cache.watches import NamespacesView, PriorityClassesView
from webhook.settings import Priorities


def state(namespace: str, which: BudgetState) -> NamespaceState:
    return NamespaceState(namespace, "budget", which, 1, 1, 0)


def document(*states: NamespaceState, full: bool) -> StatesDocument:
    return StatesDocument("e.1", full, states, BudgetState.OPEN, {"*": 1.0})


def namespace(name: str, allow: str | None) -> dict[str, Any]:
    annotations = {"fairgpu.io/allow": allow} if allow else None
    return {"metadata": {"name": name, "annotations": annotations}}


def test_changes_build_on_what_was_known_and_a_full_document_replaces_it() -> None:
    memory = AdmissionCache()
    memory.learn_states(document(state("a", BudgetState.OPEN), state("b", BudgetState.OVER), full=True), 1.0)
    memory.learn_states(document(state("a", BudgetState.HELD), full=False), 2.0)
    known = memory.knowledge.states
    assert known is not None
    assert [known.state_of(name).state for name in "abc"] == [BudgetState.HELD, BudgetState.OVER, BudgetState.OPEN]
    assert known.confirmed_at == 2.0
    memory.learn_states(document(full=True), 3.0)
    after = memory.knowledge.states
    assert after is not None
    assert after.state_of("a").state is BudgetState.OPEN
    assert known.state_of("a").state is BudgetState.HELD


def test_nothing_is_missing_once_all_was_learnt() -> None:
    memory = AdmissionCache()
    assert memory.missing(cluster=False, states=True) == ("the timekeeper's CA", "the budgets' states")
    memory.learn_authority("pem")
    memory.learn_states(document(full=True), 0.0)
    assert memory.missing(cluster=False, states=True) == ()
    assert memory.missing(cluster=True, states=False) == ("namespaces", "priority classes")
    NamespacesView(memory).replaced([])
    PriorityClassesView(memory, Priorities()).replaced([])
    assert memory.missing(cluster=True, states=True) == ()


def test_a_word_that_grants_nothing_is_logged_once_with_those_that_do() -> None:
    view = NamespacesView(AdmissionCache())
    with structlog.testing.capture_logs() as logged:
        view.replaced([namespace("a", "elastic, Elastic, all"), namespace("b", "high-priority")])
        view.replaced([namespace("a", "elastic, Elastic, all"), namespace("b", "high-priority")])
        view.changed("MODIFIED", namespace("b", "all"))
        view.changed("DELETED", namespace("c", "none"))
    assert [(line["event"], line["log_level"]) for line in logged] == [("unknown permission", "warning")] * 3
    assert [(line["namespace"], line["given"]) for line in logged] == [("a", "Elastic"), ("a", "all"), ("b", "all")]
    assert {line["allowed"] for line in logged} == {"elastic, high-priority"}


def test_permissions_follow_the_namespaces() -> None:
    memory = AdmissionCache()
    view = NamespacesView(memory)
    view.replaced([namespace("a", "elastic"), namespace("b", None)])
    assert memory.knowledge.permissions_of("a") == {Permission.ELASTIC}
    assert memory.knowledge.permissions_of("b") == frozenset()
    assert memory.knowledge.permissions_of("unseen") == frozenset()
    view.changed("MODIFIED", namespace("b", "high-priority, nonsense"))
    assert memory.knowledge.permissions_of("b") == {Permission.HIGH_PRIORITY}
    view.changed("MODIFIED", namespace("a", None))
    view.changed("DELETED", namespace("b", "high-priority"))
    assert memory.knowledge.permissions == {}


def test_classes_and_the_default_follow_the_api_server() -> None:
    memory = AdmissionCache()
    view = PriorityClassesView(memory, Priorities())
    view.replaced([{"metadata": {"name": "gpu-in-budget"}, "value": 1000, "preemptionPolicy": "Never"}])
    view.changed("ADDED", {"metadata": {"name": "everyday"}, "value": 5, "globalDefault": True})
    assert memory.knowledge.default_class == "everyday"
    assert memory.knowledge.classes["gpu-in-budget"].value == 1000
    view.changed("DELETED", {"metadata": {"name": "everyday"}})
    assert memory.knowledge.default_class is None
