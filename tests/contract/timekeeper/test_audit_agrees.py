from __future__ import annotations

import os
import tempfile
import threading
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ledger.harness import LedgerHarness, report
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.audit.auditing import POLL_SECONDS, AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.controller.report.status_writer import StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.pricing import Bill, PricePoint
from timekeeper.domain.timestamps import HOUR, format_instant
from timekeeper.ledger import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = 60 if os.environ.get("CI") == "true" else 20
ROLLOVER = {"rollover": {"gpuHours": "0.4"}}
NAMESPACES = ["team-a", "team-b", "team-c"]
RULES: dict[str, dict[str, Any]] = {
    "hour": {"every": "hour"},
    "quarter past": {"every": "hour", "start": {"time": "00:15"}},
    "day": {"every": "day"},
    "day in Kathmandu": {"every": "day", "timeZone": "Asia/Kathmandu"},
    "every three hours": {"cron": "7 */3 * * *"},
}
ORDERS = {"grant", "take", "lend", "grant again", "correct", "correct earlier"}
EDITS = {"move", "rule", "allow", "delete", "make again"}
STEPS = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(NAMESPACES), st.sampled_from([1, 30, 33, 100])),
    st.tuples(st.just("finish"), st.integers(0, 9), st.sampled_from([0, 0, 50])),
    st.tuples(st.just("report"), st.integers(0, 9), st.sampled_from([0.5, 40, 4000])),
    st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("grant"), st.sampled_from(["a", "b"]), st.sampled_from(["0.000001", "2.5", "0.01"])),
    st.tuples(st.just("lend"), st.sampled_from(["a", "b"]), st.sampled_from(["0.02", "0.3"])),
    st.tuples(st.just("take"), st.sampled_from(["a", "b"]), st.sampled_from(["-0.01", "-0.2"])),
    st.tuples(st.just("correct"), st.sampled_from(["a", "b"]), st.sampled_from(["-0.003", "0.004", "-0.016", "-1"])),
    st.tuples(st.just("move"), st.sampled_from(NAMESPACES), st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("allow"), st.sampled_from(["a", "b"]), st.sampled_from(["0.001", "1", "0.05"])),
    st.tuples(st.just("correct earlier"), st.sampled_from(["a", "b"]), st.sampled_from(["-0.003", "0.004"])),
    st.tuples(st.just("grant again"), st.sampled_from(["a", "b"]), st.sampled_from(["0.02", "-0.01"])),
    st.tuples(st.just("rule"), st.sampled_from(["a", "b"]), st.sampled_from(sorted(RULES))),
    st.tuples(st.just("delete"), st.sampled_from(["a", "b"]), st.just(0)),
    st.tuples(st.just("make again"), st.sampled_from(["a", "b"]), st.just(0)),
    st.tuples(st.just("round"), st.sampled_from([0.001, 1.7, 61, 3599.3, 7200]), st.booleans()),
    st.tuples(st.just("lead"), st.sampled_from([1, 2, 3]), st.just(0)),
    st.tuples(st.just("write"), st.just(0), st.just(0)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


class History:
    """Budgets of an hour and of a day, and what happens to them."""

    def __init__(self, harness: LedgerHarness, bill: Bill = Bill.RESERVED) -> None:
        self.harness = harness
        self.pods: list[dict[str, Any]] = []
        self.payers = {"team-a": "a", "team-b": "b", "team-c": ""}
        self.allowances = {"a": "1", "b": "0.05"}
        self.rules = {"a": "hour", "b": "day"}
        self.deleted: set[str] = set()
        self.bill = bill
        self.reports = 0
        harness.lead(ControllerRules(bill=bill))
        self.write_budgets()

    def write_budgets(self) -> None:
        for name, rule in self.rules.items():
            paid = [namespace for namespace, payer in self.payers.items() if payer == name] or [f"{name}-none"]
            more = {"grace": {"gpuHours": "0.01", "duration": "1h"}} if name == "b" else ROLLOVER
            self.harness.budget(name, paid, self.allowances[name], period=RULES[rule], **more)
        kept = [each for each in self.harness.budgets if each["metadata"]["name"] not in self.deleted]
        self.harness.budgets = kept
        self.harness.write_budgets()

    def do(self, step: tuple[str, Any, Any]) -> None:
        kind, first, second = step
        harness = self.harness
        if kind == "pod":
            self.pods.append(harness.pod(f"p{len(self.pods)}", first, core=second))
        elif kind in {"finish", "remove"}:
            self.end(kind, first, second)
        elif kind in ORDERS:
            self.order(kind, first, second)
        elif kind in EDITS:
            self.edit(kind, first, second)
        else:
            self.keep(kind, first, second)

    def order(self, kind: str, budget: str, amount: str) -> None:
        """Writes a grant or a correction; a grant that is made again has the name of an earlier one."""
        harness = self.harness
        if kind == "lend":
            harness.grant(f"g{harness.now}", budget, amount, expires=format_instant(harness.now + 3 * HOUR))
        elif kind == "grant again":
            harness.grant(f"again-{budget}", budget, amount)
        elif kind in {"grant", "take"}:
            harness.grant(f"g{harness.now}", budget, amount)
        else:
            hours = 5 if kind == "correct earlier" else 1
            harness.correct(f"c{harness.now}", budget, amount, harness.now - hours * HOUR)

    def edit(self, kind: str, name: str, value: str) -> None:
        """Changes a budget, deletes it, or makes it again; or moves a namespace to another payer."""
        if kind == "move":
            self.payers[name] = value
        elif kind == "rule":
            self.rules[name] = value
        elif kind == "allow":
            self.allowances[name] = value
        else:
            self.deleted = self.deleted | {name} if kind == "delete" else self.deleted - {name}
        self.write_budgets()

    def keep(self, kind: str, first: Any, second: Any) -> None:
        """Runs a step of pods and timekeepers, and not of people."""
        harness = self.harness
        if kind == "report" and first < len(self.pods) and self.is_open(self.pods[first]["metadata"]["uid"]):
            self.reports += 1
            report(harness, self.pods[first]["metadata"]["uid"], self.reports, second)
        elif kind == "round":
            harness.reconcile(first, full=second)
        elif kind == "lead":
            harness.lead(ControllerRules(prices={"A100": (PricePoint(0, Fraction(first)),)}, bill=self.bill))
        elif kind == "write":
            self.write()

    def is_open(self, uid: str) -> bool:
        """Whether reports of a pod are taken: a leader has opened its session and not closed it."""
        return any(known == uid for known, _ in reading.open_sessions(self.harness.client, "", 1000))

    def end(self, kind: str, index: int, seconds_ago: int) -> None:
        if index >= len(self.pods):
            return
        uid = self.pods[index]["metadata"]["uid"]
        if not (self.harness.folder / "pods" / f"{uid}.json").exists():
            return
        if kind == "remove":
            self.harness.remove(uid)
        elif self.pods[index]["status"]["phase"] == "Running":
            self.harness.finish(self.pods[index], seconds_ago)

    def write(self) -> None:
        if self.harness.reconciler is not None and self.harness.reconciler.books.figures:
            StatusWriter(self.harness.source, self.harness.reconciler.books).write(self.harness.now)
            self.harness.source.refresh()

    def settle(self) -> None:
        self.harness.reconcile(1)
        # Where use is billed, a balance is closed by the last settlement: the next one brings it up to date.
        self.harness.reconcile()
        self.write()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, max_size=25), bill=st.sampled_from(Bill))
