from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fairgpu.commands import main
from tests.keeper_stage import MONTH, Stage
from timekeeper.audit.auditing import Audit, Question, audit
from timekeeper.audit.difference import Figure
from timekeeper.rules.money import GPU_SECOND
from timekeeper.rules.timestamps import HOUR
from timekeeper.store.keys import AccountKeys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from tests.redis_server import RedisServer

KEYS = AccountKeys("a")


@pytest.fixture
def stage(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    with redis_server.client() as client:
        yield Stage(tmp_path, client)


@pytest.fixture
def books(stage: Stage) -> Stage:
    """A budget with a running pod, an ended one, one that is gone, and a grant."""
    stage.budget("a", ["team-a"])
    stage.grant("more", "a", 5)
    stage.pod("running", "team-a", core=50)
    ended = stage.pod("ended", "team-a", core=30)
    stage.pod("gone", "team-a")
    stage.round()
    stage.pass_time(100)
    stage.finish(ended)
    stage.remove("gone")
    stage.round()
    stage.round(10)
    return stage


def command(stage: Stage, *arguments: str) -> int:
    settings = stage.folder / "settings.yaml"
    port = stage.client.connection_pool.connection_kwargs["port"]
    settings.write_text(f"timekeeper: {{redis: {{url: 'redis://127.0.0.1:{port}/0'}}}}")
    return main(["audit", "--standalone", str(stage.folder), *arguments])


def audited(stage: Stage, **question: object) -> Audit:
    return audit(stage.client, Question(**question), lambda: stage.now)  # type: ignore[arg-type]


def found(stage: Stage) -> set[tuple[Figure, str]]:
    return {(difference.figure, difference.subject) for difference in audited(stage).differences}


def test_books_that_were_kept_have_no_difference(books: Stage) -> None:
    assert audited(books).differences == ()
    assert audited(books).accounts == 1
    assert audited(books).sessions == 3


def in_hash(key: str, field: str, value: str) -> Callable[[redis.Redis], object]:
    return lambda client: client.hset(key, field, value)


def in_amount(uid: str, position: int, value: str) -> Callable[[redis.Redis], object]:
    def change(client: redis.Redis) -> None:
        text = client.hget(KEYS.amounts(MONTH), uid)
        assert isinstance(text, bytes)
        parts = text.decode().split(" ")
        assert parts[position] != value
        parts[position] = value
        client.hset(KEYS.amounts(MONTH), uid, " ".join(parts))

    return change


def without_entries(client: redis.Redis) -> None:
    client.xtrim(KEYS.ledger, maxlen=0, approximate=False)


def with_entry(client: redis.Redis) -> None:
    fields = {"k": "correction", "p": str(MONTH), "a": "7", "t": "1", "u": "gone", "n": "", "d": "", "x": ""}
    client.xadd(KEYS.ledger, fields)


def entry_of_a_stranger(client: redis.Redis) -> None:
    fields = {"k": "close", "p": str(MONTH), "a": "7", "t": "1", "u": "stranger", "n": "", "d": "", "x": ""}
    client.xadd(KEYS.ledger, fields)


CORRUPTIONS: dict[str, tuple[Callable[[redis.Redis], object], set[tuple[Figure, str]]]] = {
    "the total": (in_hash(KEYS.period(MONTH), "total", "1"), {(Figure.SPENT, "")}),
    "the total, which is no number": (in_hash(KEYS.period(MONTH), "total", "much"), {(Figure.SPENT, "")}),
    "the total, gone": (lambda client: client.hdel(KEYS.period(MONTH), "total"), {(Figure.SPENT, "")}),
    "the checkpoint": (in_hash(KEYS.period(MONTH), "checkpoint", "5"), {(Figure.CHECKPOINT, "")}),
    "what is gone": (in_hash(KEYS.period(MONTH), "gone", "5"), {(Figure.GONE, "")}),
    "what was granted": (in_hash(KEYS.period(MONTH), "granted", "5"), {(Figure.GRANTED, "")}),
    "a grant": (in_hash(KEYS.grants, "more", f"{MONTH} 5"), {(Figure.GRANTED, "more")}),
    "a grant that was never made": (in_hash(KEYS.grants, "gift", f"{MONTH} 5"), {(Figure.GRANTED, "gift")}),
    "an ended session's amount": (in_amount("ended", 2, "5"), {(Figure.AMOUNT, "ended")}),
    "a session's amount whose pod is gone": (in_amount("gone", 2, "5"), {(Figure.AMOUNT, "gone")}),
    "a running session's amount": (in_amount("running", 2, "5"), {(Figure.AMOUNT, "running"), (Figure.SPENT, "")}),
    "what is posted of a session": (in_amount("running", 3, "5"), {(Figure.POSTED, "running")}),
    "an amount that cannot be read": (
        in_hash(KEYS.amounts(MONTH), "ended", "x"),
        {(Figure.AMOUNT, "ended")},
    ),
    "a session that is gone and said to be open": (in_amount("gone", 4, "o"), {(Figure.GONE, "")}),
    "a running session's record": (
        in_hash(KEYS.sessions, "running", "{}"),
        {(Figure.SESSION, "running")},
    ),
    "a running session without a record": (
        lambda client: client.hdel(KEYS.sessions, "running"),
        {(Figure.SESSION, "running")},
    ),
    "an entry too many": (
        with_entry,
        {(Figure.POSTED, "gone"), (Figure.AMOUNT, "gone"), (Figure.SPENT, ""), (Figure.GONE, "")},
    ),
    "an entry of nobody": (entry_of_a_stranger, {(Figure.LEDGER, "stranger"), (Figure.SPENT, "")}),
    "the end of the period": (in_hash(KEYS.periods, str(MONTH), "5"), {(Figure.PERIOD, "end")}),
    "the latest period": (
        in_hash(KEYS.periods, str(MONTH + HOUR), str(MONTH + 2 * HOUR)),
        {(Figure.PERIOD, "end"), (Figure.PERIOD, "latest")},
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_whatever_is_corrupted_is_named(books: Stage, name: str) -> None:
    corrupt, expected = CORRUPTIONS[name]
    corrupt(books.client)
    assert found(books) == expected


def test_a_lost_ledger_is_named_session_by_session(books: Stage) -> None:
    without_entries(books.client)
    named = found(books)
    assert {(Figure.POSTED, "ended"), (Figure.POSTED, "gone"), (Figure.GRANTED, "more")} <= named


def test_a_difference_says_what_is_stored_and_what_must_be(books: Stage) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    (difference,) = audited(books).differences
    assert (difference.account, difference.period) == ("a", MONTH)
    assert (difference.stored, difference.expected) == ("1", str((100 + 30 + 55) * GPU_SECOND))


def test_a_budget_that_is_not_there_is_said_to_be_missing(books: Stage) -> None:
    assert audited(books, accounts=("b",)).missing == ("b",)
    assert audited(books, period=MONTH + HOUR).accounts == 0


def test_the_command_answers_0_where_nothing_differs(books: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(books, "--period", "2026-01-01T00:00:00Z") == 0
    told = capsys.readouterr().out
    assert told == "Recomputed: 1 account, 3 sessions, 3 ledger entries. No figure differs.\n"


def test_the_command_answers_1_and_prints_what_differs(books: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    books.client.hset(KEYS.period(MONTH), "total", str(GPU_SECOND))
    assert command(books, "--budget", "a") == 1
    heading, titles, row = capsys.readouterr().out.splitlines()
    assert heading.endswith("1 figure differs:")
    assert titles.split() == ["ACCOUNT", "PERIOD", "FIGURE", "OF", "STORED", "EXPECTED", "RECOMPUTED", "FROM"]
    assert row.startswith("a         2026-01-01T00:00:00Z   spent     -   1000000 (0.000278 GPUh)   185000000 (0.0")


def test_the_command_tells_programs_in_json(books: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    assert command(books, "-o", "json") == 1
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert difference == {
        "account": "a",
        "period": "2026-01-01T00:00:00Z",
        "figure": "spent",
        "subject": None,
        "stored": "1",
        "expected": "185000000",
        "recomputedFrom": "checkpoint + ledger entries + unposted amounts",
    }


def test_a_period_that_is_no_instant_is_refused(books: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(books, "--period", "January") == 1
    assert "--period: 'January' is no RFC 3339 timestamp" in capsys.readouterr().err
