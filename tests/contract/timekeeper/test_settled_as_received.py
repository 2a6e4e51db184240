"""Whatever rounds run, fail or do not run: what is billed is what a model makes of time and of reports as received.

The model knows pods, prices, who paid from when on, and reports with their receipt times; it knows no rounds, no
leaders and no store. The state machine lets leaders come, work, fail half-way, die and stay away, on a real Redis.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.support.ledger.billing_model import WHOLE_MIB, BillingModel, Use
from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.ledger.replica import Replica
from tests.support.ledger.steps import KilledError
from tests.support.servers.redis_server import DRIVER, RedisServer
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.archive import Archivist
from timekeeper.controller.reconcile.reconciler import READ_AGAIN
from timekeeper.controller.state.books import Books, ControllerRules
from timekeeper.controller.state.loading import load
from timekeeper.controller.state.sessions import Acknowledged, MeteredSession, RecordedUse
from timekeeper.domain.money import GPU_HOUR, SECOND
from timekeeper.domain.pricing import BY_WORDS, Bill, PricePoint
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import format_instant
from timekeeper.domain.usage import Dimensions, UsageFigures
from timekeeper.domain.windows import Retention
from timekeeper.ledger import compaction, entries, keys, reading
from timekeeper.ledger.client import FencedError, StoreError, StoreUnavailableError
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission
from timekeeper.ledger.usage import accounts_usage

NAMESPACES = ("team-a", "team-b")
NODES = ("n1", "n2")
STEPS = ("load", "assign", "open", "correct", "settle", "remove", "index", "publish", "watched")
HOUR = 3600 * SECOND
PERIODS: list[dict[str, Any]] = [
    {"every": "hour"},
    {"cron": "7 */2 * * *"},
    {"every": "hour", "timeZone": "Asia/Kathmandu"},
    {"every": "day"},
    {"every": "week"},
    {"every": "month"},
]
MONEY: dict[str, tuple[int, dict[str, Any]]] = {"a": (1_000_000, {}), "b": (2, {"rollover": {"gpuHours": 3}})}
"""The allowance of each budget in GPU-hours, and further fields of its spec."""
EXAMPLES = min(settings().max_examples // 2, 60)
"""Stories for each bill. One takes up to half a second: all three bills stay below two minutes on two cores."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking, which takes up to five minutes; a history of 25 steps can be read as it is."""


class FailingRedis(redis.Redis):
    """A client whose connection breaks in one pipeline: before it, half-way, or before its answers."""

    breaks_in = -1
    sent = Fraction(0)
    waits_in = -1
    meanwhile: Callable[[], object] = bool
    """Called before the pipeline that `waits_in` counts down to is sent."""

    def pipeline(self, *arguments: Any, **options: Any) -> Any:
        found: Any = super().pipeline(*arguments, **options)
        found.execute = partial(self._execute, found, found.execute)
        return found

    def _execute(self, pipeline: Any, execute: Callable[..., Any], **options: Any) -> Any:
        self.breaks_in -= 1
        self.waits_in -= 1
        if self.waits_in == 0:
            self.meanwhile()
        if self.breaks_in != 0:
            return execute(**options)
        pipeline.command_stack = pipeline.command_stack[: int(len(pipeline.command_stack) * self.sent)]
        execute(**options)
        raise redis.ConnectionError("the connection broke")


def comparable(metered: MeteredSession) -> Acknowledged:
    """Returns the session as the store holds it, with two things alike that may differ between leaders.

    The settled instant counts from the session's start. A point a nanosecond after a period's start says that a clock
    that was ahead had charged the session there; a leader that has taken the charge back knows no point.
    """
    known, begun = metered.acknowledged, {start + 1 for _, start in metered.acknowledged.periods}
    periods = {
        key: each._replace(last_point=None) if each.last_point and each.last_point[:2] == (key[1] + 1, 0) else each
        for key, each in known.periods.items()
    }
    posted_at = known.posted_at - (known.posted_at in begun)
    settled_until = max(known.settled_until, metered.session.start)
    return known._replace(settled_until=settled_until, periods=periods, posted_at=posted_at)


