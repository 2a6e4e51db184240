"""Recomputes every table of docs/budgets.md and docs/charges.md that holds figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from fairgpu.allocation import DeviceShare
from fairgpu.models import best_key
from fairgpu.states import BudgetState
from timekeeper.controller.releases import Candidate, pods_to_release
from timekeeper.controller.report.status_documents import conditions_of
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.books import controller_rules
from timekeeper.controller.state.commitments import commitment
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.budgets import WEEKDAYS, Budget
from timekeeper.domain.charges import amounts, cost, segment_cost, segments
from timekeeper.domain.credits import Credit, burn, carried, rolled_over
from timekeeper.domain.forecast import Burn, lasts_until
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, Currency, display, from_gpu_hours, from_signed_gpu_hours
from timekeeper.domain.orders import parse_correction
from timekeeper.domain.periods import Every, Period, PeriodRule, first_period
from timekeeper.domain.pods import PodFacts
from timekeeper.domain.pricing import Bill, PricePoint, billed, devices_rate, price_changes
from timekeeper.domain.state import Enforcement, Limits, OnExhausted, published, state
from timekeeper.domain.timestamps import format_instant, parse_duration, parse_instant
from timekeeper.settings import read_settings

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "\n".join((DOCS / page).read_text() for page in ("budgets.md", "charges.md"))
NOTHING = "-"


def rows(first_column: str) -> list[list[str]]:
    """The rows of the table whose first column has this header."""
    lines = [line for line in TEXT.splitlines() if not line or not set(line) <= set("|-")]
    header = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[header + 1 :])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def example(word: str) -> str:
    """The YAML in the documents that holds a word."""
    blocks = TEXT.split("```yaml\n")[1:]
    return next(block.partition("```")[0] for block in blocks if word in block.partition("```")[0])


@pytest.mark.parametrize("row", rows("vGPUs"), ids="/".join)
def test_the_rate_of_a_reservation_is_as_documented(row: list[str]) -> None:
    gpus, core, memory, total = (int(cell) for cell in row[:4])
    devices = [DeviceShare(f"GPU-{n}", "any", total, core, memory) for n in range(gpus)]
    prices = {"any": (PricePoint(0, Fraction(row[4])),)}
    rate = devices_rate(devices, prices, instant=1, best_effort_floor_percent=10)
    assert str(rate) == row[5]
    assert f"{rate * 86400 / GPU_HOUR:.2f}" == row[6]


@pytest.mark.parametrize("row", rows("a pod from"), ids="/".join)
def test_a_namespace_that_moves_pays_as_documented(row: list[str]) -> None:
    start, moved, end = (parse_instant(cell) for cell in row[:3])
    month = first_period(PeriodRule(), start)
    paid = amounts(((0, GPU_SECOND),), segments(((0, "old"), (moved, "new")), lambda _: [month], start, end))
    assert [paid.get((name, month.start), 0) for name in ("old", "new")] == [from_gpu_hours(cell) for cell in row[3:]]


@pytest.mark.parametrize("row", rows("the state by its figures"), ids="/".join)
def test_the_fields_that_admission_goes_by_are_as_documented(row: list[str]) -> None:
    assert published(BudgetState(row[0]), Enforcement(row[1])) == row[2]


@pytest.mark.parametrize("row", rows("model"), ids="/".join)
def test_a_models_cost_over_time_is_as_documented(row: list[str], tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(example("prices:"))
    prices = controller_rules(read_settings({}, settings)).prices
    start, end = parse_instant(row[1]), parse_instant(row[2])
    device = DeviceShare("GPU-1", row[0], 81920, 100, 1)
    changes = (start, *price_changes(prices, start, end))
    rates = tuple((since, devices_rate([device], prices, since, 10)) for since in changes)
    assert segment_cost(rates, start, end) == from_gpu_hours(row[3])


@pytest.mark.parametrize("row", rows("`prices`"), ids="/".join)
def test_a_model_is_charged_by_the_key_that_is_documented(row: list[str]) -> None:
    keys = [key.strip().strip("`") for key in row[0].split(",")]
    assert (best_key(keys, row[1].partition(" (")[0]) or "*") == row[2].strip("`")


@pytest.mark.parametrize("row", rows("rate"), ids="/".join)
def test_the_amount_of_a_stretch_is_as_documented(row: list[str]) -> None:
    rate, nanoseconds, amount = (int(cell) for cell in row)
    assert cost(rate, nanoseconds) == amount


@pytest.mark.parametrize("row", rows("GPU-hours"), ids="/".join)
def test_gpu_hours_are_worth_as_much_as_documented(row: list[str]) -> None:
    per_hour, code = row[1].split()
    worth = Currency(code, Decimal(per_hour)).worth(from_gpu_hours(row[0]))
    assert f"{worth:.2f} {code}" == row[2]


@pytest.mark.parametrize("row", rows("every"), ids="/".join)
def test_a_period_begins_and_ends_as_documented(row: list[str]) -> None:
    every, start, zone, moment, begins, ends = row
    *day, clock = start.split()
    hour, minute = (int(part) for part in clock.split(":"))
    rule = PeriodRule(
        every=Every(every),
        zone=zone,
        day_of_month=int(day[1]) if every == "month" else 1,
        weekday=WEEKDAYS.index(day[0]) if every == "week" else 0,
        hour=hour,
        minute=minute,
    )
    period = first_period(rule, parse_instant(moment))
    assert (format_instant(period.start), format_instant(period.end)) == (begins, ends)


@pytest.mark.parametrize("row", rows("cron"), ids="/".join)
def test_a_schedule_begins_periods_as_documented(row: list[str]) -> None:
    cron, zone, moment, begins, ends = row
    period = first_period(PeriodRule(zone=zone, cron=cron), parse_instant(moment))
    assert (format_instant(period.start), format_instant(period.end)) == (begins, ends)


@pytest.mark.parametrize("row", rows("available"), ids="/".join)
def test_the_state_of_a_budget_is_as_documented(row: list[str]) -> None:
    available, grace, duration, on_exhausted, spent, spent_up_for, expected = row
    limits = Limits(
        available=optional(available, from_gpu_hours),
        grace_amount=optional(grace, from_gpu_hours),
        grace_duration=optional(duration, parse_duration),
        on_exhausted=OnExhausted(on_exhausted),
    )
    now = parse_instant("2026-03-01T00:00:00Z")
    elapsed = optional(spent_up_for, parse_duration)
    assert state(limits, from_gpu_hours(spent), None if elapsed is None else now - elapsed, now) == expected


@pytest.mark.parametrize("row", rows("`minRuntime`"), ids="/".join)
def test_the_pods_released_from_the_gate_are_as_documented(row: list[str]) -> None:
    whole, left = from_gpu_hours(row[1]), from_gpu_hours(row[2])
    budget = Budget("a", allowance=whole, on_exhausted=OnExhausted.HOLD)
    limits = Limits(whole, on_exhausted=OnExhausted.HOLD)
    spent_up = BudgetState.OPEN if left else BudgetState.HELD
    found = Figures(Period(0, 1), 0, limits, whole - left, 0, None, spent_up, spent_up, 0)
    queue = [waiting(place, int(gpus), parse_duration(row[0])) for place, gpus in enumerate(row[3].split(", "))]
    released = [
        str(candidate.rate // GPU_SECOND) for candidate in pods_to_release(Account("a", budget), found, queue, 0)
    ]
    assert (", ".join(released) or NOTHING) == row[4]


def waiting(place: int, gpus: int, min_runtime: int) -> Candidate:
    """A pod at the gate, and what it must be able to pay."""
    pod = PodFacts(f"u{place}", "ns", f"p{place}", "", place, None, False, False, False, None, True, None)
    return Candidate(pod, gpus * GPU_SECOND, cost(gpus * GPU_SECOND, min_runtime))


@pytest.mark.parametrize("row", rows("GPU-hours available"), ids="/".join)
def test_from_when_on_conditions_hold_is_as_documented(row: list[str]) -> None:
    limits, spent = Limits(from_gpu_hours(row[0])), from_gpu_hours(row[1])
    found = Figures(Period(0, 1), 0, limits, spent, 0, None, BudgetState.OPEN, BudgetState.OPEN, 0)
    shown = {condition["type"]: condition["status"] for condition in conditions_of(found, {}, None)}
    assert [shown["HalfSpent"], shown["MostlySpent"], shown["Exhausted"]] == row[2:]


@pytest.mark.parametrize("row", rows("own"), ids="/".join)
def test_the_next_periods_opening_is_as_documented(row: list[str]) -> None:
    end = parse_instant("2026-02-01T00:00:00Z")
    given = [part.split() for part in row[1].split(", ")]
    period_credits = {name: Credit(name, int(amount), end + place + 1) for place, (name, amount) in enumerate(given)}
    left = [f"{credit.name} {credit.amount}" for credit in carried(int(row[0]), period_credits, end, int(row[2]))]
    assert (", ".join(left) or NOTHING) == row[3]


@pytest.mark.parametrize("row", rows("remaining"), ids="/".join)
def test_the_money_lasts_as_long_as_documented(row: list[str]) -> None:
    remaining, spent, stretch, now, ends, runs_out = row
    moment = parse_instant(now)
    burn = Burn(moment - parse_duration(stretch), moment, from_gpu_hours(spent))
    found = lasts_until(from_gpu_hours(remaining), burn, moment, parse_instant(ends))
    assert found == optional(runs_out, parse_instant)


@pytest.mark.parametrize("row", rows("left"), ids="/".join)
def test_a_pod_fits_under_safe_admission_as_documented(row: list[str]) -> None:
    remaining, pods, default, deadline, committed, needs, fate = row
    commit = parse_duration(default)
    running = [] if pods == NOTHING else [pair.split() for pair in pods.split(", ")]
    promised = sum(
        commitment(GPU_SECOND, optional(limit, parse_duration), parse_duration(ran), commit) for limit, ran in running
    )
    needed = commitment(GPU_SECOND, optional(deadline, parse_duration), 0, commit)
    assert (promised, needed) == (int(committed) * GPU_HOUR, int(needs) * GPU_HOUR)
    fits = needed <= from_gpu_hours(remaining) - promised
    assert fate == ("fits" if fits else "does not fit")


@pytest.mark.parametrize("row", rows("bill"), ids="/".join)
def test_each_charge_is_as_documented(row: list[str]) -> None:
    reserved, reported, most, charged = (int(cell) for cell in row[1:])
    assert billed(Bill(row[0]), reserved, reported, most) == charged


@pytest.mark.parametrize("row", rows("the period's own"), ids="/".join)
def test_spending_burns_credits_as_documented(row: list[str]) -> None:
    end = parse_instant("2026-02-01T00:00:00Z")
    expires = {"soon": end - 1, "late": end + 1}
    period_credits = []
    for part in row[1].split(", "):
        name, amount, *since = part.split()
        period_credits.append(Credit(name, int(amount), expires[name], int(since[0][1:]) if since else 0))
    found = burn(int(row[0]), period_credits, end, int(row[2]))
    left = ", ".join(f"{credit.name} {found.credits[credit.name]}" for credit in period_credits)
    assert [str(found.own), left, str(found.debt)] == row[3:]


@pytest.mark.parametrize("row", rows("allowance"), ids="/".join)
def test_a_corrections_effect_is_as_documented(row: list[str]) -> None:
    allowance, corrected = from_gpu_hours(row[0]), from_signed_gpu_hours(row[2])
    spent = from_gpu_hours(row[1]) if not row[1].startswith("-") else from_signed_gpu_hours(row[1])
    found = parse_correction(
        {
            "metadata": {"name": "c"},
            "spec": {"budget": "a", "gpuHours": row[2], "effectivePeriod": "2026-01-15T00:00:00Z", "reason": "r"},
        }
    )
    assert found.amount == corrected
    spent += found.amount if row[3] == "present" else 0
    assert [from_gpu_hours(row[4]), from_gpu_hours(row[5])] == [spent, allowance - spent]


@pytest.mark.parametrize("row", rows("cap"), ids="/".join)
def test_money_rolls_over_as_documented(row: list[str]) -> None:
    cap, allowance, before, granted, spent, begins = (int(cell) for cell in row)
    own = allowance + before + granted
    assert allowance + rolled_over(cap, own, [], end=1, spent=spent, lasting=allowance + before) == begins


def optional(cell: str, read: Callable[[str], int]) -> int | None:
    """A cell's value; nothing where it holds a dash."""
    return None if cell == NOTHING else read(cell)


def test_people_read_gpu_hours_with_two_places() -> None:
    assert display(GPU_HOUR * 5 // 2) == "2.50"
