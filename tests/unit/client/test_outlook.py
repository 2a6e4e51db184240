from __future__ import annotations

from typing import Any

import pytest

from fairgpu.client import figures

HOUR = 3_600_000_000
BUDGET: dict[str, Any] = {
    "state": "open",
    "computedState": "held",
    "enforcement": "observe",
    "admission": "safe",
    "committed": {"microGPUSeconds": str(3 * HOUR), "gpuHours": 3.0},
    "available": {"microGPUSeconds": str(100 * HOUR), "gpuHours": 100.0},
    "forecast": {
        "lastHour": {
            "since": "2030-01-01T11:00:00Z",
            "until": "2030-01-01T12:03:00Z",
            "spent": {"microGPUSeconds": str(2 * HOUR), "gpuHours": 2.0},
            "rate": {"microGPUSecondsPerSecond": "1904761", "gpus": 1.904761},
            "exhaustion": "2030-01-03T12:00:00Z",
        },
        "lastDay": None,
    },
}


def test_an_observed_budget_says_what_it_would_be() -> None:
    assert figures.state(BUDGET) == "open (observed only; enforced it would be held)"
    assert figures.state({**BUDGET, "enforcement": "enforce"}) == "open"


@pytest.mark.parametrize("enforcement", ["observe", "enforce", "evict"])
def test_each_enforcement_says_what_it_means_for_pods(enforcement: str) -> None:
    assert figures.ENFORCEMENT[enforcement].startswith(f"{enforcement}: ")


def test_safe_admission_says_what_is_committed() -> None:
    assert figures.admission(BUDGET).endswith("3.00 GPU-hours are committed")
    assert figures.admission({**BUDGET, "admission": "simple"}) == "simple: pods are admitted until the money is spent"


def test_a_stretch_says_what_was_spent_and_where_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "moment", str)
    assert figures.stretch(BUDGET, "lastHour") == "2.00 GPU-hours in 1h3m, 1.90 GPUs: runs out 2030-01-03T12:00:00Z"
    assert figures.stretch(BUDGET, "lastDay") == ""
    hour = {**BUDGET["forecast"]["lastHour"], "exhaustion": None}
    assert figures.stretch({**BUDGET, "forecast": {"lastHour": hour}}, "lastHour").endswith(
        "lasts to the end of the period"
    )
    spent = {**BUDGET, "remaining": {"microGPUSeconds": "0", "gpuHours": 0.0}, "forecast": {"lastHour": hour}}
    assert figures.stretch(spent, "lastHour").endswith("nothing is left")
    assert figures.stretch({**BUDGET, "available": None}, "lastHour") == "2.00 GPU-hours in 1h3m, 1.90 GPUs"


def test_a_timekeeper_that_shows_no_forecast_yet_is_understood() -> None:
    older = {key: value for key, value in BUDGET.items() if key not in {"forecast", "computedState", "admission"}}
    assert figures.stretch(older, "lastHour") == ""
    assert figures.admission(older) == ""
    assert "unknown" in figures.state(older)


@pytest.mark.parametrize(
    ("remaining", "ends", "said"),
    [
        (2 * HOUR, "2030-01-03T12:00:00Z", "another 2.00 GPU-hours or until 2030-01-03T12:00:00Z"),
        (2 * HOUR, None, "another 2.00 GPU-hours"),
        (None, "2030-01-03T12:00:00Z", "until 2030-01-03T12:00:00Z"),
    ],
)
def test_a_budget_in_its_grace_says_how_far_that_reaches(
    monkeypatch: pytest.MonkeyPatch, remaining: int | None, ends: str | None, said: str
) -> None:
    monkeypatch.setattr(figures, "moment", str)
    left = None if remaining is None else {"microGPUSeconds": str(remaining), "gpuHours": remaining / HOUR}
    assert figures.grace({**BUDGET, "grace": {"remaining": left, "ends": ends}}) == said
    assert figures.grace({**BUDGET, "grace": None}) == figures.grace(BUDGET) == ""


def test_a_grant_that_expires_says_what_is_left_of_it_and_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairgpu.client.figures.moment", lambda text: f"at {text}")
    left = {"microGPUSeconds": "12600000000", "gpuHours": 3.5}
    grant = {"grant": "exam-week", "remaining": left, "expires": "2026-12-31T23:00:00Z"}
    assert figures.expiring(grant) == "3.50 GPU-hours until at 2026-12-31T23:00:00Z (grant exam-week)"
