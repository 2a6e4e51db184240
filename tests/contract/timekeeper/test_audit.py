from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.keeper_stage import MONTH, NOON, Stage
from tests.redis_server import RedisServer
from timekeeper.audit.auditing import Audit, Question, Surroundings, audit
from timekeeper.audit.difference import Figure
from timekeeper.audit.world import see
from timekeeper.jobs.writing import StatusWriter
from timekeeper.rules.money import GPU_SECOND, SECOND
from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys
from timekeeper.store.keys import AccountKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

KEYS = AccountKeys("a")
CORRECTED = 3_600_000


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.fixture
def stage(server: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    with server.client() as client:
        client.flushall()
        yield Stage(tmp_path, client)


@pytest.fixture
def books(stage: Stage) -> Stage:
    """A budget with a running pod, an ended one, one that is gone, and a grant."""
    stage.budget("a", ["team-a"])
    stage.grant("more", "a", 5)
    stage.grant("lasting", "a", 2, expires="2026-06-01T00:00:00Z")
    stage.correct("refund", "a", "0.001", NOON)
    stage.pod("running", "team-a", core=50)
    ended = stage.pod("ended", "team-a", core=30)
    stage.pod("gone", "team-a")
    stage.round()
    stage.pass_time(100)
    stage.finish(ended)
    stage.remove("gone")
    stage.round()
    stage.round(10)
    write_statuses(stage)
    return stage


def write_statuses(stage: Stage) -> None:
    assert stage.keeper is not None
    StatusWriter(stage.source, stage.keeper.books).write(stage.now)
    stage.source.refresh()


def command(stage: Stage, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = stage.folder / "settings.yaml"
    port = stage.client.connection_pool.connection_kwargs["port"]
    settings.write_text(f"timekeeper: {{redis: {{url: 'redis://127.0.0.1:{port}/0'}}}}")
    program = str(Path(sys.executable).with_name("fairgpu"))
    typed = [program, "audit", "--store-only", "--standalone", str(stage.folder), *arguments]
    return subprocess.run(typed, capture_output=True, text=True, check=False, timeout=60)


def audited(stage: Stage, **question: Any) -> Audit:
    around = Surroundings(stage.client, lambda: see(stage.source.mirrors, None), lambda: stage.now, lambda _: False)
    return audit(around, Question(**{"patience_seconds": 0, **question}))


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


def in_json(key: str, field: str, name: str, value: object) -> Callable[[Stage], object]:
    def change(stage: Stage) -> None:
        text = stage.client.hget(key, field)
        assert isinstance(text, bytes)
        document = json.loads(text)
        assert document[name] != value
        stage.client.hset(key, field, json.dumps({**document, name: value}))

    return change


def in_status(path: str, value: object) -> Callable[[Stage], object]:
    def change(stage: Stage) -> None:
        file = stage.folder / "status" / "budget-a.json"
        status = inner = json.loads(file.read_text())
        *groups, last = path.split(".")
        for group in groups:
            inner = inner.setdefault(group, {})
        assert inner.get(last) != value
        inner[last] = value
        file.write_text(json.dumps(status))
        stage.source.refresh()

    return change


def in_summary(name: str, value: object) -> Callable[[Stage], object]:
    return in_json(KEYS.head, "summary", name, value)


def in_state(name: str, value: object) -> Callable[[Stage], object]:
    return in_json(keys.STATES_VALUES, "team-a", name, value)


def money(amount: int) -> dict[str, str]:
    return {"gpuHours": "1.00", "microGPUSeconds": str(amount)}


STATUS_SPENT = (Figure.STATUS, "status.spent")
STATUS_CHECKPOINT = (Figure.STATUS, "status.checkpoint")
RATES = {(Figure.RATE, "summary"), (Figure.RATE, "state of team-a")}
TOLD: dict[str, tuple[Callable[[Stage], object], set[tuple[Figure, str]]]] = {
    "when the money ran out": (
        lambda stage: stage.client.hset(KEYS.period(MONTH), "exhausted", str(MONTH)),
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
        {(Figure.STATUS, f"status.{field}") for field in ("available", "remaining", "state", "exhaustedAt")},
    ),
    "what the status says was granted": (in_status("granted", money(7)), {(Figure.STATUS, "status.granted")}),
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


CORRUPTIONS: dict[str, tuple[Callable[[redis.Redis], object], set[tuple[Figure, str]]]] = {
    "the total": (in_hash(KEYS.period(MONTH), "total", "1"), {(Figure.SPENT, "")}),
    "the total, which is no number": (in_hash(KEYS.period(MONTH), "total", "much"), {(Figure.SPENT, "")}),
    "the total, gone": (lambda client: client.hdel(KEYS.period(MONTH), "total"), {(Figure.SPENT, "")}),
    "the checkpoint": (in_hash(KEYS.period(MONTH), "checkpoint", "5"), {(Figure.CHECKPOINT, "")}),
    "what is gone": (in_hash(KEYS.period(MONTH), "gone", "5"), {(Figure.GONE, "")}),
    "what was granted": (in_hash(KEYS.period(MONTH), "granted", "5"), {(Figure.GRANTED, "")}),
    "a grant": (in_hash(KEYS.grants, "more", f"{MONTH} 5"), {(Figure.GRANTED, "grant more")}),
    "a grant that outlives its period": (
        in_hash(KEYS.pots(MONTH), "lasting", f"5 {MONTH + HOUR} 0 o"),
        {(Figure.GRANTED, "pot lasting")},
    ),
    "a correction": (in_hash(KEYS.corrections, "refund", f"{MONTH} 5"), {(Figure.SPENT, "correction refund")}),
    "a correction that nobody ordered": (
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
        {(Figure.GONE, ""), STATUS_CHECKPOINT},
    ),
    "a running session's record": (
        in_hash(KEYS.sessions, "running", "{}"),
        {(Figure.SESSION, "running"), *RATES},
    ),
    "a running session without a record": (
        lambda client: client.hdel(KEYS.sessions, "running"),
        {(Figure.SESSION, "running"), *RATES},
    ),
    "an entry too many": (
        with_entry,
        {(Figure.POSTED, "gone"), (Figure.AMOUNT, "gone"), (Figure.SPENT, ""), (Figure.GONE, ""), STATUS_CHECKPOINT},
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


@pytest.mark.parametrize("name", TOLD)
def test_whatever_is_told_falsely_is_named(books: Stage, name: str) -> None:
    corrupt, expected = TOLD[name]
    corrupt(books)
    assert found(books) == expected


def test_a_pod_that_is_not_metered_is_named(books: Stage) -> None:
    books.pod("stowaway", "team-a")
    books.pass_time(120)
    books.client.set(keys.WATCHED, str(books.now))
    assert (Figure.SESSION, "stowaway") in found(books)


def test_a_session_whose_pod_is_gone_is_named(books: Stage) -> None:
    books.remove("running")
    books.source.refresh()
    assert found(books) == {(Figure.SESSION, "running")}


def test_who_does_not_see_the_api_server_checks_the_store_alone(books: Stage) -> None:
    around = Surroundings(books.client, lambda: None, lambda: books.now, lambda _: False)
    in_status("spent", money(7))(books)
    assert audit(around, Question(patience_seconds=0)).differences == ()
    in_summary("rate", 7)(books)
    assert len(audit(around, Question(patience_seconds=0)).differences) == 1


def test_what_lags_for_a_moment_is_no_difference(books: Stage) -> None:
    books.pod("late", "team-a")
    books.client.hset(keys.STATES_VALUES, "team-a", "{}")

    def settle(_seconds: float) -> bool:
        books.lead()
        books.round(10)
        write_statuses(books)
        return False

    around = Surroundings(books.client, lambda: see(books.source.mirrors, None), lambda: books.now, settle)
    assert audit(around, Question(patience_seconds=1)).differences == ()


def test_a_budget_that_cannot_be_used_is_held_to_what_it_last_was(books: Stage) -> None:
    books.budget("a", ["team-a"], 1, onExhausted="perhaps")
    books.round(10)
    write_statuses(books)
    assert audited(books).differences == ()


def test_a_budget_that_is_gone_is_held_to_what_was_published_of_it(books: Stage) -> None:
    books.budgets = []
    books.write_budgets()
    books.round(10)
    assert audited(books).differences == ()
    assert audited(books).accounts == 2


def test_a_lost_ledger_is_named_session_by_session(books: Stage) -> None:
    without_entries(books.client)
    named = found(books)
    assert {(Figure.POSTED, "ended"), (Figure.POSTED, "gone"), (Figure.GRANTED, "grant more")} <= named


def test_a_difference_says_what_is_stored_and_what_must_be(books: Stage) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    (difference,) = audited(books).differences
    assert (difference.account, difference.period) == ("a", MONTH)
    assert (difference.stored, difference.expected) == ("1", str((100 + 30 + 55) * GPU_SECOND + CORRECTED))


def test_a_budget_that_is_not_there_is_said_to_be_missing(books: Stage) -> None:
    assert audited(books, accounts=("b",)).missing == ("b",)
    assert audited(books, period=MONTH + HOUR).accounts == 0


def test_the_command_answers_0_where_nothing_differs(books: Stage) -> None:
    done = command(books, "--period", "2026-01-01T00:00:00Z")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "The API server was not asked: budgets and pods were not compared.",
        "Recomputed: 1 account, 3 sessions, 5 ledger entries. No figure differs.",
    ]


def test_the_command_answers_1_and_prints_what_differs(books: Stage) -> None:
    books.client.hset(KEYS.period(MONTH), "total", str(GPU_SECOND))
    done = command(books, "--budget", "a")
    assert done.returncode == 1
    _, heading, titles, row = done.stdout.splitlines()
    assert heading.endswith("1 figure differs:")
    assert titles.split() == ["ACCOUNT", "PERIOD", "FIGURE", "OF", "STORED", "EXPECTED", "RECOMPUTED", "FROM"]
    assert row.startswith("a         2026-01-01T00:00:00Z   spent     -   1000000 (0.000278 GPUh)   188600000 (0.0")


def test_the_command_tells_programs_in_json(books: Stage) -> None:
    books.client.hset(KEYS.period(MONTH), "total", "1")
    done = command(books, "-o", "json")
    assert done.returncode == 1
    (difference,) = json.loads(done.stdout)["differences"]
    assert difference == {
        "account": "a",
        "period": "2026-01-01T00:00:00Z",
        "figure": "spent",
        "subject": None,
        "stored": "1",
        "expected": "188600000",
        "recomputedFrom": "checkpoint + ledger entries + unposted amounts",
    }


def test_a_period_that_is_no_instant_is_refused(books: Stage) -> None:
    done = command(books, "--period", "January")
    assert done.returncode == 1
    assert "--period: 'January' is no RFC 3339 timestamp" in done.stderr
