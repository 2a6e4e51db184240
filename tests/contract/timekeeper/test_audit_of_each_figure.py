"""One wrong figure of money, alone, by the smallest amount there is and by a GPU-second: the auditor names it.

docs/audit.md lists the figures that nothing says a second time, and those that are held to nearly their value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.ledger.audited import KEYS, audited, books, found, harness, server, write_statuses
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, report
from tests.support.ledger.stored_hours import rows_of, write_rows
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import keys
from timekeeper.sources.folder import write_json

__all__ = ["books", "harness", "server"]

Change = Callable[[LedgerHarness, int], object]
DELTAS = (1, 10**6)


def figure_in(key: str, field: str, position: int = 0) -> Change:
    """A figure of a hash's value, which spaces divide into parts."""

    def change(harness: LedgerHarness, by: int) -> None:
        text = harness.client.hget(key, field)
        assert isinstance(text, bytes)
        parts = text.decode().split(" ")
        parts[position] = str(int(parts[position]) + by)
        harness.client.hset(key, field, " ".join(parts))

    return change


def figure_of_json(key: str, field: str, *path: str | int) -> Change:
    """A figure of a hash's value, which is JSON; it stays a text where it is one."""

    def change(harness: LedgerHarness, by: int) -> None:
        text = harness.client.hget(key, field)
        assert isinstance(text, bytes)
        document = json.loads(text)
        add(document, path, by)
        harness.client.hset(key, field, json.dumps(document))

    return change


def figure_of_status(*path: str | int) -> Change:
    """A figure of the budget's status."""

    def change(harness: LedgerHarness, by: int) -> None:
        file = harness.folder / "status" / "budget-a.json"
        status = json.loads(file.read_text())
        add(status, path, by)
        write_json(file, status)
        harness.source.refresh()

    return change


def add(document: Any, path: tuple[str | int, ...], by: int) -> None:
    for key in path[:-1]:
        document = document[key]
    known = document[path[-1]]
    document[path[-1]] = str(int(known) + by) if isinstance(known, str) else known + by


def entry_of(kind: str, subject: str) -> Change:
    """The amount of a ledger entry; all entries are written again, since one cannot be changed."""

    def change(harness: LedgerHarness, by: int) -> None:
        entries: Any = harness.client.xrange(KEYS.ledger)
        harness.client.delete(KEYS.ledger)
        changed = 0
        for name, fields in entries:
            if (fields[b"k"].decode(), fields[b"d"].decode()) == (kind, subject):
                fields[b"a"] = str(int(fields[b"a"]) + by)
                changed += 1
            harness.client.xadd(KEYS.ledger, fields, id=name)
        assert changed == 1

    return change


def row_of(owner: str) -> Change:
    """Returns a change of the amount billed in the row of hours of an owner."""

    def change(harness: LedgerHarness, by: int) -> None:
        ((place, row),) = [item for item in rows_of(harness.client, "a").items() if owner in item[0][1]]
        billed, *others = row.split(" ")
        write_rows(harness.client, "a", {place: " ".join([str(int(billed) + by), *others])})

    return change


PERIOD = KEYS.period(MONTH)
AMOUNTS = KEYS.amounts(MONTH)
STATUS = {"spent", "granted", "available", "remaining"}

FIGURES: dict[str, tuple[Change, tuple[Figure, str]]] = {
    "a period's total": (figure_in(PERIOD, "total"), (Figure.SPENT, "")),
    "a period's checkpoint": (figure_in(PERIOD, "checkpoint"), (Figure.CHECKPOINT, "")),
    "a period's grants": (figure_in(PERIOD, "granted"), (Figure.GRANTED, "")),
    "a period's sum of pods that are gone": (figure_in(PERIOD, "gone"), (Figure.FINALIZED, "")),
    "a grant": (figure_in(KEYS.grants, "more", 1), (Figure.GRANTED, "grant more")),
    "a grant that outlives its period": (figure_in(KEYS.credits(MONTH), "lasting"), (Figure.GRANTED, "credit lasting")),
    "the spending when a credit came": (figure_in(KEYS.credits(MONTH), "lasting", 2), (Figure.BURNED, "summary")),
    "a correction": (figure_in(KEYS.corrections, "refund", 1), (Figure.SPENT, "correction refund")),
    "the amount of an ended session": (figure_in(AMOUNTS, "ended", 2), (Figure.AMOUNT, "ended")),
    "the amount of a session whose pod is gone": (figure_in(AMOUNTS, "gone", 2), (Figure.AMOUNT, "gone")),
    "the posted amount of a running session": (figure_in(AMOUNTS, "running", 3), (Figure.POSTED, "running")),
    "the posted amount of an ended session": (figure_in(AMOUNTS, "ended", 3), (Figure.POSTED, "ended")),
    "the posted amount of a session whose pod is gone": (figure_in(AMOUNTS, "gone", 3), (Figure.POSTED, "gone")),
    "the rate of a running session": (
        figure_of_json(KEYS.sessions, "running", "tariff", 0, 1),
        (Figure.RATE, "running"),
    ),
    "the entry of a grant": (entry_of("grant", "more"), (Figure.GRANTED, "grant more")),
    "the entry of a correction": (entry_of("correction", "refund"), (Figure.SPENT, "correction refund")),
    "the entry of an ended session": (entry_of("close", "ended"), (Figure.POSTED, "ended")),
    "the entry of a session whose pod is gone": (entry_of("close", "gone"), (Figure.POSTED, "gone")),
    "a row of hours": (row_of("Pod/ended"), (Figure.HOURS, "")),
    "the published grants": (figure_of_json(KEYS.head, "summary", "granted"), (Figure.GRANTED, "summary")),
    "the published available money": (
        figure_of_json(KEYS.head, "summary", "available"),
        (Figure.AVAILABLE, "summary"),
    ),
    "the published money without credits": (figure_of_json(KEYS.head, "summary", "own"), (Figure.AVAILABLE, "summary")),
    "the published committed money": (figure_of_json(KEYS.head, "summary", "committed"), (Figure.AVAILABLE, "summary")),
    "a published credit": (figure_of_json(KEYS.head, "summary", "pots", 0, 1), (Figure.BURNED, "summary")),
    "the spending when a published credit came": (
        figure_of_json(KEYS.head, "summary", "pots", 0, 3),
        (Figure.BURNED, "summary"),
    ),
    "the amount of a running session": (figure_in(AMOUNTS, "running", 2), (Figure.SPENT, "")),
    "the published rate": (figure_of_json(KEYS.head, "summary", "rate"), (Figure.RATE, "summary")),
    "the available money of a published state": (
        figure_of_json(keys.STATES_VALUES, "team-a", "available"),
        (Figure.AVAILABLE, "state of team-a"),
    ),
    "the rate of a published state": (
        figure_of_json(keys.STATES_VALUES, "team-a", "rate"),
        (Figure.RATE, "state of team-a"),
    ),
    **{
        f"the status's {name}": (figure_of_status(name, "microGPUSeconds"), (Figure.STATUS, f"status.{name}"))
        for name in sorted(STATUS)
    },
    "the status's checkpoint": (
        figure_of_status("checkpoint", "closedMicroGPUSeconds"),
        (Figure.STATUS, "status.checkpoint"),
    ),
    "the status's checkpoint of a grant": (
        figure_of_status("checkpoint", "pots", 0, "microGPUSeconds"),
        (Figure.STATUS, "status.checkpoint.pots lasting"),
    ),
    "the status's rest of a grant": (
        figure_of_status("expiring", 0, "microGPUSeconds"),
        (Figure.BURNED, "status.expiring lasting"),
    ),
}


