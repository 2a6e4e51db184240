"""Notifications: decided once, kept in the store, delivered to a real HTTP server, signed, in order."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import Counter, Gauge
from structlog.testing import capture_logs

from fairgpu.leadership import Term
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.periods import month_midway
from tests.support.processes import FAIRGPU, ending
from tests.support.servers.webhook_receiver import Receiver as Server
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.controller.report.announcements import (
    EXPIRES_SECONDS,
    IDLE_SECONDS,
    NotificationSender,
    Notifier,
    Receiver,
    retry_seconds,
    signature,
)
from timekeeper.domain.state import Announced, Milestone
from timekeeper.ledger import keys, outbox
from timekeeper.ledger.client import FencedError
from timekeeper.ledger.outbox import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.redis_server import RedisServer

HOUR = 3600.0
SECRET = "a key of the test's own"


class Setup:
    """A harness with a budget of ten GPU-hours, the one that decides, and the one that delivers."""

    def __init__(self, harness: LedgerHarness, server: Server, folder: Path) -> None:
        self.harness = harness
        self.server = server
        self.url, self.secret = folder / "url", folder / "secret"
        self.url.write_text(server.url + "\n")
        self.secret.write_text(SECRET + "\n")
        self.counter = Counter("notifications", "", ["outcome"], registry=None)
        self.pending = Gauge("pending", "", registry=None)
        self.term = Term(lambda: 0.0)
        self.term.hold(1, 1.0)
        self.sender = self.delivering_within(LIMIT_S)
        harness.budget("vision", ["team-a"], 10)
        harness.pod("p1", "team-a")
        self.lead()

    def delivering_within(self, seconds: float) -> NotificationSender:
        receiver = Receiver(self.url, self.secret, timeout_seconds=seconds)
        return NotificationSender(self.harness.client, receiver, self.term, self.counter, self.pending)

    def lead(self, most: int = 100) -> None:
        """A new leader, who knows what the store holds."""
        reconciler = self.harness.lead()
        self.notifier = Notifier(self.harness.client, reconciler.books, reconciler.fencing_token, most, self.counter)

    def after(self, hours: float) -> int:
        """Lets time pass; returns the number of messages that are put into the outbox."""
        self.harness.reconcile(hours * HOUR)
        return self.notifier.notify(self.harness.now)

    def deliver(self, random: float = 0.5) -> float:
        return self.sender.step(time.time(), random)

    def outcome(self, name: str) -> float:
        value: float = self.counter.labels(name)._value.get()  # type: ignore[attr-defined]
        return value

    def said(self) -> list[str]:
        """The events that came in."""
        bodies = [json.loads(taken.body) for taken in self.server.taken]
        return [body["attachments"][0]["fields"][0]["value"] for body in bodies]


@pytest.fixture
def setup(redis_server: RedisServer, tmp_path: Path) -> Iterator[Setup]:
    with redis_server.client() as client, webhook_receiver() as server:
        yield Setup(LedgerHarness(tmp_path, client), server, tmp_path)


def queue(setup: Setup, count: int, most: int = 100) -> int:
    """Messages of their own, so many; how many were given up."""
    assert setup.harness.reconciler is not None
    changes = [Change(f"u{n}", Announced(1, 1), json.dumps({"text": f"message {n}"})) for n in range(count)]
    return outbox.write(setup.harness.client, setup.harness.reconciler.fencing_token, most, changes)


def texts(setup: Setup) -> list[str]:
    return [json.loads(taken.body)["text"] for taken in setup.server.taken]


def test_a_budget_shows_each_milestone_once_from_half_to_open_again(setup: Setup) -> None:
    assert [setup.after(hours) for hours in (0, 1, 4, 1, 2, 2, 1)] == [0, 1, 1, 0, 1, 1, 0]
    setup.harness.grant("more", "vision", 10)
    assert setup.after(0.01) == 1
    while setup.deliver() == 0:
        pass
    assert setup.said() == [
        "RunsOutEarly",
        "HalfSpent",
        "MostlySpent",
        "BudgetExhausted",
        "BudgetReopened",
    ]


def test_the_message_is_one_that_slack_takes_and_is_signed(setup: Setup) -> None:
    assert [setup.after(hours) for hours in (0, 1, 5)] == [0, 1, 1]
    before = int(time.time())
    assert [setup.deliver(), setup.deliver()] == [0, 0]
    _, taken = setup.server.taken
    document = json.loads(taken.body)
    assert document["text"].startswith("GPU budget vision: 60 percent spent. 6.00 of 10.00 GPU-hours are spent")
    (attachment,) = document["attachments"]
    assert {field["title"]: field["value"] for field in attachment["fields"]}["state"] == "open"
    assert set(document) == {"text", "attachments"}
    assert taken.headers["content-type"] == "application/json"
    timestamp = taken.headers["fairgpu-timestamp"]
    assert before <= int(timestamp) <= time.time()
    expected = hmac.new(SECRET.encode(), f"v1:{timestamp}:".encode() + taken.body, hashlib.sha256).hexdigest()
    assert taken.headers["fairgpu-signature"] == f"v1={expected}"
    assert setup.outcome("delivered") == 2


def test_a_receiver_that_fails_gets_the_same_message_again_and_the_next_ones_in_order(setup: Setup) -> None:
    queue(setup, 3)
    setup.server.answers = [(500, {}), (503, {"Retry-After": "7"}), (429, {}), (404, {})]
    waits = [setup.deliver() for _ in range(4)]
    assert waits == [1.0, 7.0, 4.0, 8.0]
    while setup.deliver() == 0:
        pass
    assert texts(setup) == ["message 0"] * 5 + ["message 1", "message 2"]
    ids = [taken.headers["fairgpu-delivery"] for taken in setup.server.taken]
    assert len(set(ids[:5])) == 1
    assert len(set(ids)) == 3
    assert (setup.outcome("failed"), setup.outcome("delivered")) == (4, 3)


def test_a_message_that_the_receiver_never_takes_delays_no_other(setup: Setup) -> None:
    queue(setup, 2)
    setup.server.answers = [(400, {})]
    assert setup.deliver() == 0
    assert setup.deliver() == 0
    assert texts(setup) == ["message 0", "message 1"]
    assert setup.outcome("refused") == 1


def test_a_notification_of_yesterday_is_dropped(setup: Setup) -> None:
    queue(setup, 1)
    assert setup.sender.step(time.time() + EXPIRES_SECONDS + 1, 0.5) == 0
    assert setup.server.taken == []
    assert setup.outcome("expired") == 1


def test_the_oldest_of_too_many_are_given_up(setup: Setup) -> None:
    assert queue(setup, 7, most=5) == 2
    while setup.deliver() == 0:
        pass
    assert texts(setup) == [f"message {n}" for n in range(2, 7)]


def test_a_receiver_that_is_away_or_never_answers_is_tried_again_and_no_job_waits(setup: Setup) -> None:
    setup.after(0)
    setup.server.silent.set()
    assert setup.after(9) == 1
    ending = threading.Event()
    sender = setup.delivering_within(3.0)
    thread = threading.Thread(target=sender.run, args=(ending.wait, time.time, lambda: 0.5), daemon=True)
    thread.start()
    assert setup.after(2) == 1
    assert outbox.length(setup.harness.client) == 2
    setup.server.silent.clear()
    wait_until(lambda: outbox.length(setup.harness.client) == 0, "both are delivered")
    ending.set()
    thread.join(LIMIT_S)
    deliveries = (taken.headers["fairgpu-delivery"] for taken in setup.server.taken)
    said = dict(zip(deliveries, setup.said(), strict=True))  # once each: what is answered too late comes again
    assert list(said.values()) == ["RunsOutEarly", "BudgetExhausted"]


def test_a_failover_neither_repeats_nor_drops(setup: Setup) -> None:
    assert [setup.after(hours) for hours in (0, 1, 5)] == [0, 1, 1]
    setup.lead()
    assert setup.after(0.1) == 0
    assert setup.after(3) == 1
    setup.lead()
    assert setup.after(0.1) == 0
    while setup.deliver() == 0:
        pass
    assert setup.said() == ["RunsOutEarly", "HalfSpent", "MostlySpent"]


def test_a_leader_that_was_followed_writes_nothing_more(setup: Setup) -> None:
    setup.after(0)
    late = setup.notifier
    setup.harness.reconcile(6 * HOUR)
    setup.lead()
    assert setup.after(0.1) == 1
    with pytest.raises(FencedError):
        late.notify(setup.harness.now)
    assert outbox.length(setup.harness.client) == 1


def test_a_replica_that_does_not_lead_delivers_nothing(setup: Setup) -> None:
    queue(setup, 1)
    setup.term.lose()
    assert setup.deliver() == IDLE_SECONDS
    assert setup.server.taken == []


def test_announced_milestones_of_a_deleted_budget_are_forgotten(setup: Setup) -> None:
    setup.after(0)
    setup.after(6)
    assert len(outbox.announced(setup.harness.client)) == 1
    setup.harness.budgets = []
    setup.harness.write_budgets()
    setup.after(0.1)
    assert outbox.announced(setup.harness.client) == {}


def test_the_process_of_the_jobs_decides_and_delivers(redis_server: RedisServer, tmp_path: Path) -> None:
    harness = LedgerHarness(tmp_path, redis_server.client())
    harness.budget("vision", ["team-a"], 0, period=month_midway())
    with webhook_receiver() as server:
        (tmp_path / "url").write_text(server.url)
        environment = {
            "PATH": os.defpath,
            "FAIRGPU_TIMEKEEPER_FOLDER": str(tmp_path),
            "FAIRGPU_TIMEKEEPER_REDIS_URL": redis_server.url,
            "FAIRGPU_TIMEKEEPER_JOBS_METRICS_PORT": "0",
            "FAIRGPU_TIMEKEEPER_NOTIFICATIONS_URL_FILE": str(tmp_path / "url"),
        }
        command = [*FAIRGPU, "timekeeper", "jobs"]
        log = (tmp_path / "jobs.log").open("wb")
        with log, ending(subprocess.Popen(command, env=environment, stdout=log, stderr=log)) as process:
            wait_until(lambda: server.taken or process.poll() is not None, "a notification comes, or the end")
        said = (tmp_path / "jobs.log").read_text()
        (text,) = [json.loads(taken.body)["text"] for taken in server.taken] or [said]
        assert text.startswith("GPU budget vision: 0.00 of 0.00 GPU-hours are spent. New pods run in what others leave")
        assert "fairgpu-signature" not in server.taken[0].headers
        assert "XyZ" not in said


@pytest.mark.parametrize("broken", ["missing", "no-url", "no-address", "refused"])
def test_neither_the_url_nor_the_secret_is_ever_logged(setup: Setup, broken: str) -> None:
    queue(setup, 1)
    if broken == "missing":
        setup.secret.unlink()
    elif broken == "no-url":
        setup.url.write_text("hooks.example.org/XyZ")
    elif broken == "no-address":
        setup.url.write_text("https://[::1/services/T0/B0/XyZ")
    else:
        setup.url.write_text("http://127.0.0.1:9/services/T0/B0/XyZ")
    with capture_logs() as logs:
        assert setup.deliver() == 1.0
    text = str(logs)
    assert "XyZ" not in text
    assert SECRET not in text
    assert "notification not taken" in text


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (1000, 300)])
def test_each_attempt_waits_twice_as_long_up_to_five_minutes(attempts: int, seconds: int) -> None:
    assert retry_seconds(attempts, 0.0, 0.5) == seconds
    assert retry_seconds(attempts, 0.0, 0.0) == seconds / 2


def test_a_signature_covers_the_time_and_the_body() -> None:
    made: set[Any] = {
        signature(b"k", "1", b"x"), signature(b"k", "2", b"x"), signature(b"k", "1", b"y"), signature(b"l", "1", b"x"),
    }  # fmt: skip
    assert len(made) == 4


def test_milestones_are_kept_as_they_were_shown(setup: Setup) -> None:
    record = Announced(5, None, frozenset({Milestone.HALF_SPENT, Milestone.HELD}))
    assert setup.harness.reconciler is not None
    outbox.write(setup.harness.client, setup.harness.reconciler.fencing_token, 10, [Change("u", record)])
    assert outbox.announced(setup.harness.client) == {"u": record}


@pytest.mark.parametrize("broken", [b"nonsense", b"\xff", b"[]", b'["x",null,[]]', b"[1,null,null]", b"[" * 100_000])
def test_unreadable_milestones_of_one_budget_hide_no_other(setup: Setup, broken: bytes) -> None:
    client, shown = setup.harness.client, Announced(7, None, frozenset())
    outbox.write(client, 1, 100, [Change("u1", shown), Change("u2", shown)])
    client.hset(keys.NOTICES_ANNOUNCED, "u1", broken)
    assert outbox.announced(client) == {"u2": shown}
