from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.ledger.audited import (
    CORRECTED,
    KEYS,
    Corruption,
    Found,
    audited,
    books,
    found,
    harness,
    in_amount,
    in_hash,
    in_status,
    server,
    write_statuses,
)
from tests.support.ledger.harness import MONTH, LedgerHarness, report
from tests.support.ledger.stored_hours import Place, delete_row, delete_rows, rows_of, sums_of, write_rows
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage_folding import pack, unfold
from timekeeper.ledger import keys
from timekeeper.ledger.compaction import fold_hours, pack_hours
from timekeeper.ledger.entries import pack_ledger

__all__ = ["books", "harness", "server"]


def test_books_that_were_kept_have_no_difference(books: LedgerHarness) -> None:
    assert audited(books).differences == ()
    assert audited(books).accounts == 1
    assert audited(books).sessions == 3


def test_books_whose_ledger_is_packed_have_no_difference(books: LedgerHarness) -> None:
    assert books.reconciler is not None
    assert pack_ledger(books.client, books.reconciler.fencing_token, "a", books.now + 1)
    assert books.client.xlen(KEYS.ledger) == 0
    assert audited(books).differences == ()
    books.reconcile(10)
    assert audited(books).differences == ()


def without_entries(harness: LedgerHarness) -> None:
    harness.client.xtrim(KEYS.ledger, maxlen=0, approximate=False)


def with_entry(harness: LedgerHarness) -> None:
    fields = {"k": "correction", "p": str(MONTH), "a": "7", "t": "1", "u": "gone", "n": "", "d": "", "x": ""}
    harness.client.xadd(KEYS.ledger, fields)


def entry_of_a_stranger(harness: LedgerHarness) -> None:
    fields = {"k": "close", "p": str(MONTH), "a": "7", "t": "1", "u": "stranger", "n": "", "d": "", "x": ""}
    harness.client.xadd(KEYS.ledger, fields)


def an_hour(harness: LedgerHarness) -> tuple[Place, str]:
    return max(rows_of(harness.client, "a").items(), key=lambda row: int(row[1].split()[0]))


def in_an_hour(value: str) -> Corruption:
    return lambda harness: write_rows(harness.client, "a", {an_hour(harness)[0]: value})


def a_sum_of_an_hour(harness: LedgerHarness) -> None:
    ((hour, to), value), *_ = sums_of(harness.client, "a").items()
    billed, *others = value.split(" ")
    harness.client.hset(KEYS.sums_of(hour), to, " ".join([str(int(billed) + 1), *others]))


def to_another_month(harness: LedgerHarness) -> None:
    place, value = an_hour(harness)
    delete_row(harness.client, "a", place)
    write_rows(harness.client, "a", {(1, place[1]): value})


def folded_and_changed(harness: LedgerHarness) -> None:
    assert harness.reconciler is not None
    assert fold_hours(harness.client, harness.reconciler.fencing_token, "a", MONTH + 31 * 24 * HOUR, [MONTH])
    assert found(harness) == set()
    ((month, blob),) = harness.client.hgetall(KEYS.folded).items()
    (first, *others) = unfold(blob)
    changed = first._replace(figures=first.figures._replace(billed=first.figures.billed + 1))
    harness.client.hset(KEYS.folded, month, pack([changed, *others]))


def packed_and_changed_in_part(harness: LedgerHarness) -> None:
    """Changes the sums from which questions without details are answered, and leaves the rows as they are."""
    assert harness.reconciler is not None
    assert pack_hours(harness.client, harness.reconciler.fencing_token, "a", MONTH + 31 * 24 * HOUR)
    assert found(harness) == set()
    ((name, blob),) = harness.client.hgetall(KEYS.folded).items()
    (first, *others) = unfold(blob)
    changed = pack([first._replace(figures=first.figures._replace(billed=first.figures.billed + 1)), *others])
    plain = int.from_bytes(changed[2:6]), int.from_bytes(blob[2:6])
    mixed = changed[:6] + blob[6:10] + changed[10 : 10 + plain[0]] + blob[10 + plain[1] :]
    harness.client.hset(KEYS.folded, name, mixed)


@pytest.mark.parametrize("damage", [lambda _: b"", lambda blob: blob[:20], lambda blob: blob[:-3] + b"xyz"])
def test_a_packed_value_that_cannot_be_read_is_named_and_ends_no_audit(
    books: LedgerHarness, damage: Callable[[bytes], bytes]
) -> None:
    assert books.reconciler is not None
    assert pack_hours(books.client, books.reconciler.fencing_token, "a", MONTH + 31 * 24 * HOUR)
    ((name, blob),) = books.client.hgetall(KEYS.folded).items()
    books.client.hset(KEYS.folded, name, damage(blob))
    assert (Figure.HOURS, name.decode()) in found(books)


