"""A store that went back in time is noticed, and never taken for the truth."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fairgpu.leadership import Term
from tests.support.ledger.audited import audited
from tests.support.ledger.chaos_model import ChaosModel
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness, published, report
from tests.support.ledger.replica import Replica
from tests.support.ledger.steps import KilledError, stepping
from timekeeper.audit.difference import Figure
from timekeeper.controller.leader_tasks import LeaderTasks, TaskEnvironment
from timekeeper.controller.metrics import JobMeasures
from timekeeper.controller.reconcile import recovery
from timekeeper.controller.report.status_writer import OrderAnswers, StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError, StoreUnavailableError
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.writing import note_restoring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer
    from timekeeper.controller.reconcile.reconciler import Reconciler

SEEDS = range(20 if os.environ.get("CI") == "true" else 4)


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    folder = tmp_path / "harness"
    folder.mkdir()
    with redis_server.client() as client:
        yield LedgerHarness(folder, client)


def back_up(server: RedisServer, place: Path) -> Path:
    """A copy of the server's files, as a volume snapshot would be."""
    server.stop()
    shutil.copytree(server.folder, place)
    server.start()
    return place


def put_back(server: RedisServer, backup: Path) -> None:
    server.kill()
    shutil.rmtree(server.folder)
    shutil.copytree(backup, server.folder)
    server.start()


def live(model: ChaosModel, steps: int) -> None:
    """Goes on for a while; now and then the statuses are written."""
    for _ in range(steps):
        model.live(1)
        if model.random.random() < 0.5:
            model.checkpoint()


@pytest.mark.parametrize("seed", SEEDS)
def test_under_a_leader_that_goes_on_yesterdays_backup_changes_no_figure(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path, seed: int
) -> None:
    model = ChaosModel(harness, seed)
    live(model, 4)
    backup = back_up(redis_server, tmp_path / "backup")
    live(model, 5)
    put_back(redis_server, backup)
    live(model, 3)
    assert model.error() == {"a": 0, "b": 0, "namespace:team-c": 0}


@pytest.mark.parametrize("seed", SEEDS)
def test_under_a_new_leader_yesterdays_backup_is_brought_up_to_the_checkpoints(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path, seed: int
) -> None:
    model = ChaosModel(harness, seed)
    live(model, 4)
    model.checkpoint()
    backup = back_up(redis_server, tmp_path / "backup")
    live(model, 5)
    model.checkpoint()
    put_back(redis_server, backup)
    harness.pass_time(30)
    model.lead()
    assert model.error(("a", "b")) == {"a": 0, "b": 0}
    live(model, 3)
    assert model.error(("a", "b")) == {"a": 0, "b": 0}
    model.lead()
    assert model.error(("a", "b")) == {"a": 0, "b": 0}


def test_a_leader_that_ends_while_it_restores_leaves_nothing_half_done(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path
) -> None:
    model = ChaosModel(harness, 7)
    live(model, 3)
    backup = back_up(redis_server, tmp_path / "backup")
    live(model, 5)
    model.checkpoint()
    put_back(redis_server, backup)
    for ending in ("load", "assign", "restore", "settle", "index", "publish"):

        def step(name: str, ending: str = ending) -> None:
            if name == ending:
                raise KeyboardInterrupt

        harness.lead(step=step)
        with pytest.raises(KeyboardInterrupt):
            harness.reconcile()
    model.lead()
    assert model.error(("a", "b")) == {"a": 0, "b": 0}


def test_a_running_leader_whose_restoration_breaks_off_does_not_take_the_old_state_for_what_it_remembers(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path
) -> None:
    broken: list[str] = []

    def step(name: str) -> None:
        if name in {"assign", "restore", "open"} and broken and broken[0] == name:
            broken.pop(0)
            redis_server.restart()

    model = ChaosModel(harness, 11)
    reconciler = harness.lead(step=step)
    model.reconcile()
    live(model, 3)
    backup = back_up(redis_server, tmp_path / "backup")
    live(model, 5)
    put_back(redis_server, backup)
    broken += ["assign", "restore"]
    live(model, 2)
    assert harness.reconciler is reconciler
    assert broken == []
    assert model.error() == {"a": 0, "b": 0, "namespace:team-c": 0}


