"""What is too large for one command of Redis is read in pieces, and told as of one moment all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stored_hours import parts_of, rows_of
from timekeeper.audit import taking
from timekeeper.audit.auditing import Question, Surroundings, audit
from timekeeper.jobs.archiving import Archivist
from timekeeper.rules.timestamps import DAY, HOUR
from timekeeper.store import keys, reading, unread_use, usage_folding, usage_reading
from timekeeper.store.unread_use import Bounds
from timekeeper.store.usage_folding import fold_hours, pack_hours
from timekeeper.usage.retention import Retention

if TYPE_CHECKING:
    import redis

    from tests.keeper_stage import Stage
    from timekeeper.store.unread_use import Rest, Unread
    from timekeeper.usage.rows import Row

LITTLE = Bounds(1, 1, 1)
EVERYTHING = Bounds(1 << 40, 1 << 40, 1 << 40)


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """Four days of an account with three pods, some of them packed."""
    stage.budget("a", ["team-a"])
    for number in range(3):
        stage.pod(f"p{number}", "team-a", core=10 * (number + 1))
    keeper = stage.lead()
    stage.round()
    for _ in range(4 * 24):
        stage.round(3600)
    Archivist(stage.client, stage.source, keeper.books, keeper.epoch, Retention(2, 13)).archive(stage.now)
    assert parts_of(stage.client, "a", hourly=True)
    assert parts_of(stage.client, "a", hourly=False)
    assert len(rows_of(stage.client, "a")) > LITTLE.rows
    return stage


def bounded(monkeypatch: pytest.MonkeyPatch, *attempts: Bounds) -> None:
    for module in (usage_reading, taking):
        monkeypatch.setattr(module, "ATTEMPTS", attempts)


def told(stage: Stage) -> list[Row]:
    (found,) = usage_reading.accounts_usage(stage.client, ["a"], reading.assignments(stage.client))
    return sorted(found.rows())


def differences(stage: Stage) -> tuple[object, ...]:
    around = Surroundings(stage.client, lambda: None, lambda: stage.now, lambda _: False)
    return audit(around, Question(patience_seconds=0)).differences


def test_pieces_are_told_as_the_whole_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = told(stage)
    bounded(monkeypatch, LITTLE, EVERYTHING)
    assert told(stage) == whole
    assert differences(stage) == ()


@pytest.mark.parametrize("seconds", [60, 3600, DAY // 10**9])
def test_what_changes_between_the_pieces_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    bounded(monkeypatch, *[LITTLE] * 3, EVERYTHING)
    read_rest, changes = unread_use.read_rest, [seconds] * 2

    def settled_meanwhile(client: redis.Redis, account: str, unread: Unread, periods: list[bytes]) -> Rest | None:
        if changes:
            stage.round(changes.pop())
        return read_rest(client, account, unread, periods)

    for module in (usage_reading, taking):
        monkeypatch.setattr(module, "read_rest", settled_meanwhile)
    billed = sum(row.figures.billed for row in told(stage))
    assert billed == stage.spent("a")
    changes += [seconds] * 2
    assert differences(stage) == ()


def test_rows_that_are_packed_between_the_pieces_are_neither_lost_nor_told_twice(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stage.spent("a")
    bounded(monkeypatch, *[LITTLE] * 4, EVERYTHING)
    read_rest, later = unread_use.read_rest, iter([pack_hours, fold_hours])
    assert stage.keeper is not None
    epoch = stage.keeper.epoch

    def packed_meanwhile(client: redis.Redis, account: str, unread: Unread, periods: list[bytes]) -> Rest | None:
        change = next(later, None)
        if change is pack_hours:
            pack_hours(client, epoch, account, stage.now // HOUR * HOUR)
        elif change is fold_hours:
            fold_hours(client, epoch, account, stage.now // DAY * DAY, [])
        return read_rest(client, account, unread, periods)

    monkeypatch.setattr(usage_reading, "read_rest", packed_meanwhile)
    assert sum(row.figures.billed for row in told(stage)) == whole


def test_a_step_of_packing_takes_few_hours_and_the_next_one_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stage.spent("a")
    monkeypatch.setattr(usage_folding, "MOST_ROWS", 5)
    monkeypatch.setattr(usage_folding, "LARGE_PART", 300)
    assert stage.keeper is not None
    epoch, steps = stage.keeper.epoch, 0
    while not pack_hours(stage.client, epoch, "a", stage.now // HOUR * HOUR):
        steps += 1
        assert stage.put_down("a") == whole
    assert steps > 1
    assert len(parts_of(stage.client, "a", hourly=True)) > 1
    assert not [hour for hour, _ in rows_of(stage.client, "a") if hour < stage.now // HOUR]
    while not fold_hours(stage.client, epoch, "a", stage.now // DAY * DAY, []):
        assert stage.put_down("a") == whole
    assert stage.put_down("a") == whole
    assert stage.client.hlen(keys.AccountKeys("a").hour_index) == len({hour for hour, _ in rows_of(stage.client, "a")})