@pytest.mark.parametrize("damage", [lambda segment: segment[:9], lambda _: b"", lambda _: b"\xff" * 40])
def test_packed_entries_that_cannot_be_read_are_named_and_end_no_audit(
    books: LedgerHarness, damage: Callable[[bytes], bytes]
) -> None:
    assert books.reconciler is not None
    assert pack_ledger(books.client, books.reconciler.fencing_token, "a", books.now + HOUR)
    ((name, segment),) = books.client.hgetall(KEYS.segments).items()
    books.client.hset(KEYS.segments, name, damage(segment))
    assert found(books) == {(Figure.LEDGER, "")}


def in_any_json(key: str, field: str, name: str) -> Corruption:
    def change(harness: LedgerHarness) -> None:
        document = json.loads(harness.client.hget(key, field) or b"{}")
        harness.client.hset(key, field, json.dumps({**document, name: [[0, {}]]}))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        in_hash(KEYS.credits(MONTH), "more", "broken"),
        lambda harness: harness.client.set(keys.PRICES, '{"a": [[0, "1/0"]]}'),
        lambda harness: harness.client.set(keys.PRICES, '{"a": [[Infinity, "1"]]}'),
        in_status("checkpoint.pots", 5),
        in_status("checkpoint", [1]),
        *(
            in_any_json(KEYS.sessions, "running", name)
            for name in ("use", "rates", "tariff", "holds", "payers", "start")
        ),
        *(in_any_json(KEYS.head, "summary", name) for name in ("pots", "credits", "grace", "rate", "available")),
    ],
)
def test_a_value_of_an_unexpected_form_ends_no_audit(books: LedgerHarness, damage: Corruption) -> None:
    damage(books)
    assert audited(books).accounts == 1


