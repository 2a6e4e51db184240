from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from timekeeper.domain.budgets import FIELDS, Budget, BudgetError, parse_budget, payers
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.orders import CorrectionError, GrantError, parse_correction, parse_grant
from timekeeper.domain.periods import Every, PeriodRule
from timekeeper.domain.state import Admission, Enforcement, OnExhausted
from timekeeper.domain.timestamps import HOUR, MINUTE, parse_instant

CREATED = "2026-01-31T09:00:00Z"


def budget_object(**spec: Any) -> dict[str, Any]:
    base = {"namespaces": ["team-a"], "allowance": {"gpuHours": 100}, "period": {"every": "month"}}
    return {"metadata": {"name": "a", "uid": "u", "creationTimestamp": CREATED, "generation": 3}, "spec": base | spec}


def test_a_full_budget_is_read_to_the_last_field() -> None:
    item = budget_object(
        namespaces=["team-a", "team-b"],
        allowance={"gpuHours": "2.5"},
        period={"every": "week", "start": {"weekday": "Friday", "time": "17:30"}, "timeZone": "Europe/Berlin"},
        grace={"gpuHours": "0.5", "duration": "2h"},
        onExhausted="hold",
        enforcement="observe",
        minRuntime="20m",
        admission="safe",
        defaultCommit="2h",
        evictionNotice="0s",
    )
    assert parse_budget(item) == Budget(
        name="a",
        namespaces=frozenset({"team-a", "team-b"}),
        allowance=GPU_HOUR * 5 // 2,
        period=PeriodRule(Every.WEEK, "Europe/Berlin", weekday=4, hour=17, minute=30),
        grace_amount=GPU_HOUR // 2,
        grace_duration=2 * HOUR,
        on_exhausted=OnExhausted.HOLD,
        enforcement=Enforcement.OBSERVE,
        min_runtime=20 * MINUTE,
        admission=Admission.SAFE,
        default_commit=2 * HOUR,
        eviction_notice=0,
        created=parse_instant(CREATED),
        uid="u",
        generation=3,
    )


def test_an_omitted_field_has_the_same_default_as_on_the_api_server() -> None:
    budget = parse_budget(budget_object())
    assert (budget.on_exhausted, budget.enforcement, budget.min_runtime) == (
        OnExhausted.DEPRIORITIZE,
        Enforcement.ENFORCE,
        10 * MINUTE,
    )
    assert (budget.admission, budget.default_commit, budget.eviction_notice) == (Admission.SIMPLE, HOUR, 10 * MINUTE)
    assert (budget.grace_amount, budget.grace_duration, budget.period) == (None, None, PeriodRule())


