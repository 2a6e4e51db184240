"""The same books in every shape of the store: one server, behind Sentinels, on a Redis Cluster."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.ports import free_port
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.redis_shapes import ClusterShape, SentinelShape
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.difference import Figure
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.reports import Boot, Marks
from timekeeper.ledger import keys, present_use, reading
from timekeeper.ledger.connection import connect, identity
from timekeeper.ledger.entries import pack_ledger
from timekeeper.ledger.keys import AccountKeys
from timekeeper.ledger.present_use import PresentUse
from timekeeper.ledger.reading import highest_fencing_token, load_accounts, read_changes
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission, close_and_read
from timekeeper.settings import RedisSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHAPES = ("single", "sentinel", "cluster")
TEAMS = [f"team-{number}" for number in range(12)]


@contextmanager
def settings_of(shape: str, folder: Path) -> Iterator[RedisSettings]:
    place = folder / "store"
    place.mkdir()
    if shape == "sentinel":
        with SentinelShape(place) as behind_sentinels:
            yield behind_sentinels.settings
    elif shape == "cluster":
        with ClusterShape(place) as cluster:
            yield cluster.settings
    else:
        with RedisServer(place) as server:
            yield RedisSettings(url=server.url)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisSettings]:
    with settings_of(request.param, tmp_path_factory.mktemp(request.param)) as settings:
        yield settings


@pytest.fixture
def store(shape: RedisSettings) -> Iterator[redis.Redis]:
    with connect(shape) as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture
def harness(store: redis.Redis, tmp_path: Path) -> LedgerHarness:
    folder = tmp_path / "harness"
    folder.mkdir()
    return LedgerHarness(folder, store)


def test_each_answer_is_noted_where_a_loop_waits_for_it(shape: RedisSettings) -> None:
    noted = Counter[int]()
    with connect(shape, lambda: noted.update([threading.get_ident()])) as client:
        for name in TEAMS:
            before = noted[threading.get_ident()]
            client.set(AccountKeys(name).head, "x")
            assert noted[threading.get_ident()] > before
        before = noted[threading.get_ident()]
        pipeline = client.pipeline(transaction=False)
        for name in TEAMS:
            pipeline.get(AccountKeys(name).head)
        assert pipeline.execute() == [b"x"] * len(TEAMS)
        assert noted[threading.get_ident()] > before


def test_each_failure_is_noted_where_no_server_answers() -> None:
    noted = Counter[int]()
    with (
        connect(RedisSettings(url=f"redis://127.0.0.1:{free_port()}"), lambda: noted.update([0])) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()
    assert noted[0] > 1


def submission(uid: str, boot: str, sequence: int, harness: LedgerHarness) -> Submission:
    return Submission(uid, boot, sequence, harness.now)


def test_the_books_are_kept_and_read_alike_in_every_shape(harness: LedgerHarness) -> None:
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-runs", team, core=50)
        harness.pod(f"{team}-ends", team)
    harness.grant("more", TEAMS[0], 5)
    harness.reconcile()
    harness.reconcile(10)
    for team in TEAMS:
        harness.remove(f"{team}-ends")
    harness.reconcile(10)
    assert [harness.spent(team) for team in TEAMS] == [30 * GPU_SECOND] * len(TEAMS)
    standings = {account.name: account.totals for account in load_accounts(harness.client, TEAMS)}
    assert [found.granted for found in standings[TEAMS[0]].values()] == [5 * GPU_HOUR]
    assert reading.account_names(harness.client) == sorted(TEAMS)
    assert reading.open_sessions(harness.client, "", 100) == sorted((f"{team}-runs", team) for team in TEAMS)
    assert reading.summaries(harness.client, TEAMS).keys() == set(TEAMS)
    changes = read_changes(harness.client, None)
    assert changes is not None
    assert {namespace for namespace, _ in changes.states} == {*TEAMS}
    harness.lead()
    harness.reconcile(10)
    assert [harness.spent(team) for team in TEAMS] == [35 * GPU_SECOND] * len(TEAMS)


def test_a_ledger_is_packed_and_read_alike_in_every_shape(harness: LedgerHarness) -> None:
    reconciler = harness.lead()
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-ends", team)
    harness.reconcile(10)
    for team in TEAMS:
        harness.remove(f"{team}-ends")
    harness.reconcile(10)
    before = [reading.ledger_page(harness.client, team, "", 10) for team in TEAMS]
    assert all(pack_ledger(harness.client, reconciler.fencing_token, team, harness.now + 1) for team in TEAMS)
    assert not any(harness.client.xlen(AccountKeys(team).ledger) for team in TEAMS)
    assert [reading.ledger_page(harness.client, team, "", 10) for team in TEAMS] == before
    assert [harness.spent(team) for team in TEAMS] == [20 * GPU_SECOND] * len(TEAMS)


def test_the_books_are_audited_in_every_shape(harness: LedgerHarness) -> None:
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-runs", team, core=50)
    harness.reconcile()
    harness.reconcile(10)
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    found = audit(around, AuditRequest(patience_seconds=0))
    assert (found.accounts, found.sessions, found.differences) == (12, 12, ())
    harness.client.hset(AccountKeys("team-3").period(MONTH), "gone", "5")
    (difference,) = audit(around, AuditRequest(patience_seconds=0)).differences
    assert (difference.account, difference.figure) == ("team-3", Figure.FINALIZED)


def test_reports_are_taken_in_every_shape(harness: LedgerHarness) -> None:
    for team in TEAMS:
        harness.pod(f"{team}-runs", team)
    harness.reconcile()
    intake = ReportIntake(harness.client)
    sent = [submission(f"{team}-runs", "boot", 1, harness) for team in TEAMS]
    assert intake.take([*sent, submission("stranger", "boot", 1, harness)]) == [IntakeOutcome.TAKEN] * 12 + [
        IntakeOutcome.NOT_RUNNING
    ]
    assert intake.take([*sent, submission("team-3-runs", "", 0, harness)]) == [IntakeOutcome.OLDER] * 12 + [
        IntakeOutcome.TAKEN
    ]
    found = close_and_read(
        harness.client, highest_fencing_token(harness.client), [(f"{team}-runs", Marks()) for team in TEAMS]
    )
    assert [known.intake.boots for known in found if known is not None] == [(Boot("boot", 1, 0, 0),)] * 12


def test_present_use_is_replaced_and_read_alike_in_every_shape(store: redis.Redis) -> None:
    first = {f"uid-{number}": PresentUse(NOON, NOON + 60, number) for number in range(2500)}
    present_use.write(store, first, {})
    present_use.write(
        store, {"uid-7": PresentUse(NOON + 1, NOON + 61, 10_000), "new": PresentUse(NOON, NOON + 1, 0)}, {}
    )

    texts = store.hmget(keys.PRESENT_USE, ["uid-7", "uid-8", "new"])
    assert [present_use.shown(text, NOON) for text in texts] == [
        PresentUse(NOON + 1, NOON + 61, 10_000),
        None,
        PresentUse(NOON, NOON + 1, 0),
    ]
    assert present_use.shown(texts[0], NOON + 61) is None
    assert store.hlen(keys.PRESENT_USE) == 2
    assert 0 < store.ttl(keys.PRESENT_USE) <= present_use.LEFT_SECONDS
    present_use.write(store, {}, {})
    assert store.exists(keys.PRESENT_USE) == 0


def test_forgotten_scripts_are_loaded_again_wherever_they_are_missing(harness: LedgerHarness) -> None:
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-runs", team)
    harness.reconcile()
    harness.client.script_flush()
    harness.reconcile(10)
    harness.client.script_flush()
    sent = [submission(f"{team}-runs", "boot", 1, harness) for team in TEAMS]
    assert ReportIntake(harness.client).take(sent) == [IntakeOutcome.TAKEN] * 12
    assert [harness.spent(team) for team in TEAMS] == [10 * GPU_SECOND] * 12


@pytest.mark.parametrize("key", [keys.NAMESPACES, keys.ACCOUNTS, keys.STATES_VALUES, keys.OPEN_SESSIONS])
def test_a_shared_key_of_another_type_is_written_anew_in_every_shape(harness: LedgerHarness, key: str) -> None:
    for team in TEAMS:
        harness.budget(team, [team])
        harness.pod(f"{team}-runs", team)
    harness.reconcile()
    harness.client.set(key, "of another type")
    harness.reconcile(10)
    assert harness.client.type(key) != b"string"
    assert [harness.spent(team) for team in TEAMS] == [10 * GPU_SECOND] * len(TEAMS)
    changes = read_changes(harness.client, None)
    assert changes is not None
    assert {namespace for namespace, _ in changes.states} == {*TEAMS}


def test_the_identity_of_the_store_stays_the_same_while_nothing_happens_to_it(harness: LedgerHarness) -> None:
    assert identity(harness.client)[1] is False
    harness.reconcile()
    before = identity(harness.client)
    harness.reconcile(10)
    assert identity(harness.client) == before
    assert before[1] is True
