"""An account too large for one command of Redis is read in pieces, and still answered as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ledger.harness import MONTH
from tests.support.ledger.stored_hours import parts_of, rows_of
from timekeeper.api.usage import Query, find
from timekeeper.audit import reading as audit_reading
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.controller.archive import Archivist
from timekeeper.domain.timestamps import DAY, HOUR
from timekeeper.domain.windows import Retention, Window
from timekeeper.ledger import compaction, keys, reading, usage
from timekeeper.ledger.client import StoreError
from timekeeper.ledger.compaction import fold_hours, pack_hours
from timekeeper.ledger.usage import Bounds

if TYPE_CHECKING:
    import redis

    from tests.support.ledger.harness import LedgerHarness
    from timekeeper.domain.usage import Group, Row
    from timekeeper.ledger.usage import Rest, Unread

LITTLE = Bounds(1, 1, 1)
EVERYTHING = Bounds(1 << 40, 1 << 40, 1 << 40)


@pytest.fixture
def harness(harness: LedgerHarness) -> LedgerHarness:
    """Four days of an account with three pods, some of them packed."""
    harness.budget("a", ["team-a"])
    for number in range(3):
        harness.pod(f"p{number}", "team-a", core=10 * (number + 1))
    reconciler = harness.lead()
    harness.reconcile()
    for _ in range(4 * 24):
        harness.reconcile(3600)
    Archivist(harness.client, harness.source, reconciler.books, reconciler.fencing_token, Retention(2, 13)).archive(
        harness.now
    )
    assert parts_of(harness.client, "a", hourly=True)
    assert parts_of(harness.client, "a", hourly=False)
    assert len(rows_of(harness.client, "a")) > LITTLE.rows
    return harness


def bounded(monkeypatch: pytest.MonkeyPatch, *attempts: Bounds) -> None:
    for module in (usage, audit_reading):
        monkeypatch.setattr(module, "ATTEMPTS", attempts)


def shown(harness: LedgerHarness) -> list[Row]:
    (found,) = usage.accounts_usage(harness.client, ["a"], reading.assignments(harness.client))
    return sorted(found.rows())


def differences(harness: LedgerHarness) -> tuple[object, ...]:
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    return audit(around, AuditRequest(patience_seconds=0)).differences


def test_pieces_are_shown_as_the_whole_is(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shown(harness)
    bounded(monkeypatch, LITTLE, EVERYTHING)
    assert shown(harness) == whole
    assert differences(harness) == ()


def test_many_accounts_are_shown_in_order_as_each_alone_is(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "bcde":
        harness.budget(name, [f"team-{name}"])
        harness.pod(f"of-{name}", f"team-{name}")
    harness.reconcile(60)
    harness.reconcile(3600)
    assignments = reading.assignments(harness.client)
    names = ["c", "nobody", "a", "e", "b", "d"]
    alone = [found for name in names for found in usage.accounts_usage(harness.client, [name], assignments)]
    assert [found.account for found in alone] == ["c", "a", "e", "b", "d"]
    monkeypatch.setattr(usage, "READ_AT_ONCE", 2)
    assert list(usage.accounts_usage(harness.client, names, assignments)) == alone
    harness.client.set(keys.AccountKeys("d").folded, "of another type")
    told_so_far = usage.accounts_usage(harness.client, names, assignments)
    assert [next(told_so_far).account for _ in range(3)] == ["c", "a", "e"]
    with pytest.raises(StoreError, match="WRONGTYPE"):
        next(told_so_far)


@pytest.mark.parametrize("seconds", [60, 3600, DAY // 10**9])
def test_hours_that_change_between_the_pieces_are_asked_for_again(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    bounded(monkeypatch, *[LITTLE] * 3, EVERYTHING)
    read_rest, changes = usage.read_rest, [seconds] * 2

    def settled_meanwhile(
        client: redis.Redis, account: str, unread: Unread, periods: list[bytes], *, details: bool = True
    ) -> Rest | None:
        if changes:
            harness.reconcile(changes.pop())
        return read_rest(client, account, unread, periods, details=details)

    for module in (usage, audit_reading):
        monkeypatch.setattr(module, "read_rest", settled_meanwhile)
    billed = sum(row.figures.billed for row in shown(harness))
    assert billed == harness.spent("a")
    changes += [seconds] * 2
    assert differences(harness) == ()


@pytest.mark.parametrize("attempts", [[LITTLE, EVERYTHING], [LITTLE] * 3 + [EVERYTHING], [LITTLE] * 5])
@pytest.mark.parametrize("changes", [0, 1, 2])
def test_an_audit_of_sessions_that_are_settled_between_the_pieces_reads_them_again(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch, attempts: list[Bounds], changes: int
) -> None:
    bounded(monkeypatch, *attempts)
    rest, seconds = audit_reading._rest, [60] * changes

    def settled_meanwhile(client: redis.Redis, *question: Any, **options: Any) -> Any:
        if seconds:
            number = len(seconds)
            harness.pod(f"new-{number}", "team-a")
            harness.remove(f"p{number}")
            harness.reconcile(seconds.pop())
        return rest(client, *question, **options)

    monkeypatch.setattr(audit_reading, "_rest", settled_meanwhile)
    assert differences(harness) == ()
    assert not seconds[1:]


def test_an_audit_reads_the_sessions_of_a_large_account_by_no_single_command(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded(monkeypatch, *[LITTLE] * 3, EVERYTHING)
    harness.client.config_set("slowlog-max-len", 10_000)
    harness.client.config_set("slowlog-log-slower-than", 0)
    assert differences(harness) == ()
    sent = [command["command"] for command in harness.client.slowlog_get(10_000)]
    account = keys.AccountKeys("a")
    for key in (account.sessions, account.amounts(MONTH), account.ended):
        assert f"HGETALL {key}".encode() not in sent
        assert any(command.startswith(f"HSCAN {key} ".encode()) for command in sent)


def test_rows_that_are_packed_between_the_pieces_are_neither_lost_nor_shown_twice(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = harness.spent("a")
    bounded(monkeypatch, *[LITTLE] * 4, EVERYTHING)
    read_rest, later = usage.read_rest, iter([pack_hours, fold_hours])
    assert harness.reconciler is not None
    fencing_token = harness.reconciler.fencing_token

    def packed_meanwhile(
        client: redis.Redis, account: str, unread: Unread, periods: list[bytes], *, details: bool = True
    ) -> Rest | None:
        change = next(later, None)
        if change is pack_hours:
            pack_hours(client, fencing_token, account, harness.now // HOUR * HOUR)
        elif change is fold_hours:
            fold_hours(client, fencing_token, account, harness.now // DAY * DAY, [])
        return read_rest(client, account, unread, periods, details=details)

    monkeypatch.setattr(usage, "read_rest", packed_meanwhile)
    assert sum(row.figures.billed for row in shown(harness)) == whole


def test_a_step_of_packing_takes_few_hours_and_the_next_one_goes_on(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = harness.spent("a")
    monkeypatch.setattr(compaction, "MOST_ROWS", 5)
    monkeypatch.setattr(compaction, "LARGE_PART", 300)
    assert harness.reconciler is not None
    fencing_token, steps = harness.reconciler.fencing_token, 0
    while not pack_hours(harness.client, fencing_token, "a", harness.now // HOUR * HOUR):
        steps += 1
        assert harness.entered("a") == whole
    assert steps > 1
    assert len(parts_of(harness.client, "a", hourly=True)) > 1
    assert not [hour for hour, _ in rows_of(harness.client, "a") if hour < harness.now // HOUR]
    while not fold_hours(harness.client, fencing_token, "a", harness.now // DAY * DAY, []):
        assert harness.entered("a") == whole
    assert harness.entered("a") == whole
    assert harness.client.hlen(keys.AccountKeys("a").hour_index) == len(
        {hour for hour, _ in rows_of(harness.client, "a")}
    )


def by_day(harness: LedgerHarness, within: Window) -> list[Group]:
    query = Query(within, "1d", ("namespace", "model"), 100)
    return find(harness.client, query, harness.now).items


def test_a_question_by_namespace_and_model_reads_sums_and_no_row(harness: LedgerHarness) -> None:
    within = Window(harness.now // DAY * DAY - 4 * DAY, harness.now // DAY * DAY + DAY)
    whole = by_day(harness, within)
    assert sum(item.figures.billed for item in whole) == harness.spent("a")
    hours = {hour for hour, _ in rows_of(harness.client, "a")}
    for hour in hours:
        assert harness.client.delete(keys.AccountKeys("a").rows_of(hour))
    assert by_day(harness, within) == whole


def test_the_sums_of_hours_are_read_in_pieces_as_their_rows_are(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    within = Window(harness.now // DAY * DAY - 4 * DAY, harness.now // DAY * DAY + DAY)
    whole = by_day(harness, within)
    bounded(monkeypatch, LITTLE, EVERYTHING)
    assert by_day(harness, within) == whole


def test_a_question_about_days_that_are_put_down_reads_no_running_session(harness: LedgerHarness) -> None:
    within = Window(harness.now // DAY * DAY - 3 * DAY, harness.now // DAY * DAY - DAY)
    whole = by_day(harness, within)
    assert whole
    for uid in harness.client.hkeys(keys.AccountKeys("a").sessions):
        harness.client.hset(keys.AccountKeys("a").sessions, uid, "not to be read")
    assert by_day(harness, within) == whole


def test_a_question_about_days_to_come_reads_no_session(harness: LedgerHarness) -> None:
    tomorrow = harness.now // DAY * DAY + DAY
    harness.client.set(keys.AccountKeys("a").sessions, "not to be read")
    assert by_day(harness, Window(tomorrow, tomorrow + DAY)) == []
