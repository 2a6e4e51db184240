"""The API server's own checks of GPUBudgets, before any part of FairGPU sees them."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.custom_resources import BUDGETS, DRY_RUN, GRANTS, budget, grant

pytestmark = pytest.mark.usefixtures("installation")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"allowance.gpuHours": 0},
        {"allowance.gpuHours": "0.5"},
        {"allowance.gpuHours": "999999999.999999"},
        {"namespaces": ["a", "team-b", "x1"]},
        {"period": {"every": "hour", "start": {"time": "00:30"}}},
        {"period": {"every": "day", "start": {"time": "23:59"}, "timeZone": "Europe/Berlin"}},
        {"period": {"every": "week", "start": {"weekday": "Sunday"}, "timeZone": "America/Argentina/Buenos_Aires"}},
        {"period": {"every": "month", "start": {"dayOfMonth": 28, "time": "06:00"}}},
        {"grace": {"gpuHours": "2.5"}},
        {"grace": {"duration": "1d12h30m5s"}},
        {"grace": {"gpuHours": 2, "duration": "36h"}, "onExhausted": "hold", "enforcement": "evict"},
        {"enforcement": "observe", "minRuntime": "90s"},
        {"admission": "safe", "defaultCommit": "2h", "enforcement": "evict", "evictionNotice": "30m"},
    ],
)
def test_a_sound_budget_is_accepted(control_plane: ControlPlane, changes: dict[str, Any]) -> None:
    control_plane.admin.api.create(BUDGETS, budget(changes), DRY_RUN)


@pytest.mark.parametrize("name", ["book", "notices", "states"])
def test_a_name_under_which_the_ledger_keeps_its_own_is_refused(control_plane: ControlPlane, name: str) -> None:
    item = budget({})
    item["metadata"] = {"name": name}
    with pytest.raises(ApiError, match=f'"{name}" is a name under which the ledger keeps what concerns all budgets'):
        control_plane.admin.api.create(BUDGETS, item, DRY_RUN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"namespaces": []}, "spec.namespaces in body should have at least 1 items"),
        ({"namespaces": None}, "spec.namespaces: Required value"),
        ({"namespaces": ["a", "a"]}, 'spec.namespaces[1]: Duplicate value: "a"'),
        ({"namespaces": ["Team_A"]}, '"Team_A" is no namespace name: write lower-case letters, digits and "-"'),
        ({"namespaces": ["team-a\n"]}, '"team-a\\n" is no namespace name: write lower-case letters, digits and "-"'),
        ({"allowance": None}, "spec.allowance: Required value"),
        ({"allowance": {}}, "spec.allowance.gpuHours: Required value"),
        ({"allowance.gpuHours": -1}, '"-1" is no amount of GPU-hours: write a number from 0 to 999999999'),
        ({"allowance.gpuHours": 2.5}, "spec.allowance.gpuHours in body must be of type integer,string"),
        ({"allowance.gpuHours": "1e3"}, '"1e3" is no amount of GPU-hours'),
        ({"allowance.gpuHours": "-0.5"}, '"-0.5" is no amount of GPU-hours'),
        ({"allowance.gpuHours": "0.0000001"}, "a quoted decimal of at most six places"),
        ({"allowance.gpuHours": "NaN"}, '"NaN" is no amount of GPU-hours'),
        ({"allowance.gpuHours": 10**14}, "is no amount of GPU-hours"),
        ({"period": {}}, "a period needs every or cron: write one of them"),
        ({"period.every": "year"}, 'supported values: "hour", "day", "week", "month"'),
        ({"period.start.dayOfMonth": 29}, "not a day that every month has: write a day from 1 to 28"),
        ({"period.start.dayOfMonth": 0}, "not a day that every month has: write a day from 1 to 28"),
        ({"period": {"every": "day", "start": {"dayOfMonth": 1}}}, 'start.dayOfMonth goes with "every: month" alone'),
        ({"period.start.weekday": "Monday"}, 'start.weekday goes with "every: week" alone'),
        ({"period": {"every": "week", "start": {"weekday": "monday"}}}, 'supported values: "Monday"'),
        ({"period.start.time": "24:00"}, '"24:00" is no time of day: write HH:MM'),
        ({"period.start.time": "7:00"}, '"7:00" is no time of day: write HH:MM'),
        ({"period": {"every": "hour", "start": {"time": "07:00"}}}, 'start.time names the minute alone: write "00:MM"'),
        ({"period.timeZone": "+02:00"}, '"+02:00" is no name of the IANA time zone database'),
        ({"period.timeZone": "Local"}, '"Local" is no name of the IANA time zone database'),
        (
            {"period.timeZone": "Mars/Olympus"},
            "unknown time zone Mars/Olympus evaluating rule: timeZone is a name of the IANA time zone database: write ",
        ),
        ({"grace": {}}, "grace needs gpuHours, duration or both"),
        ({"grace": {"duration": "1.5h"}}, '"1.5h" is no duration: write whole days, hours, minutes and seconds'),
        ({"grace": {"duration": ""}}, '"" is no duration'),
        ({"grace": {"duration": "2h\n"}}, '"2h\\n" is no duration'),
        ({"grace": {"duration": "30m2h"}}, '"30m2h" is no duration'),
        ({"grace": {"gpuHours": "-1"}}, '"-1" is no amount of GPU-hours'),
        ({"onExhausted": "kill"}, 'supported values: "deprioritize", "hold"'),
        ({"enforcement": "warn"}, 'supported values: "observe", "enforce", "evict"'),
        ({"minRuntime": "soon"}, '"soon" is no duration'),
        ({"admission": "strict"}, 'supported values: "simple", "safe"'),
        ({"defaultCommit": "1.5h"}, '"1.5h" is no duration'),
        ({"evictionNotice": ""}, '"" is no duration'),
        ({"alowance": {"gpuHours": 1}}, 'unknown field "spec.alowance"'),
    ],
)
def test_a_faulty_budget_is_refused_with_what_to_write(
    control_plane: ControlPlane, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.create(BUDGETS, budget(changes), DRY_RUN)
    assert message in refusal.value.message


def test_a_budget_gets_its_defaults_from_the_schema(control_plane: ControlPlane) -> None:
    spec = control_plane.admin.api.create(BUDGETS, budget({"period.start": {}}), DRY_RUN)["spec"]
    assert spec["period"] == {"every": "month", "start": {"time": "00:00"}, "timeZone": "UTC"}
    assert (spec["onExhausted"], spec["enforcement"], spec["minRuntime"]) == ("deprioritize", "enforce", "10m")
    assert "grace" not in spec


@pytest.mark.parametrize("cron", ["0 6 1 1,4,7,10 *", "30 2 * * SUN", "0 0 L * *", "5 */6 * * 1-5"])
def test_a_schedule_may_stand_instead_of_a_length(control_plane: ControlPlane, cron: str) -> None:
    created = control_plane.admin.api.create(BUDGETS, budget({"period.every": None, "period.cron": cron}), DRY_RUN)
    assert created["spec"]["period"]["cron"] == cron


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"period.cron": "0 0 1 * *"}, "a period needs every or cron: write one of them"),
        ({"period.every": None}, "a period needs every or cron: write one of them"),
        ({"period.every": None, "period.cron": "* * * * *"}, "is no cron expression that begins a period at most once"),
        ({"period.every": None, "period.cron": "@daily"}, '"@daily" is no cron expression'),
        (
            {"period.every": None, "period.cron": "0 0 1 * *", "period.start": {"time": "09:00"}},
            "cron says when a period starts: remove start",
        ),
        ({"rollover": {}}, "spec.rollover.gpuHours: Required value"),
        ({"rollover.gpuHours": -1}, '"-1" is no amount of GPU-hours'),
    ],
)
def test_a_faulty_schedule_or_rollover_is_refused_with_what_to_write(
    control_plane: ControlPlane, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.create(BUDGETS, budget(changes), DRY_RUN)
    assert message in refusal.value.message


def test_status_and_spec_of_a_budget_are_written_apart(control_plane: ControlPlane) -> None:
    api = control_plane.admin.api
    api.create(BUDGETS, {**budget(), "status": {"state": "held"}})
    try:
        api.patch(f"{BUDGETS}/team-a/status", {"spec": {"allowance": {"gpuHours": 999}}, "status": {"state": "open"}})
        stored = api.get(f"{BUDGETS}/team-a")
        assert stored["spec"]["allowance"] == {"gpuHours": 100}
        assert stored["status"] == {"state": "open"}
        with pytest.raises(ApiError, match="Unsupported value"):
            api.patch(f"{BUDGETS}/team-a/status", {"status": {"state": "rich"}})
    finally:
        api.delete(f"{BUDGETS}/team-a")


def test_kubectl_shows_what_is_spent_and_what_is_left(control_plane: ControlPlane) -> None:
    api = control_plane.admin.api
    money = {"spent": "37.5", "granted": "10", "available": "110", "remaining": "72.5"}
    status = {
        **{name: {"gpuHours": hours, "microGPUSeconds": "1"} for name, hours in money.items()},
        "state": "open",
        "burnRate": "3.25",
        "forecast": {
            "lastHour": {"projectedExhaustion": "2025-11-22T12:00:00Z"},
            "lastDay": {"projectedExhaustion": "2025-11-24T12:00:00Z"},
        },
        "period": {"start": "2025-11-01T00:00:00Z", "end": "2025-12-01T00:00:00Z"},
    }
    api.create(BUDGETS, budget())
    api.create(GRANTS, grant())
    try:
        api.patch(f"{BUDGETS}/team-a/status", {"status": status})
        header, line = control_plane.admin.kubectl("get", "gpubudgets", "team-a").stdout.splitlines()
        assert " ".join(header.split()) == (
            "NAME STATE SPENT OF LEFT GPUS RUNS OUT (HOUR) RUNS OUT (DAY) PERIOD ENDS AGE"
        )
        assert line.split()[:9] == [
            "team-a", "open", "37.5", "110", "72.5", "3.25",
            "2025-11-22T12:00:00Z", "2025-11-24T12:00:00Z", "2025-12-01T00:00:00Z",
        ]  # fmt: skip
        wide = control_plane.admin.kubectl("get", "gb", "team-a", "--output=wide").stdout
        assert '["team-a"]' in wide
        header, line = control_plane.admin.kubectl("get", "gpugrants", grant()["metadata"]["name"]).stdout.splitlines()
        assert header.split()[:4] == ["NAME", "BUDGET", "GPU-HOURS", "APPLIED"]
        assert line.split()[:3] == ["deadline", "team-a", "10"]
        assert "paper deadline" in line
    finally:
        api.delete(f"{BUDGETS}/team-a")
        api.delete(f"{GRANTS}/deadline")