def test_an_event_beside_the_budget_says_that_the_store_went_back(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path
) -> None:
    model = ChaosModel(harness, 3)
    live(model, 3)
    backup = back_up(redis_server, tmp_path / "backup")
    live(model, 5)
    model.checkpoint()
    put_back(redis_server, backup)
    model.lead()
    assert "had gone back to an earlier state" in (harness.folder / "events.jsonl").read_text()
    entries = [entry for name in ("a", "b") for entry in reading.ledger_page(harness.client, name, "", 1000)]
    assert "the store had gone back to an earlier state" in [e.note for e in entries if e.kind == "checkpoint"]


def test_a_store_that_was_merely_restarted_is_not_taken_for_one_that_went_back(
    harness: LedgerHarness, redis_server: RedisServer
) -> None:
    model = ChaosModel(harness, 5)
    live(model, 3)
    model.checkpoint()
    redis_server.stop()
    redis_server.start()
    model.lead()
    live(model, 1)
    assert model.error() == {"a": 0, "b": 0, "namespace:team-c": 0}
    kinds = {entry.kind for name in ("a", "b") for entry in reading.ledger_page(harness.client, name, "", 1000)}
    assert "checkpoint" not in kinds


def test_a_store_that_went_back_gives_no_later_leader_an_epoch_that_was_used(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path
) -> None:
    model = ChaosModel(harness, 5)
    backup = back_up(redis_server, tmp_path / "backup")
    for _ in range(3):
        model.lead()
    latest = highest_fencing_token(harness.client)
    put_back(redis_server, backup)
    model.reconcile()
    assert highest_fencing_token(harness.client) == latest
    harness.client.set(keys.BOOK_FENCING_TOKEN, str(latest + 5))
    redis_server.wait_until_written()
    redis_server.restart()
    with pytest.raises(FencedError):
        model.harness.reconcile()


def reconciler_of(harness: LedgerHarness) -> Reconciler:
    assert harness.reconciler is not None
    return harness.reconciler


def write_statuses(harness: LedgerHarness) -> None:
    StatusWriter(harness.source, reconciler_of(harness).books).write(harness.now)
    harness.refresh()