@pytest.mark.parametrize("by", DELTAS)
@pytest.mark.parametrize("name", FIGURES)
def test_one_wrong_figure_is_named(books: LedgerHarness, name: str, by: int) -> None:
    change, expected = FIGURES[name]
    change(books, by)
    assert expected in found(books)


@pytest.fixture
def carried(harness: LedgerHarness) -> LedgerHarness:
    """A budget of an hour that has rolled over what its first hour left."""
    harness.budget("a", ["team-a"], "1", period={"every": "hour"}, rollover={"gpuHours": "0.4"})
    harness.pod("running", "team-a", core=50)
    harness.reconcile()
    harness.reconcile(3600)
    harness.reconcile(60)
    write_statuses(harness)
    assert audited(harness).differences == ()
    return harness


LATER = KEYS.period(NOON + HOUR)
OF_A_LATER_PERIOD: dict[str, tuple[Change, tuple[Figure, str]]] = {
    "a closing balance": (figure_in(LATER, "struck"), (Figure.BALANCE, "")),
    "what was rolled over": (figure_in(KEYS.credits(NOON + HOUR), ""), (Figure.GRANTED, "rolled over")),
    "the entry of what was rolled over": (entry_of("carry", ""), (Figure.GRANTED, "rolled over")),
    "the status's closing balance": (
        figure_of_status("checkpoint", "previousMicroGPUSeconds"),
        (Figure.STATUS, "status.checkpoint.previous"),
    ),
    "the status's corrections of the period before": (
        figure_of_status("checkpoint", "previousCorrectedMicroGPUSeconds"),
        (Figure.STATUS, "status.checkpoint.previousCorrected"),
    ),
}


@pytest.mark.parametrize("by", DELTAS)
@pytest.mark.parametrize("name", OF_A_LATER_PERIOD)
def test_one_wrong_figure_of_money_that_was_carried_is_named(carried: LedgerHarness, name: str, by: int) -> None:
    change, expected = OF_A_LATER_PERIOD[name]
    change(carried, by)
    assert expected in found(carried)


@pytest.mark.parametrize("by", DELTAS)
@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
@pytest.mark.parametrize("place", ["amount", "posted", "entry"])
def test_one_wrong_figure_of_a_session_that_is_billed_by_use_is_named(
    harness: LedgerHarness, bill: Bill, place: str, by: int
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=bill))
    pod = harness.pod("ended", "team-a", core=50)
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "ended", 1, 20)
    harness.reconcile()
    harness.finish(pod)
    harness.reconcile(10)
    write_statuses(harness)
    assert audited(harness, bill=bill.value).differences == ()
    changes = {
        "amount": figure_in(AMOUNTS, "ended", 2),
        "posted": figure_in(AMOUNTS, "ended", 3),
        "entry": entry_of("close", "ended"),
    }
    changes[place](harness, by)
    named = {(each.figure, each.subject) for each in audited(harness, bill=bill.value).differences}
    assert (Figure.AMOUNT if place == "amount" else Figure.POSTED, "ended") in named


@pytest.mark.parametrize("by", DELTAS)
def test_a_wrong_number_of_parts_that_a_session_holds_by_another_stack_is_named(
    harness: LedgerHarness, by: int
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(own_resources={}))
    harness.pod_of_another_stack("other")
    for _ in range(2):
        harness.reconcile(100)
    write_statuses(harness)
    assert audited(harness).differences == ()
    figure_of_json(KEYS.sessions, "other", "holds", 0, 2)(harness, by)
    assert (Figure.RATE, "other") in found(harness)