@pytest.mark.parametrize(
    ("spec", "path", "allowed"),
    [
        ({"namespaces": []}, "spec.namespaces", "one or more"),
        ({"namespaces": ["Team_A"]}, "spec.namespaces", "namespace names"),
        ({"allowance": {}}, "spec.allowance.gpuHours", "quoted decimal"),
        ({"allowance": {"gpuHours": -1}}, "spec.allowance.gpuHours", "0 to 999999999"),
        ({"allowance": 5}, "spec.allowance", "a map"),
        ({"period": {"every": "fortnight"}}, "spec.period.every", "hour, day, week, month"),
        ({"period": {"every": "month", "start": {"dayOfMonth": 29}}}, "spec.period.start.dayOfMonth", "1 to 28"),
        ({"period": {"every": "day", "start": {"dayOfMonth": 2}}}, "spec.period.start.dayOfMonth", "only with"),
        ({"period": {"every": "week", "start": {"weekday": "monday"}}}, "spec.period.start.weekday", "Monday"),
        ({"period": {"every": "day", "start": {"time": "24:00"}}}, "spec.period.start.time", "HH:MM"),
        ({"period": {"every": "hour", "start": {"time": "09:05"}}}, "spec.period.start.time", "00:MM"),
        ({"period": {"every": "day", "timeZone": "Mars/Base"}}, "spec.period.timeZone", "IANA"),
        ({"period": {"every": "day", "timeZone": "../etc/passwd"}}, "spec.period.timeZone", "IANA"),
        ({"grace": {"gpuHours": 1.5}}, "spec.grace.gpuHours", "quoted decimal"),
        ({"grace": {"duration": "soon"}}, "spec.grace.duration", "1h30m"),
        ({"onExhausted": "kill"}, "spec.onExhausted", "deprioritize, hold"),
        ({"enforcement": True}, "spec.enforcement", "observe, enforce, evict"),
        ({"minRuntime": 600}, "spec.minRuntime", "1h30m"),
        ({"admission": "strict"}, "spec.admission", "simple, safe"),
        ({"defaultCommit": "-1h"}, "spec.defaultCommit", "1h30m"),
        ({"pendingCommit": 3600}, "spec.pendingCommit", "1h30m"),
        ({"evictionNotice": "soon"}, "spec.evictionNotice", "1h30m"),
    ],
)
def test_a_fault_names_its_field_and_what_is_allowed(spec: dict[str, Any], path: str, allowed: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_budget(budget_object(**spec))
    (fault,) = caught.value.faults
    assert fault.path == path
    assert allowed in fault.allowed


@pytest.mark.parametrize("name", ["book", "notices", "states"])
def test_a_name_under_which_the_store_keeps_its_own_is_refused(name: str) -> None:
    item = budget_object()
    item["metadata"]["name"] = name
    with pytest.raises(BudgetError) as caught:
        parse_budget(item)
    (fault,) = caught.value.faults
    assert (fault.path, fault.allowed) == ("metadata.name", "a name but book, notices and states")


@pytest.mark.parametrize("faults", [["x"], "x", {"path": "spec"}, None])
def test_faults_that_an_object_states_itself_are_no_faults_of_it(faults: Any) -> None:
    assert parse_budget(budget_object() | {"faults": faults}) == parse_budget(budget_object())


def test_all_faults_are_shown_at_once() -> None:
    with pytest.raises(BudgetError) as caught:
        parse_budget(budget_object(namespaces=None, allowance={"gpuHours": "x"}, onExhausted="no"))
    assert [fault.path for fault in caught.value.faults] == [
        "spec.namespaces",
        "spec.allowance.gpuHours",
        "spec.onExhausted",
    ]


@pytest.mark.parametrize("item", [{}, {"metadata": None, "spec": []}, {"metadata": {"name": 3}, "spec": {}}])
def test_no_shape_of_object_breaks_the_reader(item: dict[str, Any]) -> None:
    with pytest.raises(BudgetError):
        parse_budget(item)


def test_the_older_budget_keeps_a_namespace_that_two_name() -> None:
    older = Budget("z", frozenset({"shared", "own"}), created=1)
    younger = Budget("a", frozenset({"shared"}), created=2)
    paying, conflicts = payers([younger, older])
    assert {namespace: budget.name for namespace, budget in paying.items()} == {"shared": "z", "own": "z"}
    assert conflicts == {"a": {"shared": "z"}}


def test_a_grant_is_read_exactly() -> None:
    spec = {"budget": "a", "gpuHours": "0.5", "reason": "deadline", "requestedBy": "ann"}
    grant = parse_grant({"metadata": {"name": "g", "creationTimestamp": CREATED}, "spec": spec})
    assert (grant.name, grant.budget, grant.amount, grant.reason) == ("g", "a", GPU_HOUR // 2, "deadline")
    assert (grant.requested_by, grant.created, grant.applied) == ("ann", parse_instant(CREATED), False)


def test_a_grant_may_take_away_and_may_outlive_its_period() -> None:
    spec = {"budget": "a", "gpuHours": -5, "reason": "moved to b", "requestedBy": "ann"}
    item = {"metadata": {"name": "g", "creationTimestamp": CREATED}, "spec": spec}
    taken = parse_grant(item)
    assert (taken.amount, taken.expires, taken.note) == (-5 * GPU_HOUR, None, "moved to b (ann)")
    lasting = parse_grant(item | {"spec": {**spec, "gpuHours": 5.0, "expires": "2030-01-01T01:00:00+01:00"}})
    assert (lasting.amount, lasting.expires) == (5 * GPU_HOUR, parse_instant("2030-01-01T00:00:00Z"))


def correction(**change: Any) -> dict[str, Any]:
    spec = {
        "budget": "a",
        "gpuHours": "-0.5",
        "effectivePeriod": "2026-01-01T01:00:00+01:00",
        "reason": "a failed node",
    }
    return {"metadata": {"name": "c", "creationTimestamp": CREATED}, "spec": spec | change}


def test_a_correction_is_read_exactly() -> None:
    found = parse_correction(correction(namespace="team-a", requestedBy="ann"))
    assert (found.name, found.budget, found.amount, found.namespace) == ("c", "a", -GPU_HOUR // 2, "team-a")
    assert (found.effective, found.note) == (parse_instant("2026-01-01T00:00:00Z"), "a failed node (ann)")
    assert not found.applied


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"gpuHours": 0}, "spec.gpuHours"),
        ({"gpuHours": None}, "spec.gpuHours"),
        ({"effectivePeriod": "January"}, "spec.effectivePeriod"),
        ({"effectivePeriod": None}, "spec.effectivePeriod"),
        ({"budget": ""}, "spec.budget"),
        ({"reason": " "}, "spec.reason"),
        ({"reason": "x" * 1025}, "spec.reason"),
    ],
)
def test_a_correction_that_cannot_be_applied_says_why(change: dict[str, Any], path: str) -> None:
    with pytest.raises(CorrectionError) as caught:
        parse_correction(correction(**change))
    assert [fault.path for fault in caught.value.faults] == [path]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"gpuHours": 0}, "spec.gpuHours"),
        ({"gpuHours": "--5"}, "spec.gpuHours"),
        ({"gpuHours": "-0"}, "spec.gpuHours"),
        ({"gpuHours": True}, "spec.gpuHours"),
        ({"gpuHours": -0.5}, "spec.gpuHours"),
        ({"expires": "tomorrow"}, "spec.expires"),
        ({"expires": CREATED}, "spec.expires"),
        ({"gpuHours": -5, "expires": "2030-01-01T00:00:00Z"}, "spec.expires"),
        ({"budget": ""}, "spec.budget"),
        ({"reason": " "}, "spec.reason"),
    ],
)
def test_a_grant_that_cannot_be_applied_says_why(change: dict[str, Any], path: str) -> None:
    spec = {"budget": "a", "gpuHours": 1, "reason": "deadline"} | change
    with pytest.raises(GrantError) as caught:
        parse_grant({"metadata": {"name": "g", "creationTimestamp": CREATED}, "spec": spec})
    assert [fault.path for fault in caught.value.faults] == [path]


def test_the_fields_that_are_known_are_those_of_the_crd() -> None:
    crd = yaml.safe_load((Path(__file__).parents[3] / "deploy/base/crds/gpubudgets.yaml").read_text())
    for version in crd["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        found = {}
        for path in FIELDS:
            held = spec
            for key in filter(None, path.split(".")):
                held = held["properties"][key]
            found[path] = set(held["properties"])
        assert found == {path: set(known) for path, known in FIELDS.items()}
        with_fields = {key for key, value in spec["properties"].items() if "properties" in value}
        assert with_fields <= FIELDS.keys()