def test_a_fault_of_a_check_is_a_difference_of_its_account(
    books: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timekeeper.audit.auditing.check_hours", lambda _: int("five"))
    assert found(books) == {(Figure.PERIOD, "")}


STATUS_SPENT = (Figure.STATUS, "status.spent")
STATUS_CHECKPOINT = (Figure.STATUS, "status.checkpoint")
RATES = {(Figure.RATE, "summary"), (Figure.RATE, "state of team-a")}


CORRUPTIONS: dict[str, tuple[Corruption, Found]] = {
    "the total": (in_hash(KEYS.period(MONTH), "total", "1"), {(Figure.SPENT, "")}),
    "the total, which is no number": (in_hash(KEYS.period(MONTH), "total", "much"), {(Figure.SPENT, "")}),
    "the total, gone": (lambda harness: harness.client.hdel(KEYS.period(MONTH), "total"), {(Figure.SPENT, "")}),
    "the checkpoint": (in_hash(KEYS.period(MONTH), "checkpoint", "5"), {(Figure.CHECKPOINT, "")}),
    "what is gone": (in_hash(KEYS.period(MONTH), "gone", "5"), {(Figure.FINALIZED, "")}),
    "what was granted": (in_hash(KEYS.period(MONTH), "granted", "5"), {(Figure.GRANTED, "")}),
    "a grant": (in_hash(KEYS.grants, "more", f"{MONTH} 5"), {(Figure.GRANTED, "grant more")}),
    "a grant that outlives its period": (
        in_hash(KEYS.credits(MONTH), "lasting", f"5 {MONTH + HOUR} 0 o"),
        {
            (Figure.GRANTED, "credit lasting"),
            (Figure.BURNED, "status.expiring lasting"),
            (Figure.STATUS, "status.checkpoint.pots lasting"),
            (Figure.BURNED, "summary"),
            (Figure.AVAILABLE, "summary"),
        },
    ),
    "a correction": (in_hash(KEYS.corrections, "refund", f"{MONTH} 5"), {(Figure.SPENT, "correction refund")}),
    "a correction that was not ordered": (
        in_hash(KEYS.corrections, "gift", f"{MONTH} -5"),
        {(Figure.SPENT, "correction gift")},
    ),
    "a grant that was never made": (in_hash(KEYS.grants, "gift", f"{MONTH} 5"), {(Figure.GRANTED, "grant gift")}),
    "an ended session's amount": (in_amount("ended", 2, "5"), {(Figure.AMOUNT, "ended")}),
    "a session's amount whose pod is gone": (in_amount("gone", 2, "5"), {(Figure.AMOUNT, "gone")}),
    "a running session's amount": (
        in_amount("running", 2, "5"),
        {(Figure.AMOUNT, "running"), (Figure.SPENT, ""), STATUS_SPENT},
    ),
    "what is posted of a session": (in_amount("running", 3, "5"), {(Figure.POSTED, "running")}),
    "an amount that cannot be read": (
        in_hash(KEYS.amounts(MONTH), "ended", "x"),
        {(Figure.AMOUNT, "ended")},
    ),
    "a session that is gone and said to be open": (
        in_amount("gone", 4, "o"),
        {(Figure.FINALIZED, ""), STATUS_CHECKPOINT},
    ),
    "a running session's record": (
        in_hash(KEYS.sessions, "running", "{}"),
        {(Figure.SESSION, "running"), *RATES},
    ),
    "a running session without a record": (
        lambda harness: harness.client.hdel(KEYS.sessions, "running"),
        {(Figure.SESSION, "running"), *RATES},
    ),
    "an entry too many": (
        with_entry,
        {
            (Figure.POSTED, "gone"),
            (Figure.AMOUNT, "gone"),
            (Figure.SPENT, ""),
            (Figure.FINALIZED, ""),
            STATUS_CHECKPOINT,
            (Figure.HOURS, ""),
        },
    ),
    "an entry of no session": (
        entry_of_a_stranger,
        {(Figure.LEDGER, "stranger"), (Figure.SPENT, ""), (Figure.HOURS, "")},
    ),
    "an hour's use": (in_an_hour("5 0 0 -"), {(Figure.HOURS, "")}),
    "an hour's sum by namespace and model": (a_sum_of_an_hour, {(Figure.HOURS, "")}),
    "an hour's use, gone": (lambda harness: delete_rows(harness.client, "a"), {(Figure.HOURS, "")}),
    "use attributed to an hour of another period": (to_another_month, {(Figure.HOURS, "")}),
    "use that was folded": (folded_and_changed, {(Figure.HOURS, "")}),
    "use that was packed, where it is kept without details": (packed_and_changed_in_part, {(Figure.HOURS, "")}),
    "the end of the period": (in_hash(KEYS.periods, str(MONTH), "5"), {(Figure.PERIOD, "end")}),
    "the latest period": (
        in_hash(KEYS.periods, str(MONTH + HOUR), str(MONTH + 2 * HOUR)),
        {(Figure.PERIOD, "end"), (Figure.PERIOD, "latest"), (Figure.PERIOD, "previous")},
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corrupted_figure_is_named(books: LedgerHarness, name: str) -> None:
    corrupt, expected = CORRUPTIONS[name]
    corrupt(books)
    assert found(books) == expected


def test_a_lost_ledger_is_named_session_by_session(books: LedgerHarness) -> None:
    without_entries(books)
    named = found(books)
    assert {(Figure.POSTED, "ended"), (Figure.POSTED, "gone"), (Figure.GRANTED, "grant more")} <= named


def test_a_difference_says_what_is_stored_and_what_must_be(books: LedgerHarness) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    (difference,) = audited(books).differences
    assert (difference.account, difference.period) == ("a", MONTH)
    assert (difference.stored, difference.expected) == ("1", str((100 + 30 + 55) * GPU_SECOND + CORRECTED))


def test_a_budget_that_is_not_there_is_said_to_be_missing(books: LedgerHarness) -> None:
    assert audited(books, accounts=("b",)).missing == ("b",)
    assert audited(books, period=MONTH + HOUR).accounts == 0


@pytest.mark.parametrize("bill", [Bill.USED, Bill.MAX])
@pytest.mark.parametrize("corrupted", ["running", "ended"])
def test_an_amount_that_does_not_follow_from_what_was_reported_is_named(
    harness: LedgerHarness, bill: Bill, corrupted: str
) -> None:
    harness.budget("a", ["team-a"])
    harness.lead(ControllerRules(bill=bill))
    pods = {name: harness.pod(name, "team-a", core=50) for name in ("running", "ended")}
    harness.reconcile()
    harness.pass_time(100)
    for name in pods:
        report(harness, name, 1, 20)
    harness.reconcile()
    harness.finish(pods["ended"])
    harness.reconcile(10)
    write_statuses(harness)
    assert audited(harness, bill=bill.value).differences == ()
    more = int(str(harness.client.hget(KEYS.amounts(MONTH), corrupted), "ascii").split()[2]) + 20 * GPU_SECOND
    in_amount(corrupted, 2, str(more))(harness)
    differences = audited(harness, bill=bill.value).differences
    assert any(
        (found.figure, found.subject) == (Figure.AMOUNT, corrupted) and "bill" in found.reason for found in differences
    )
