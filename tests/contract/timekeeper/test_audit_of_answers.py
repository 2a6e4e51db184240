from __future__ import annotations

import pytest

from tests.support.ledger.audited import (
    KEYS,
    Corruption,
    Found,
    audited,
    books,
    found,
    harness,
    in_json,
    in_status,
    server,
    write_statuses,
)
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.domain.money import SECOND
from timekeeper.ledger import keys

__all__ = ["books", "harness", "server"]


def in_summary(name: str, value: object) -> Corruption:
    return in_json(KEYS.head, "summary", name, value)


def in_state(name: str, value: object) -> Corruption:
    return in_json(keys.STATES_VALUES, "team-a", name, value)


def money(amount: int) -> dict[str, str]:
    return {"gpuHours": "1.00", "microGPUSeconds": str(amount)}


SHOWN: dict[str, tuple[Corruption, Found]] = {
    "when the money ran out": (
        lambda harness: harness.client.hset(KEYS.period(MONTH), "exhausted", str(MONTH)),
        {(Figure.EXHAUSTED, ""), (Figure.EXHAUSTED, "summary")},
    ),
    "when the summary says the money ran out": (in_summary("exhausted_at", MONTH), {(Figure.EXHAUSTED, "summary")}),
    "the summary's rate": (in_summary("rate", 7), {(Figure.RATE, "summary")}),
    "the summary's state": (
        in_summary("state", "over"),
        {(Figure.STATE, "summary"), (Figure.STATE, "state of team-a")},
    ),
    "what the summary says is available": (in_summary("available", 7), {(Figure.AVAILABLE, "summary")}),
    "what the summary says was granted": (in_summary("granted", 7), {(Figure.GRANTED, "summary")}),
    "the summary's period": (in_summary("period_end", 7), {(Figure.PERIOD, "summary")}),
    "the published state": (in_state("state", "held"), {(Figure.STATE, "state of team-a")}),
    "the published budget": (in_state("budget", "b"), {(Figure.STATE, "state of team-a")}),
    "what is published as available": (in_state("available", "7"), {(Figure.AVAILABLE, "state of team-a")}),
    "what is published as remaining": (in_state("remaining", "7"), {(Figure.REMAINING, "state of team-a")}),
    "the published rate": (in_state("rate", "7"), {(Figure.RATE, "state of team-a")}),
    "what the status says is spent": (
        in_status("spent", money(7)),
        {(Figure.STATUS, "status.spent"), (Figure.STATUS, "status.remaining")},
    ),
    "what the status says is left": (in_status("remaining", money(7)), {(Figure.STATUS, "status.remaining")}),
    "what the status says is available": (
        in_status("available", money(7)),
        {
            *((Figure.STATUS, f"status.{field}") for field in ("available", "remaining", "state", "exhaustedAt")),
            (Figure.BURNED, "status.expiring lasting"),
        },
    ),
    "what the status says was granted": (in_status("granted", money(7)), {(Figure.STATUS, "status.granted")}),
    "what the status says is left of a grant": (
        in_status("expiring", [{"grant": "lasting", **money(7), "expires": "2026-06-01T00:00:00Z"}]),
        {(Figure.BURNED, "status.expiring lasting")},
    ),
    "the status's state": (in_status("state", "over"), {(Figure.STATUS, "status.state")}),
    "the status's checkpoint": (
        in_status("checkpoint.closedMicroGPUSeconds", "7"),
        {(Figure.STATUS, "status.checkpoint")},
    ),
    "a status of long ago": (
        in_status("checkpoint.time", "2026-01-02T00:00:00Z"),
        {(Figure.STATUS, "status.checkpoint.time")},
    ),
    "the end of the status's period": (
        in_status("period.end", "2026-03-01T00:00:00Z"),
        {(Figure.STATUS, "status.period.end")},
    ),
    "the rate of a session": (
        in_json(KEYS.sessions, "running", "tariff", [[NOON, 400_000]]),
        {
            (Figure.RATE, "running"),
            (Figure.AMOUNT, "running"),
            (Figure.RATE, "summary"),
            (Figure.RATE, "state of team-a"),
        },
    ),
    "the start of a session": (
        in_json(KEYS.sessions, "running", "start", NOON + 60 * SECOND),
        {(Figure.START, "running"), (Figure.AMOUNT, "running")},
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_each_figure_that_is_shown_falsely_is_named(books: LedgerHarness, name: str) -> None:
    corrupt, expected = SHOWN[name]
    corrupt(books)
    assert found(books) == expected


def test_a_pod_that_is_not_metered_is_named(books: LedgerHarness) -> None:
    books.pod("stowaway", "team-a")
    books.pass_time(120)
    books.client.set(keys.WATCHED, str(books.now))
    assert (Figure.SESSION, "stowaway") in found(books)


def test_a_session_whose_pod_is_gone_is_named(books: LedgerHarness) -> None:
    books.remove("running")
    books.source.refresh()
    assert found(books) == {(Figure.SESSION, "running")}


def test_an_admin_who_does_not_reach_the_api_server_checks_the_store_alone(books: LedgerHarness) -> None:
    around = AuditEnvironment(books.client, lambda: None, lambda: books.now, lambda _: False)
    in_status("spent", money(7))(books)
    assert audit(around, AuditRequest(patience_seconds=0)).differences == ()
    in_summary("rate", 7)(books)
    assert len(audit(around, AuditRequest(patience_seconds=0)).differences) == 1


def test_a_figure_that_lags_for_a_moment_is_no_difference(books: LedgerHarness) -> None:
    books.pod("late", "team-a")
    books.client.hset(keys.STATES_VALUES, "team-a", "{}")

    def settle(_seconds: float) -> bool:
        books.lead()
        books.reconcile(10)
        write_statuses(books)
        return False

    around = AuditEnvironment(books.client, lambda: read_cluster(books.source.mirrors, None), lambda: books.now, settle)
    assert audit(around, AuditRequest(patience_seconds=1)).differences == ()


def test_a_budget_that_cannot_be_used_is_held_to_what_it_last_was(books: LedgerHarness) -> None:
    books.budget("a", ["team-a"], 1, onExhausted="perhaps")
    books.reconcile(10)
    write_statuses(books)
    assert audited(books).differences == ()


def test_a_budget_that_is_gone_is_held_to_what_was_published_of_it(books: LedgerHarness) -> None:
    books.budgets = []
    books.write_budgets()
    books.reconcile(10)
    assert audited(books).differences == ()
    assert audited(books).accounts == 2


@pytest.mark.parametrize("broken", ["broken", "[]"])
def test_a_namespace_whose_payers_cannot_be_read_is_named(books: LedgerHarness, broken: str) -> None:
    books.client.hset(keys.NAMESPACES, "team-a", broken)
    (difference,) = [each for each in audited(books).differences if each.figure is Figure.PAYERS]
    assert (difference.account, difference.subject, difference.stored) == ("namespace:team-a", "team-a", broken)