class History(RuleBasedStateMachine):
    """Two budgets, their pods, and the leaders that come and go."""

    def __init__(self, server: RedisServer, bill: Bill) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.client = FailingRedis(port=server.port, driver_info=DRIVER)
        self.client.flushall()
        self.harness, self.model = LedgerHarness(Path(self.folder.name), self.client), BillingModel(bill)
        self.keeper_rules = ControllerRules(bill=bill)
        self.payers = dict(zip(NAMESPACES, "ab", strict=True))
        self.rules = {"a": PERIODS[0], "b": PERIODS[1]}
        self.made = {"a": 1, "b": 1}
        """The times that each budget was made; a budget that is deleted counts below 0."""
        self.corrections: list[tuple[str, int, int]] = []
        """The account, the instant whose period is corrected, and the amount."""
        self.dies_at = ""
        self.acts_at = ""
        self.act: Callable[[], object] = bool
        """Called before the step `acts_at` of a reconciliation."""
        self.sequence = 0
        self.broken: dict[tuple[Any, Any], Any] = {}
        self.was_broken = False
        self.write_budgets()
        self.lead()
        self.start("team-a", 100, ("A100", "A100"), borrows=False, node="n1")

    def write_budgets(self) -> None:
        self.harness.budgets = []
        for name, times in self.made.items():
            if times > 0:
                paid = [namespace for namespace, payer in self.payers.items() if payer == name] or [f"{name}-none"]
                hours, more = MONEY[name]
                self.harness.budget(name, paid, hours, period=self.rules[name], **more)
                self.harness.budgets[-1]["metadata"]["uid"] = f"budget-{name}-{times}"
        self.harness.write_budgets()

    def periods(self) -> dict[str, list[tuple[int, int]]]:
        """The periods of each account, as leaders have opened them, also while its records cannot be read."""
        found: dict[str, list[tuple[int, int]]] = {}
        for name in reading.account_names(self.client):
            ends: Any = self.client.hgetall(keys.AccountKeys(name).periods)
            if ends:
                found[name] = sorted((int(start), int(end)) for start, end in ends.items())
        return found

    def corrected(self) -> dict[tuple[str, int], int]:
        """Returns the sum of corrections by account and period."""
        periods, found = self.periods(), dict[tuple[str, int], int]()
        for account, effective, amount in self.corrections:
            for start, end in periods.get(account, ()):  # none where the account was archived away
                if start <= effective < end:
                    found[account, start] = found.get((account, start), 0) + amount
        return found

    def step(self, name: str) -> None:
        if name == self.dies_at:
            self.dies_at = ""
            raise KilledError
        if name == self.acts_at:
            self.acts_at = ""
            self.act()

    def round_undisturbed(self) -> None:
        self.repair()
        self.harness.ahead = 0
        self.harness.reconcile()

    def round_with_all_amounts(self) -> None:
        """A round of a leader that has read each amount since all of them were mended."""
        self.round_undisturbed()
        if self.was_broken:
            self.harness.reconcile(READ_AGAIN / SECOND)

    def running(self, choice: int) -> str | None:
        running = sorted(uid for uid, pod in self.model.pods.items() if pod.end is None)
        return running[choice % len(running)] if running else None

    @rule(seconds=st.sampled_from([0.25, 1, 59, 600, 1799.5, 3600, 5000, 9000, 90_000]))
    def pass_time(self, seconds: float) -> None:
        self.harness.pass_time(seconds)

    @rule(short=st.sampled_from([0, 0, 0.25, 1]))
    def pass_time_to_a_boundary(self, short: float) -> None:
        """Up to just before the next period begins, or just to it; an account that was archived away has none."""
        now, periods = self.harness.now, self.periods()
        following = min((end for name in "ab" for _, end in periods.get(name, ()) if end > now), default=now)
        if following - now < 9 * HOUR:
            self.harness.pass_time(max((following - now) / SECOND - short, 0))

    @rule()
    def lead(self) -> None:
        """Another leader takes over, which knows nothing but what it reads."""
        self.harness.lead(self.keeper_rules, step=self.step)

    @rule(ahead=st.sampled_from([-90_000, -9000, -3600, -59, -0.25, 0.25, 59, 600, 3600, 9000, 90_000]))
    def set_the_leaders_clock_wrong(self, ahead: float) -> None:
        """The leader's clock jumps. What has been seen until then is by a clock that was right."""
        self.round_undisturbed()
        self.harness.ahead = int(ahead * SECOND)
        self.harness.reconcile()

    @rule()
    def set_the_leaders_clock_right(self) -> None:
        self.harness.ahead = 0

    @rule(node=st.sampled_from(NODES), ago=st.sampled_from([0, 1.5, 50, 280, 900]))
    def fall_silent(self, node: str, ago: float) -> None:
        """The node controller finds that a node has not renewed its Lease for a while."""
        renewed = self.harness.now - int(ago * SECOND)
        self.harness.silence(node, renewed)
        # The Lease is by the node's clock. At most five minutes pass before a silence is found.
        found = self.harness.now // SECOND * SECOND
        self.model.silent[node] = min(max(renewed, found - 300 * SECOND), found)

    @rule(node=st.sampled_from(NODES))
    def be_heard_again(self, node: str) -> None:
        """The node reports again: its pods have run on."""
        if self.model.silent.pop(node, None) is not None:
            self.harness.silence(node, None)

    @rule(full=st.booleans())
    def reconcile(self, full: bool) -> None:  # noqa: FBT001 - hypothesis passes it by name
        self.harness.reconcile(full=full)

    @rule(where=st.sampled_from(STEPS))
    def die(self, where: str) -> None:
        """The leader dies in a round, and another one takes over."""
        self.dies_at = where
        try:
            self.harness.reconcile()
        except KilledError:
            self.lead()
        self.dies_at = ""

    @rule(pipelines=st.integers(1, 12), sent=st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1)]))
    def lose_the_connection(self, pipelines: int, sent: Fraction) -> None:
        """A round fails before, amid or after a write; the leader stays."""
        self.client.breaks_in, self.client.sent = pipelines, sent
        try:
            self.harness.reconcile()
        except StoreUnavailableError:
            pass
        finally:
            self.client.breaks_in = -1

    @rule(
        where=st.sampled_from(STEPS),
        seconds=st.sampled_from([1, 59, 1799.5, 3600, 9000]),
        choice=st.integers(0, 5),
        share=st.integers(0, 120),
        another=st.booleans(),
    )
    def lose_the_last_writes(self, where: str, seconds: float, choice: int, share: int, another: bool) -> None:  # noqa: FBT001
        """A replica is promoted that lacks what was written since a step of the last round, and the reports since."""
        self.round_undisturbed()
        self.report(choice, share // 2, frozenset({0}), 0, "same", 0)
        self.harness.pass_time(seconds)
        replicas, known = list[Replica](), copy.deepcopy(self.model.pods)
        self.acts_at, self.act = where, lambda: replicas.append(Replica(self.client))
        self.harness.reconcile()
        self.acts_at = ""
        if replicas:
            self.harness.pass_time(5)
            self.report(choice, share, frozenset({0, 1}), 0, "anew", 0)
            replicas[0].promote()
            self.model.pods = known
            if another:
                self.lead()
            self.harness.reconcile(5)

    @rule(
        where=st.sampled_from([*STEPS, *range(1, 13)]),
        seconds=st.sampled_from([0, 1, 20, 1799.5, 9000]),
        payer=st.sampled_from(["", "a", "b"]),
        choice=st.integers(0, 5),
        share=st.integers(0, 120),
    )
    def pause_a_leader(self, where: str | int, seconds: float, payer: str, choice: int, share: int) -> None:
        """A leader is paused in a round, before a step or a write; another one leads; then the first one goes on."""
        if self.broken:
            self.repair()

        def lead() -> None:
            self.lead()
            self.harness.reconcile()
            if payer:
                self.move("team-a", payer)
            self.harness.reconcile(seconds)
            self.report(choice, share, frozenset({0}), 0, "same", 0)

        if isinstance(where, str):
            self.acts_at, self.act = where, lead
        else:
            self.client.waits_in, self.client.meanwhile = where, lead
        reconciler = self.harness.reconciler
        with suppress(FencedError):
            self.harness.reconcile()
        self.acts_at, self.client.waits_in = "", -1
        self.report(choice, share, frozenset({1}), 0, "same", 0)
        self.report(choice, share // 2, frozenset({0}), 1, "anew", 0)
        if self.harness.reconciler is not reconciler:
            self.harness.reconcile(1)

    @rule(
        rounds=st.integers(1, 3),
        seconds=st.sampled_from([1, 600, 3600]),
        binds=st.booleans(),
        choice=st.integers(0, 5),
        another=st.booleans(),
    )
    def fill_the_store(self, rounds: int, seconds: float, binds: bool, choice: int, another: bool) -> None:  # noqa: FBT001
        """The store has no memory for a while: pods are bound and end, and leaders come."""
        self.client.config_set("maxmemory", 1)
        try:
            if another:
                self.lead()
            if binds:
                self.bind("team-b", 50, ("A100", "H100"), borrows=False, node="n2")
            for _ in range(rounds):
                self.harness.pass_time(seconds)
                with suppress(StoreError):
                    self.harness.reconcile()
            self.finish(choice, 1)
            with suppress(StoreError):
                self.harness.reconcile()
        finally:
            self.client.config_set("maxmemory", 0)
        self.harness.reconcile(1)

    @rule(choice=st.integers(0, 5))
    def break_an_amount(self, choice: int) -> None:
        """The store refuses to settle one session in one period, and no other, until that is mended."""
        found: list[Any] = sorted(self.client.scan_iter("fairgpu:{[ab]}:*amounts*"))
        if found:
            key = found[choice % len(found)]
            for uid in sorted(self.client.hkeys(key))[: 1 + choice % 2]:
                self.spoil(key, uid)

    def spoil(self, key: Any, uid: Any) -> None:
        """Makes one value unreadable until `repair`."""
        self.was_broken = True
        self.broken.setdefault((key, uid), self.client.hget(key, uid))
        self.client.hset(key, uid, "broken")

    @precondition(lambda self: self.broken)
    @rule()
    def repair(self) -> None:
        for (key, uid), text in self.broken.items():
            if self.client.hget(key, uid) == b"broken":  # a leader that knows it may have replaced or removed it
                self.client.hset(key, uid, text)
        self.broken = {}

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        percent=st.sampled_from([1, 33, 100, 50, 0]),
        models=st.sampled_from([("A100", "A100"), ("A100", "H100"), ("H100", "H100")]),
        borrows=st.booleans(),
        node=st.sampled_from(NODES),
    )
    def start(self, namespace: str, percent: int, models: tuple[str, str], borrows: bool, node: str) -> None:  # noqa: FBT001
        self.bind(namespace, percent, models, borrows=borrows, node=node)
        self.round_undisturbed()

    def bind(self, namespace: str, percent: int, models: tuple[str, str], *, borrows: bool, node: str) -> None:
        """A pod is bound; no leader has seen it yet."""
        uid = f"p{len(self.model.pods)}"
        item = self.harness.pod(uid, namespace, core=percent, node=node)
        held = [
            {"uuid": f"GPU-{uid}-{place}", "model": model, "totalMiB": WHOLE_MIB, "core": percent, "memoryMiB": 1}
            for place, model in enumerate(models)
        ]
        annotations = item["metadata"]["annotations"]
        allocation = {"v": 1, "node": node, "containers": [{"name": "main", "devices": held}]}
        annotations["fairgpu.io/allocation"] = json.dumps(allocation)
        if borrows:
            annotations["fairgpu.io/core-policy"] = "elastic"
        limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": str(2 * percent), "fairgpu.io/gpu-memory": "2"}
        item["spec"]["containers"][0]["resources"]["limits"] = limits
        self.harness.write_pod(item)
        start = self.harness.now // SECOND * SECOND
        self.model.start(uid, namespace, percent, models, start, borrows=borrows, node=node)

    @rule(
        choice=st.integers(0, 5),
        share=st.integers(0, 120),
        devices=st.frozensets(st.integers(0, 2)),
        late=st.sampled_from([0, 0, 0, 1, 90, -2]),
        boot=st.sampled_from(["same", "same", "same", "anew", "earlier"]),
        memory=st.sampled_from([0, 0, 8192, 100_000]),
    )
    def report(self, choice: int, share: int, devices: frozenset[int], late: int, boot: str, memory: int) -> None:
        """A sidecar, or another start of it, says that devices were busy for a share of the session's age."""
        uid = self.running(choice)
        if uid is None:
            return
        pod, at = self.model.pods[uid], self.harness.now - late * SECOND
        number = {"same": len(pod.boots) - 1, "anew": len(pod.boots), "earlier": 0}[boot]
        age = max(at - pod.start, 0)
        used = {place: Use(age * share // 100 + place, age // 2 if memory else 0, memory) for place in devices}
        counters = tuple(Counter(f"GPU-{uid}-{place}", *found) for place, found in used.items())
        self.sequence += 1
        terms, closed = self.client.hmget(keys.report(uid), ["terms", "closed"])
        submission = Submission(uid, f"boot-{number}", self.sequence, at, counters, last=share == 100)
        (outcome,) = ReportIntake(self.client).take([submission])
        assert outcome in {IntakeOutcome.TAKEN, IntakeOutcome.NOT_RUNNING}
        if outcome is IntakeOutcome.TAKEN:
            pod.alive = at  # by the clock of the replica that received the last one
        if outcome is IntakeOutcome.TAKEN and terms is not None:
            if number == len(pod.boots):
                pod.boots.append(0)
            # Once a period was closed, a report that was under way counts as received after that.
            taken = {place: found for place, found in used.items() if place < 2}
            self.model.report(pod, max(at, int(closed or 0)), number, taken)

    @rule(choice=st.integers(0, 5), every=st.sampled_from([50, 240]), count=st.integers(5, 15))
    def report_while_nobody_leads(self, choice: int, every: int, count: int) -> None:
        for number in range(count):
            self.report(choice, number % 60, frozenset({0}), 0, "same", 0)
            self.harness.pass_time(every)

    @rule(choice=st.integers(0, 5), every=st.sampled_from([50, 600]), count=st.integers(2, 8))
    def report_between_rounds(self, choice: int, every: int, count: int) -> None:
        for number in range(count):
            self.report(choice, 10 * number, frozenset({0, 1}), 0, "same", 0)
            self.harness.reconcile(every, full=number % 2 == 0)

    @rule(choice=st.integers(0, 5), seconds_ago=st.sampled_from([0, 0, 1, 30]))
    def finish(self, choice: int, seconds_ago: int) -> None:
        """A pod's containers end; the leader sees that when it looks, whatever its clock shows."""
        uid = self.running(choice)
        if uid is not None:
            pod = self.model.pods[uid]
            ended = max(self.harness.now - seconds_ago * SECOND, pod.start) // SECOND * SECOND
            pod.end = ended
            self.harness.finish(self.harness.source_pod(uid), (self.harness.now - ended) // SECOND)

    @rule(choice=st.integers(0, 5), rounds=st.integers(0, 2), share=st.integers(0, 120), ago=st.sampled_from([4, 5]))
    def finish_before_a_boundary_that_rounds_have_passed(self, choice: int, rounds: int, share: int, ago: int) -> None:
        """The leader sees an end after it has settled the period that follows."""
        self.pass_time_to_a_boundary(0)
        for _ in range(rounds):
            self.harness.reconcile()
            self.harness.pass_time(2)
        self.harness.pass_time(4 - 2 * rounds)
        self.report(choice, share, frozenset({0}), 0, "same", 0)
        self.finish(choice, ago)

    @rule(choice=st.integers(0, 5))
    def remove(self, choice: int) -> None:
        """A pod is deleted while a leader watches."""
        uid = self.running(choice)
        if uid is not None:
            self.round_undisturbed()
            pod = self.model.pods[uid]
            pod.end = self.model.alive_until(pod, self.harness.now)
            self.harness.remove(uid)
            self.round_undisturbed()

    @rule(
        choice=st.integers(0, 5),
        kind=st.sampled_from(["sessions", "amounts:*"]),
        seconds=st.sampled_from([0, 1, 59, 3600]),
        leaders=st.tuples(st.booleans(), st.booleans()),
    )
    def remove_while_it_cannot_be_settled(
        self, choice: int, kind: str, seconds: float, leaders: tuple[bool, bool]
    ) -> None:
        """A pod is deleted while its record, or one of its amounts, cannot be read; leaders come before and after."""
        self.round_undisturbed()
        uid = self.running(choice)
        if uid is None:
            return
        for key in [key for key in self.client.scan_iter(f"fairgpu:{{*}}:{kind}") if self.client.hexists(key, uid)]:
            self.spoil(key, uid.encode())
        if leaders[0]:
            self.lead()
        self.harness.reconcile(seconds)
        pod = self.model.pods[uid]
        pod.end = self.model.alive_until(pod, self.harness.now)
        self.harness.remove(uid)
        self.harness.reconcile()
        self.harness.reconcile(seconds)
        if leaders[1]:
            self.lead()
            self.harness.reconcile(seconds)

    @rule()
    def remove_what_has_ended(self) -> None:
        """The objects of pods that have ended are deleted, whether a leader has seen their ends or not."""
        for uid, pod in self.model.pods.items():
            if pod.end is not None and (self.harness.folder / "pods" / f"{uid}.json").exists():
                self.round_undisturbed()
                self.harness.remove(uid)
                self.harness.refresh()

    @rule(namespace=st.sampled_from(NAMESPACES), payer=st.sampled_from(["a", "b", "none"]))
    def move(self, namespace: str, payer: str) -> None:
        self.payers[namespace] = payer
        self.write_budgets()

    @rule(name=st.sampled_from("ab"), period=st.sampled_from(PERIODS))
    def change_the_period(self, name: str, period: dict[str, Any]) -> None:
        """A budget's rule changes; that holds from its next period on."""
        self.rules[name] = period
        self.write_budgets()

    @rule(name=st.sampled_from("ab"))
    def delete_or_make_again(self, name: str) -> None:
        """A budget is deleted, or made again under its name."""
        self.round_undisturbed()  # what was corrected before is in the ledger
        self.made[name] = -self.made[name] if self.made[name] > 0 else 1 - self.made[name]
        self.write_budgets()

    @rule(
        model=st.sampled_from(["A100", "H100", "*"]),
        price=st.sampled_from(["1", "2.5", "1/3"]),
        later=st.sampled_from(["1", "3"]),
        after=st.sampled_from([1, 4000]),
        alone=st.booleans(),
    )
    def reprice(self, model: str, price: str, later: str, after: int, alone: bool) -> None:  # noqa: FBT001
        """The admin sets another price, now and for later, beside the others or in their place."""
        self.harness.ahead = 0
        now = self.harness.now
        points = [(now, Fraction(price)), (now + after * SECOND, Fraction(later))]
        prices = {**({} if alone else self.model.configured[-1][1]), model: points}
        found = {name: tuple(PricePoint(*point) for point in known) for name, known in prices.items()}
        self.keeper_rules = ControllerRules(
            bill=self.model.bill, prices=found | {BY_WORDS: (PricePoint(0, Fraction(1)),)}
        )
        self.lead()
        self.round_undisturbed()
        self.model.reprice(now, prices)

    @rule(
        account=st.sampled_from("ab"), ago=st.sampled_from([0, 3600, 20_000]), hours=st.sampled_from(["0.5", "-0.25"])
    )
    def correct(self, account: str, ago: int, hours: str) -> None:
        """Somebody sets right what was spent; no less than nothing, which would be refused."""
        if self.made[account] < 0:
            return
        effective = max(self.harness.now - ago * SECOND, NOON)
        amount = int(Fraction(hours) * GPU_HOUR)
        if amount < 0:
            self.round_undisturbed()
            period = reading.period_at(self.client, account, effective)
            if period is None or self.corrected().get((account, period.start), 0) + amount < 0:
                return
        self.sequence += 1
        self.harness.correct(f"c{self.sequence}", account, hours, effective)
        self.corrections.append((account, effective, amount))

    @rule(
        account=st.sampled_from("ab"),
        hours=st.sampled_from(["0.5", "3"]),
        lasts=st.sampled_from([None, 60, 5000, 40_000]),
    )
    def grant(self, account: str, hours: str, lasts: int | None) -> None:
        """A budget gets more money, which expires with the period or at an instant of its own."""
        if self.made[account] > 0:
            self.sequence += 1
            expires = {} if lasts is None else {"expires": format_instant(self.harness.now + lasts * SECOND)}
            self.harness.grant(f"g{self.sequence}", account, hours, **expires)

    @rule(
        room=st.sampled_from([0, 600, compaction.LARGE_PART]),
        rows=st.sampled_from([1, 7, compaction.MOST_ROWS]),
        packed_entries=st.sampled_from([2, 7, entries.SEGMENT_ENTRIES]),
        hours=st.sampled_from([0, 0, 5, 26, 50]),
    )
    def archive(self, room: int, rows: int, packed_entries: int, hours: int) -> None:
        """The leader compacts what is old: hours, entries, and amounts of pods that are deleted.

        Small limits make of a few pods what many pods make of the real ones: many packed values.
        """
        self.round_undisturbed()
        self.harness.reconcile(hours * 3600)
        reconciler = self.harness.reconciler
        assert reconciler is not None
        reconciler.books.finalized = []  # checkpoints are written
        retention, before = Retention(hourly_days=1), self.use()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "LARGE_PART", room)
            patch.setattr(compaction, "MOST_ROWS", rows)
            patch.setattr(entries, "SEGMENT_ENTRIES", packed_entries)
            Archivist(self.client, self.harness.source, reconciler.books, reconciler.fencing_token, retention).archive(
                self.harness.now
            )
        assert self.use() == before

    def use(self) -> dict[tuple[str, Dimensions], UsageFigures]:
        """Returns the use of each account by its dimensions, over all hours."""
        sums: dict[tuple[str, Dimensions], UsageFigures] = {}
        names, assignments = reading.account_names(self.client), reading.assignments(self.client)
        for usage in accounts_usage(self.client, names, assignments):
            for row in usage.rows():
                place = usage.account, row.dimensions
                sums[place] = sums.get(place, UsageFigures()).plus(row.figures)
        return sums

    # A leader that could not read an amount knows nothing of it, also once somebody has mended it.
    @precondition(lambda self: not self.was_broken)
    @rule()
    def compare_with_what_a_new_leader_would_load(self) -> None:
        """Checks that the leader has of each open session what the next leader reads from the store."""
        self.round_undisturbed()
        assert self.harness.reconciler is not None
        next_books = Books(self.keeper_rules)
        load(self.client, 10**9, next_books, self.harness.now, self.harness.now)
        kept, read = (
            {metered.session.uid: comparable(metered) for metered in books.pods.sessions.all()}
            for books in (self.harness.reconciler.books, next_books)
        )
        if self.model.bill is Bill.RESERVED:
            # Reports are read with ledger entries alone: if an answer is lost, the leader knows the totals in the
            # record from its next entry on.
            for found in (kept, read):
                found.update({uid: each._replace(use=RecordedUse()) for uid, each in found.items()})
        for metered in self.harness.reconciler.books.pods.sessions.all():
            # An account that paid for no time at all is not among the payers any more.
            payers = {account for _, account in next_books.assignments[metered.session.namespace]}
            known = kept[metered.session.uid]
            periods = {key: found for key, found in known.periods.items() if key[0] in payers or found.amount}
            kept[metered.session.uid] = known._replace(periods=periods)
        # Records do not say which nodes are silent: a period in which such a pod has no time counts as final there.
        silent = {uid for uid, pod in self.model.pods.items() if pod.node in self.model.silent}
        running = {uid for uid, acknowledged in kept.items() if not acknowledged.closed} - silent
        different = {uid: (kept[uid], read.get(uid)) for uid in running if kept[uid] != read.get(uid)}
        assert not different, different

    @rule()
    def audit(self) -> None:
        self.round_with_all_amounts()
        self.harness.reconcile(1)
        self.harness.reconcile()
        self.hold_the_audit({})

    def hold_the_audit(self, periods: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """The auditor names no difference in the present periods, nor in these."""
        around = AuditEnvironment(
            self.client, lambda: read_cluster(self.harness.source.mirrors, None), lambda: self.harness.now, bool
        )
        for start in [None, *sorted({start for known in periods.values() for start, _ in known})]:
            request = AuditRequest(period=start, patience_seconds=0, bill=self.model.bill.value)
            shown = {Figure.STATUS}  # no statuses of budgets are written here
            unexpected = [each for each in audit(around, request).differences if each.figure not in shown]
            assert not unexpected, unexpected

    def teardown(self) -> None:
        try:
            self.round_with_all_amounts()
            # A namespace that has only just moved has been nowhere for any time yet.
            self.harness.reconcile(1)
            # Where use is billed, a balance is closed by the last settlement: the next one brings it up to date.
            self.harness.reconcile()
            periods, corrected = self.periods(), self.corrected()
            for account, found in periods.items():
                gaps = [pair for pair in pairwise(found) if pair[0][1] != pair[1][0]]
                assert not gaps, (account, gaps)
            expected = self.model.expected(reading.assignments(self.client), periods, self.harness.now)
            different = {}
            for key in {(account, start) for account, known in periods.items() for start, _ in known}:
                amounts, stored = expected.get(key, {}), reading.stored_amounts(self.client, *key)
                folded = any(self.client.hmget(keys.AccountKeys(key[0]).period(key[1]), ["folded", "passed"]))
                for uid in stored.keys() if folded else amounts.keys() | stored.keys():
                    amount = stored[uid].amount if uid in stored else 0
                    if amount != amounts.get(uid, 0):
                        different[key, uid] = {"stored": amount, "expected": amounts.get(uid, 0)}
            assert not different, different
            for key in {*expected, *corrected}:
                assert self.harness.spent(*key) == sum(expected.get(key, {}).values()) + corrected.get(key, 0)
            self.hold_the_audit(periods)
        finally:
            self.client.close()
            self.folder.cleanup()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.mark.parametrize("bill", [Bill.RESERVED, Bill.USED, Bill.MAX])
def test_all_is_billed_by_time_and_by_reports_as_they_were_received_whatever_rounds_run(
    server: RedisServer, bill: Bill
) -> None:
    history: Any = partial(History, server, bill)
    run_state_machine_as_test(history, settings=settings(max_examples=EXAMPLES, stateful_step_count=25, phases=PHASES))