def test_the_auditor_finds_no_difference_whatever_is_settled_in_whatever_order(
    server: RedisServer, steps: list[tuple[str, Any, Any]], bill: Bill
) -> None:
    with server.client() as client, tempfile.TemporaryDirectory() as folder:
        client.flushall()
        history = History(LedgerHarness(Path(folder), client), bill)
        for step in steps:
            history.do(step)
        history.settle()
        harness = history.harness
        around = AuditEnvironment(
            client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, lambda _: False
        )
        assert audit(around, AuditRequest(patience_seconds=0, bill=bill.value)).differences == ()
        periods = {int(start) for name in ("a", "b") for start in client.hkeys(f"fairgpu:{{{name}}}:periods")}
        for start in periods:
            assert audit(around, AuditRequest(period=start, patience_seconds=0, bill=bill.value)).differences == ()


def test_books_that_are_being_kept_meanwhile_show_no_difference(server: RedisServer, tmp_path: Path) -> None:
    with server.client() as client:
        client.flushall()
        harness = LedgerHarness(tmp_path, client)
        history = History(harness)
        for index in range(40):
            history.do(("pod", NAMESPACES[index % 3], 33))
        history.settle()
        ending, failed, turns = threading.Event(), [], 0

        def keep() -> None:
            nonlocal turns
            try:
                for number in range(400):
                    if ending.is_set():
                        return
                    history.do(("finish" if number % 7 == 0 else "remove", number % 40, 0)) if number % 5 == 0 else None
                    history.do(("pod", NAMESPACES[number % 3], 30))
                    history.do(("round", 3.3, number % 3 == 0))
                    history.write()
                    turns += 1
            except Exception as error:  # noqa: BLE001 - the test raises it
                failed.append(error)

        thread = threading.Thread(target=keep)
        thread.start()

        def wait(_seconds: float) -> bool:
            """Until one whole turn has passed, however long that takes here."""
            enough = turns + 2
            wait_until(lambda: turns >= enough or not thread.is_alive(), "the books are kept")
            return False

        try:
            around = AuditEnvironment(
                client, lambda: read_cluster(harness.source.mirrors, None), lambda: harness.now, wait
            )
            question = AuditRequest(patience_seconds=3 * POLL_SECONDS)
            found = [audit(around, question) for _ in range(8) if not wait(0)]
        finally:
            ending.set()
            thread.join(LIMIT_S)
        assert not failed
        assert [difference for each in found for difference in each.differences] == []