def spend_an_hour(harness: LedgerHarness, uid: str = "brief") -> None:
    """A pod holds a GPU for an hour, and is deleted."""
    harness.pod(uid, "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    harness.remove(uid)
    harness.reconcile()


@pytest.mark.parametrize(
    ("order", "available"), [("", 19), ("correction", 19), ("grant", 19.5), ("grant that expires", 20)]
)
def test_money_that_was_spent_in_the_period_before_is_not_carried_over_once_more(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path, order: str, available: float
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"}, rollover={"gpuHours": 12})
    harness.reconcile()
    write_statuses(harness)
    backup = back_up(redis_server, tmp_path / "backup")
    if order == "grant":
        harness.grant("late", "a", "0.5")
    if order == "grant that expires":
        harness.grant("late", "a", "5", expires=format_instant(NOON + 3 * HOUR))
    spend_an_hour(harness)
    harness.reconcile(5 * 3600)
    write_statuses(harness)
    assert published(harness, "a").available == available * GPU_HOUR
    put_back(redis_server, backup)
    harness.lead()
    harness.reconcile(5)
    if order == "correction":
        harness.correct("back", "a", "-0.5", NOON)
    harness.reconcile(5)
    harness.reconcile(5)
    gained = GPU_HOUR // 2 if order == "correction" else 0
    assert harness.spent("a", NOON) == GPU_HOUR - gained
    assert published(harness, "a").available == available * GPU_HOUR + gained
    write_statuses(harness)
    assert [audited(harness, period=start).differences for start in (NOON, NOON + 6 * HOUR)] == [(), ()]


@pytest.mark.parametrize("leaders", ["the leader goes on", "another leader follows"])
def test_a_session_that_a_backup_of_an_earlier_period_has_as_open_is_not_charged_once_more(
    harness: LedgerHarness, leaders: str
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"})
    harness.pod("brief", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    backup = Replica(harness.client)
    harness.reconcile(5.5 * 3600)
    harness.remove("brief")
    for seconds in (0, 3600):
        harness.reconcile(seconds)
        write_statuses(harness)
    backup.promote()
    if leaders == "another leader follows":
        harness.lead()
    for _ in range(3):
        harness.reconcile(5)
    assert (harness.spent("a", NOON), harness.spent("a", NOON + 6 * HOUR)) == (6 * GPU_HOUR, GPU_HOUR // 2)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_session_that_is_charged_by_use_and_has_ended_since_keeps_what_the_leader_remembers(
    harness: LedgerHarness, *, is_deleted: bool
) -> None:
    harness.budget("a", ["team-a"], 10)
    harness.lead(ControllerRules(bill=Bill.USED))
    pod = harness.pod("brief", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "brief", 1, 20)
    harness.reconcile()
    backup = Replica(harness.client)
    harness.pass_time(100)
    report(harness, "brief", 2, 50)
    harness.finish(pod)
    harness.reconcile()
    if is_deleted:
        harness.remove("brief")
        harness.reconcile(1)
    assert harness.spent("a") == 50 * GPU_SECOND
    backup.promote()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a") == 50 * GPU_SECOND
    assert [each for each in audited(harness, bill="used").differences if each.figure is not Figure.STATUS] == []


def test_a_session_that_is_charged_by_use_keeps_it_also_if_the_store_goes_back_to_before_its_start(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    backup = Replica(harness.client)
    pod = harness.pod("brief", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "brief", 1, 50)
    harness.finish(pod)
    harness.reconcile()
    backup.promote()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a") == 50 * GPU_SECOND
    assert [each for each in audited(harness, bill="used").differences if each.figure is not Figure.STATUS] == []


def test_a_session_that_runs_and_is_charged_by_use_keeps_what_the_leader_remembers_until_it_reports_again(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10)
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("lasting", "team-a")
    harness.reconcile()
    backup = Replica(harness.client)
    harness.pass_time(100)
    report(harness, "lasting", 1, 20)
    harness.reconcile()
    backup.promote()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a") == 20 * GPU_SECOND
    report(harness, "lasting", 2, 21)
    harness.reconcile()
    assert harness.spent("a") == 21 * GPU_SECOND


def test_a_session_keeps_what_an_older_store_charged_for_a_period_that_the_leader_does_not_remember(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a"], 10, period={"every": "hour"})
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.pod("lasting", "team-a")
    harness.reconcile()
    harness.pass_time(100)
    report(harness, "lasting", 1, 20)
    harness.reconcile()
    backup = Replica(harness.client)
    for number in range(2, 14):
        harness.pass_time(900)
        report(harness, "lasting", number, 20 * number)
        harness.reconcile()
    backup.promote()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a", NOON) >= 20 * GPU_SECOND


def test_a_grant_that_was_spent_before_it_expires_stays_spent(
    harness: LedgerHarness, redis_server: RedisServer, tmp_path: Path
) -> None:
    harness.budget("a", ["team-a"], 10, period={"every": "day"})
    harness.reconcile()
    write_statuses(harness)
    backup = back_up(redis_server, tmp_path / "backup")
    harness.grant("soon", "a", 5, expires=format_instant(NOON + 3 * HOUR))
    spend_an_hour(harness)
    write_statuses(harness)
    put_back(redis_server, backup)
    harness.lead()
    harness.reconcile(5)
    harness.reconcile(3 * 3600)
    # The hour that the grant paid for stays; what is left of it expires.
    assert published(harness, "a").available == 11 * GPU_HOUR


def spend_and_write(harness: LedgerHarness) -> LeaderTasks:
    """A pod of a budget and one without have each held a GPU for an hour, are deleted, and are in the checkpoints."""
    harness.budget("a", ["team-a"])
    for uid, namespace in (("paid", "team-a"), ("free", "team-c")):
        harness.pod(uid, namespace)
    tasks = tasks_of(harness)
    harness.refresh()
    tasks.settle()
    harness.pass_time(3600)
    for uid in ("paid", "free"):
        harness.remove(uid)
    harness.refresh()
    tasks.settle()
    tasks.write()
    harness.refresh()
    return tasks


def tasks_of(harness: LedgerHarness) -> LeaderTasks:
    """The tasks of a leader whose term lasts."""
    term = Term(lambda: 0.0)
    term.hold(1, 1000.0)
    environment = TaskEnvironment(harness.client, harness.source, term, lambda: harness.now)
    return LeaderTasks(environment, ControllerRules(), JobMeasures())


ACCOUNTS = ("a", "namespace:team-c")


@pytest.mark.parametrize("where", ["assign", "publish"])
def test_a_leader_whose_reading_of_the_store_breaks_off_keeps_the_checkpoints_that_the_next_one_needs(
    harness: LedgerHarness, redis_server: RedisServer, where: str
) -> None:
    def step(name: str) -> None:
        if name == where:
            raise redis.ConnectionError("the store is away again")

    tasks = spend_and_write(harness)
    redis_server.restart()
    harness.pass_time(10)
    stepping(step)(tasks.settle)()
    tasks.write()
    harness.client.flushall()
    harness.reconcile(5)
    assert [harness.spent(name) for name in ACCOUNTS] == [GPU_HOUR, GPU_HOUR]


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_a_new_leader_cannot_read_keeps_the_checkpoint_that_it_is_restored_from(
    harness: LedgerHarness, name: str
) -> None:
    spend_and_write(harness)
    names = keys.AccountKeys(name)
    harness.client.hset(names.period(MONTH), "total", "broken")
    tasks = tasks_of(harness)
    tasks.settle()
    tasks.write()
    for key in harness.client.scan_iter(f"{names.head.removesuffix('head')}*"):
        harness.client.delete(key)
    harness.refresh()
    harness.reconcile(5)
    assert harness.spent(name) == GPU_HOUR


def dying_at(name: str) -> Callable[[str], None]:
    """A hook that ends a leader before a step."""

    def step(reached: str) -> None:
        if reached == name:
            raise KilledError

    return step


def end_a_leader_before(harness: LedgerHarness, name: str) -> None:
    harness.lead(step=dying_at(name))
    with pytest.raises(KilledError):
        harness.reconcile()


@pytest.mark.parametrize("step", ["restore", "close", "settle", "publish"])
def test_a_leader_that_ends_between_two_steps_of_a_restoration_leaves_the_rest_to_the_next_one(
    harness: LedgerHarness, step: str
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"}, rollover={"gpuHours": 12})
    harness.pod("stays", "team-a", core=1)
    harness.pod("brief", "team-a")
    harness.reconcile()
    harness.reconcile(60)
    backup = Replica(harness.client)
    harness.grant("lasting", "a", 5, expires=format_instant(NOON + 30 * HOUR))
    harness.reconcile(3600)
    harness.remove("brief")
    harness.reconcile()
    harness.reconcile(5 * 3600)
    spend_an_hour(harness)
    write_statuses(harness)
    first, second = harness.spent("a", NOON), harness.spent("a", NOON + 6 * HOUR)
    available = published(harness, "a").available
    backup.promote()
    end_a_leader_before(harness, step)
    harness.lead()
    for _ in range(3):
        harness.reconcile()
    assert (harness.spent("a", NOON), harness.spent("a", NOON + 6 * HOUR)) == (first, second)
    assert published(harness, "a").available == available
    write_statuses(harness)
    assert [audited(harness, period=start).differences for start in (NOON, NOON + 6 * HOUR)] == [(), ()]


def test_sessions_in_a_leaders_memory_alone_are_not_lost_with_the_leader_after_a_restoration(
    harness: LedgerHarness,
) -> None:
    ends = list[str]()

    def step(name: str) -> None:
        if name in ends:
            raise KilledError

    harness.budget("a", ["team-a"])
    harness.lead(step=step)
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness)
    write_statuses(harness)
    backup.promote()
    ends.append("settle")
    with pytest.raises(KilledError):
        harness.reconcile()
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == GPU_HOUR


def test_an_account_whose_restoration_fails_is_restored_once_it_can_be_read(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"})
    harness.pod("stays", "team-a", core=1)
    harness.reconcile()
    harness.reconcile(60)
    backup = Replica(harness.client)
    spend_an_hour(harness)
    harness.reconcile(5 * 3600)
    spend_an_hour(harness)
    write_statuses(harness)
    spent = [harness.spent("a", start) for start in (NOON, NOON + 6 * HOUR)]
    backup.promote()
    amounts = keys.AccountKeys("a").amounts(NOON)
    readable = harness.client.hget(amounts, "stays")
    harness.client.hset(amounts, "stays", "broken")
    harness.lead()
    harness.reconcile()
    harness.client.hset(amounts, "stays", readable)
    harness.lead()
    for _ in range(3):
        harness.reconcile()
    assert [harness.spent("a", start) for start in (NOON, NOON + 6 * HOUR)] == spent


def test_an_account_that_is_restored_whole_has_no_note_of_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"], 10)
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness)
    write_statuses(harness)
    for bring_back in (backup.promote, harness.client.flushall):
        bring_back()
        harness.lead()
        harness.reconcile()
        assert harness.spent("a") == GPU_HOUR
        head = keys.AccountKeys("a").head
        assert not {b"restoring", b"restored"} & harness.client.hgetall(head).keys()


@pytest.mark.parametrize("leaders", ["the leader goes on", "another leader follows"])
def test_a_credit_of_the_period_before_that_is_given_again_does_not_pay_for_what_it_did_not_pay_for(
    harness: LedgerHarness, leaders: str
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"}, rollover={"gpuHours": 12})
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness)
    harness.grant("soon", "a", 5, expires=format_instant(NOON + 2 * HOUR))
    harness.reconcile(1)
    OrderAnswers(harness.source, reconciler_of(harness).books).write(harness.now)
    harness.reconcile(2 * 3600)
    spend_an_hour(harness, "late")
    harness.reconcile(2 * 3600)
    write_statuses(harness)
    available = published(harness, "a").available
    backup.promote()
    if leaders == "another leader follows":
        harness.lead()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a", NOON) == 2 * GPU_HOUR
    assert published(harness, "a").available == available
    write_statuses(harness)
    assert [audited(harness, period=start).differences for start in (NOON, NOON + 6 * HOUR)] == [(), ()]


def test_a_checkpoint_stays_as_it_is_while_the_store_lacks_a_part_of_it(harness: LedgerHarness) -> None:
    harness.budget("a", ["team-a"])
    books = harness.lead().books
    harness.reconcile()
    write_statuses(harness)
    spend_an_hour(harness)
    before = books.budgets.objects["a"]["status"]
    books.accounts["a"].restoring = MONTH
    write_statuses(harness)
    books.accounts["a"].restoring = None
    harness.reconcile()
    after = books.budgets.objects["a"]["status"]
    assert after["checkpoint"] == before["checkpoint"]
    assert after["spent"] != before["spent"]


def failing_at(failures: list[tuple[str, BaseException]]) -> Callable[[str], None]:
    """A hook that raises the first of these errors before its step, then the next one."""

    def step(name: str) -> None:
        if failures and failures[0][0] == name:
            raise failures.pop(0)[1]

    return step


def test_a_session_that_ended_is_charged_once_by_a_leader_that_restores_its_account_twice(
    harness: LedgerHarness,
) -> None:
    failures = list[tuple[str, BaseException]]()
    harness.budget("a", ["team-a"])
    harness.lead(step=failing_at(failures))
    harness.pod("early", "team-a")
    harness.reconcile()
    harness.reconcile(3600)
    harness.finish(harness.source_pod("early"))
    harness.refresh()
    harness.reconcile()
    backup = Replica(harness.client)
    harness.remove("early")
    harness.reconcile()
    harness.reconcile(100)
    spend_an_hour(harness)
    write_statuses(harness)
    backup.promote()
    failures.append(("settle", redis.ConnectionError("the store is away")))
    with pytest.raises(StoreUnavailableError):
        harness.reconcile(1)
    Replica(harness.client).promote()
    for _ in range(3):
        harness.reconcile(1)
    assert harness.spent("a") == 2 * GPU_HOUR
    write_statuses(harness)
    assert audited(harness).differences == ()


@pytest.mark.parametrize("step", ["restore", "settle"])
def test_sessions_in_a_leaders_memory_alone_are_not_lost_where_it_begins_the_restoration_again_and_dies(
    harness: LedgerHarness, step: str
) -> None:
    failures = list[tuple[str, BaseException]]()
    harness.budget("a", ["team-a"])
    harness.lead(step=failing_at(failures))
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness)
    write_statuses(harness)
    backup.promote()
    failures.append((step, redis.ConnectionError("the store is away")))
    with pytest.raises(StoreUnavailableError):
        harness.reconcile()
    Replica(harness.client).promote()
    failures.append(("settle", KilledError()))
    with pytest.raises(KilledError):
        harness.reconcile()
    harness.lead()
    harness.reconcile()
    harness.reconcile(1)
    assert harness.spent("a") == GPU_HOUR


def test_the_note_of_a_restoration_is_removed_at_last_though_the_store_was_away(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"})
    harness.pod("stays", "team-a", core=1)
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness)
    harness.reconcile(5 * 3600)
    write_statuses(harness)
    backup.promote()
    harness.lead()
    is_away = [False, False, True]

    def flaky(*arguments: Any) -> None:
        if is_away and is_away.pop(0):
            raise redis.ConnectionError("the store is away")
        note_restoring(*arguments)

    monkeypatch.setattr(recovery, "note_restoring", flaky)
    with pytest.raises(StoreUnavailableError):
        harness.reconcile()
    for _ in range(3):
        harness.reconcile(10)
    assert not {b"restoring", b"restored"} & harness.client.hgetall(keys.AccountKeys("a").head).keys()


@pytest.mark.parametrize(("restoring", "restored"), [("soon", "1"), ("", ""), ("-", "1 2 3"), (b"\xff", b"\xff \xff")])
def test_a_note_of_a_restoration_that_cannot_be_read_begins_it_again(
    harness: LedgerHarness, restoring: str | bytes, restored: str | bytes
) -> None:
    harness.budget("a", ["team-a"], 10)
    spend_an_hour(harness)
    write_statuses(harness)
    head = keys.AccountKeys("a").head
    harness.client.hset(head, mapping={"restoring": restoring, "restored": restored})
    harness.lead()
    harness.reconcile()
    assert harness.spent("a") == GPU_HOUR
    assert not {b"restoring", b"restored"} & harness.client.hgetall(head).keys()


def test_payers_that_changed_stand_in_the_checkpoint_of_an_account_whose_restoration_goes_on(
    harness: LedgerHarness,
) -> None:
    harness.budget("a", ["team-a", "team-x"], 10)
    harness.pod("stays", "team-x", core=1)
    harness.reconcile()
    harness.reconcile(60)
    write_statuses(harness)
    harness.budget("a", ["team-a"], 10)
    harness.budget("b", ["team-x"], 10)
    harness.reconcile(10)
    harness.reconciler.books.accounts["a"].restoring = MONTH
    write_statuses(harness)
    harness.refresh()
    harness.reconciler.books.budgets.refresh(harness.source.mirrors, harness.reconciler.books.rules.overhead)
    checkpoint = harness.reconciler.books.budgets.objects["a"]["status"]["checkpoint"]
    assert [each["namespace"] for each in checkpoint["moves"]] == ["team-x"]


@pytest.mark.parametrize("gpu_hours", ["-0.5", "0.5"])
def test_a_correction_of_the_period_before_counts_though_no_leader_saw_it_before_the_restoration(
    harness: LedgerHarness, gpu_hours: str
) -> None:
    harness.budget("a", ["team-a"], 10, period={"cron": "0 */6 * * *"})
    harness.pod("stays", "team-a", core=1)
    harness.reconcile()
    spend_an_hour(harness, "first")
    harness.correct("earlier", "a", "-0.25", NOON)
    harness.reconcile()
    backup = Replica(harness.client)
    spend_an_hour(harness, "second")
    harness.reconcile(5 * 3600)
    harness.correct("seen", "a", "-0.25", NOON)
    harness.reconcile()
    spend_an_hour(harness, "third")
    write_statuses(harness)
    before = harness.spent("a", NOON)
    harness.correct("unseen", "a", gpu_hours, NOON)
    backup.promote()
    harness.lead()
    for _ in range(3):
        harness.reconcile(10)
    assert harness.spent("a", NOON) == before + int(float(gpu_hours) * GPU_HOUR)
    write_statuses(harness)
    assert audited(harness, period=NOON).differences == ()
