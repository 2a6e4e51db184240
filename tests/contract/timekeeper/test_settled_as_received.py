"""Whatever rounds run, fail or do not run: what is billed is what a model makes of time and of reports as received.

The model knows pods, prices, who paid from when on, and reports with their receipt times; it knows no rounds, no
leaders and no store. The state machine lets leaders come, work, fail half-way, die and stay away, on a real Redis.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.support.ledger.harness import NOON, LedgerHarness
from tests.support.servers.redis_server import DRIVER, RedisServer
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.cluster import read_cluster
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import Books, ControllerRules
from timekeeper.controller.state.loading import load
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill, PricePoint
from timekeeper.domain.reports import Counter
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import StoreUnavailableError
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission

NAMESPACES = ("team-a", "team-b")
STEPS = ("load", "assign", "open", "correct", "settle", "remove", "index", "publish", "watched")
HOUR = 3600 * SECOND
RULES: dict[str, Any] = {"a": {"every": "hour"}, "b": {"cron": "7 */2 * * *"}}
"""The periods of two budgets; the second one's begin seven minutes past each even hour."""
CYCLES = {"a": (0, HOUR), "b": (420 * SECOND, 2 * HOUR)}
"""The same: how far the periods begin beside a multiple of their length, and their length."""
EXAMPLES = min(settings().max_examples // 2, 60)
"""Stories for each bill. One takes up to half a second: all three bills stay below two minutes on two cores."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking, which takes up to five minutes; a story of 25 steps can be read as it is."""
FLOOR = 10
"""Percent of a GPU that a best-effort share is charged."""

Key = tuple[str, int]


class KilledError(RuntimeError):
    """The leader ends here: what it has sent is in the store, and it does not know."""


class FailingRedis(redis.Redis):
    """A client whose connection breaks in one pipeline: before it, half-way, or before its answers."""

    breaks_in = -1
    sent = Fraction(0)

    def pipeline(self, *arguments: Any, **options: Any) -> Any:
        found: Any = super().pipeline(*arguments, **options)
        found.execute = partial(self._execute, found, found.execute)
        return found

    def _execute(self, pipeline: Any, execute: Callable[..., Any], **options: Any) -> Any:
        self.breaks_in -= 1
        if self.breaks_in != 0:
            return execute(**options)
        pipeline.command_stack = pipeline.command_stack[: int(len(pipeline.command_stack) * self.sent)]
        execute(**options)
        raise redis.ConnectionError("the connection broke")


@dataclass
class Pod:
    """A pod as it really ran on two GPUs, and what its reports came to by when, over all starts of its sidecar."""

    namespace: str
    percent: int
    borrows: bool
    start: int
    price: Fraction
    """The price when it started, which holds for its reports."""
    end: int | None = None
    boots: list[int] = field(default_factory=lambda: [0])
    reported: list[tuple[int, int, frozenset[int]]] = field(default_factory=list)

    def total(self, instant: int) -> tuple[int, frozenset[int]]:
        """The money that was reported before an instant, and the devices that were named."""
        before = [found for found in self.reported if found[0] < instant]
        return before[-1][1:] if before else (0, frozenset())


class Stretch(NamedTuple):
    """A stretch [start, end) of a pod's time, and the instant before which its reports were received.

    What comes after a pod's end counts as received at its end.
    """

    start: int
    end: int
    received: int


class Model:
    """What pods cost by time, prices, payers, and reports as they were received."""

    def __init__(self, bill: Bill) -> None:
        self.bill = bill
        self.pods: dict[str, Pod] = {}
        self.prices: list[tuple[int, Fraction]] = [(0, Fraction(1))]
        self.corrected: dict[Key, int] = {}

    def reprice(self, now: int, points: list[tuple[int, Fraction]]) -> None:
        """From now on the prices are others; what was charged stays."""
        self.prices = [point for point in self.prices if point[0] < now] + points

    def price(self, instant: int) -> Fraction:
        return [price for since, price in self.prices if since <= instant][-1]

    def rate(self, percent: int, price: Fraction) -> int:
        return 2 * -(-GPU_SECOND * percent * price // 100)

    def reserved(self, pod: Pod, low: int, high: int) -> int:
        moments = [low, *(since for since, _ in self.prices if low < since < high), high]
        rates: list[tuple[int, int]] = []
        for moment in moments[:-1]:
            rate = self.rate(pod.percent or FLOOR, self.price(moment))
            if not rates or rates[-1][1] != rate:
                rates.append((moment, rate))
        ends = [*(since for since, _ in rates[1:]), high]
        return sum(rate * (end - since) // SECOND for (since, rate), end in zip(rates, ends, strict=True))

    def report(self, pod: Pod, at: int, busy: dict[int, int]) -> None:
        """Takes a report of the present boot; busy nanoseconds by device."""
        last_at, last, named = pod.reported[-1] if pod.reported else (0, 0, frozenset[int]())
        at = max(at, last_at)
        age, price = max(at - pod.start, 0), pod.price
        told = int(sum(min(found, age) for found in busy.values()) * price / 1000)
        grown = max(told - pod.boots[-1], 0)
        pod.boots[-1] += grown
        if named | busy.keys():
            pod.reported.append((at, min(last + grown, int(2 * age * price / 1000)), named | busy.keys()))

    def cost(self, pod: Pod, stretches: list[Stretch]) -> int:
        """What a pod costs in one period of one account."""
        reserved = sum(self.reserved(pod, stretch.start, stretch.end) for stretch in stretches)
        named: frozenset[int] = frozenset()
        used = 0
        for low, _, until in stretches:
            after, named = pod.total(until)
            used += after - (pod.total(low)[0] if low > pod.start else 0)
        if self.bill is Bill.RESERVED or not named:
            return reserved
        used += reserved * (2 - len(named)) // 2
        rate = self.rate(pod.percent or FLOOR, pod.price)
        ceiling = reserved * self.rate(100, pod.price) // rate if pod.borrows else reserved
        used = min(used, ceiling)
        return used if self.bill is Bill.USED else max(used, reserved)

    def expected(self, payers: dict[str, Any], now: int) -> dict[Key, dict[str, int]]:
        """What each pod costs in each period of each account up to an instant."""
        found: dict[tuple[Key, str], list[Stretch]] = {}
        for uid, pod in self.pods.items():
            end = now if pod.end is None else pod.end
            moves = payers[pod.namespace]
            beside, length = CYCLES[moves[-1][1]]
            present = moves[-1][1], now - (now - beside) % length
            for index, (since, account) in enumerate(moves):
                until = min(moves[index + 1][0] if index + 1 < len(moves) else end, end)
                low = max(pod.start, since if index else 0)
                beside, length = CYCLES[account]
                while low < until:
                    period = low - (low - beside) % length
                    high = min(until, period + length)
                    there = pod.end is None and high == now and (account, period) == present
                    received = 1 << 62 if high == pod.end else high + there
                    found.setdefault(((account, period), uid), []).append(Stretch(low, high, received))
                    low = high
        costs: dict[Key, dict[str, int]] = {}
        for (key, uid), stretches in found.items():
            costs.setdefault(key, {})[uid] = self.cost(self.pods[uid], stretches)
        return costs


class Story(RuleBasedStateMachine):
    """Two budgets, their pods, and the leaders that come and go."""

    def __init__(self, server: RedisServer, bill: Bill) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.client = FailingRedis(port=server.port, driver_info=DRIVER)
        self.client.flushall()
        self.stage, self.model = LedgerHarness(Path(self.folder.name), self.client), Model(bill)
        self.keeper_rules = ControllerRules(bill=bill)
        self.payers = dict(zip(NAMESPACES, "ab", strict=True))
        self.dies_at = ""
        self.sequence = 0
        self.broken: dict[tuple[Any, Any], Any] = {}
        self.was_broken = False
        self.write_budgets()
        self.lead()
        self.start("team-a", 100, borrows=False)

    def write_budgets(self) -> None:
        for name, period in RULES.items():
            paid = [namespace for namespace, payer in self.payers.items() if payer == name] or [f"{name}-none"]
            self.stage.budget(name, paid, 1_000_000, period=period)

    def step(self, name: str) -> None:
        if name == self.dies_at:
            self.dies_at = ""
            raise KilledError

    def round_undisturbed(self) -> None:
        self.repair()
        self.stage.round()

    def running(self, choice: int) -> str | None:
        running = sorted(uid for uid, pod in self.model.pods.items() if pod.end is None)
        return running[choice % len(running)] if running else None

    @rule(seconds=st.sampled_from([0.25, 1, 59, 600, 1799.5, 3600, 5000, 9000]))
    def pass_time(self, seconds: float) -> None:
        self.stage.pass_time(seconds)

    @rule(short=st.sampled_from([0, 0, 0.25, 1]))
    def pass_time_to_a_boundary(self, short: float) -> None:
        """Up to just before the next period begins, or just to it."""
        now = self.stage.now
        following = min(now - (now - beside) % length + length for beside, length in CYCLES.values())
        self.stage.pass_time(max((following - now) / SECOND - short, 0))

    @rule()
    def lead(self) -> None:
        """Another leader takes over, which knows nothing but what it reads."""
        self.stage.lead(self.keeper_rules, step=self.step)

    @rule(full=st.booleans())
    def round(self, full: bool) -> None:  # noqa: FBT001 - hypothesis passes it by name
        self.stage.round(full=full)

    @rule(where=st.sampled_from(STEPS))
    def die(self, where: str) -> None:
        """The leader dies in a round, and another one takes over."""
        self.dies_at = where
        try:
            self.stage.round()
        except KilledError:
            self.lead()
        self.dies_at = ""

    @rule(pipelines=st.integers(1, 12), sent=st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1)]))
    def lose_the_connection(self, pipelines: int, sent: Fraction) -> None:
        """A round fails before, amid or after a write; the leader stays."""
        self.client.breaks_in, self.client.sent = pipelines, sent
        try:
            self.stage.round()
        except StoreUnavailableError:
            pass
        finally:
            self.client.breaks_in = -1

    @rule(choice=st.integers(0, 5))
    def break_an_amount(self, choice: int) -> None:
        """The store refuses to settle one session in one period, and no other, until that is mended."""
        found: list[Any] = sorted(self.client.scan_iter("fairgpu:{[ab]}:*amounts*"))
        if found:
            self.was_broken = True
            key = found[choice % len(found)]
            for uid in sorted(self.client.hkeys(key))[: 1 + choice % 2]:
                self.broken.setdefault((key, uid), self.client.hget(key, uid))
                self.client.hset(key, uid, "broken")

    @precondition(lambda self: self.broken)
    @rule()
    def repair(self) -> None:
        for (key, uid), text in self.broken.items():
            self.client.hset(key, uid, text)
        self.broken = {}

    @rule(namespace=st.sampled_from(NAMESPACES), percent=st.sampled_from([1, 33, 100, 50, 0]), borrows=st.booleans())
    def start(self, namespace: str, percent: int, borrows: bool) -> None:  # noqa: FBT001
        uid = f"p{len(self.model.pods)}"
        item = self.stage.pod(uid, namespace, core=percent)
        device = {"model": "A100", "totalMiB": 81920, "core": percent, "memoryMiB": 1}
        held = ",".join(f'{{"uuid":"GPU-{uid}-{place}",{str(device)[1:-1]}}}'.replace("'", '"') for place in (0, 1))
        annotations = item["metadata"]["annotations"]
        annotations["fairgpu.io/allocation"] = (
            f'{{"v":1,"node":"n1","containers":[{{"name":"main","devices":[{held}]}}]}}'
        )
        if borrows:
            annotations["fairgpu.io/core-policy"] = "elastic"
        limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": str(2 * percent), "fairgpu.io/gpu-memory": "2"}
        item["spec"]["containers"][0]["resources"]["limits"] = limits
        self.stage.write_pod(item)
        start = self.stage.now // SECOND * SECOND
        self.model.pods[uid] = Pod(namespace, percent, borrows or not percent, start, self.model.price(start))
        self.round_undisturbed()

    @rule(
        choice=st.integers(0, 5),
        share=st.integers(0, 120),
        devices=st.frozensets(st.integers(0, 2)),
        late=st.sampled_from([0, 0, 0, 1, 90, -2]),
        anew=st.booleans(),
    )
    def report(self, choice: int, share: int, devices: frozenset[int], late: int, anew: bool) -> None:  # noqa: FBT001
        """A sidecar, or a new start of it, says that devices were busy for a share of the session's age."""
        uid = self.running(choice)
        if uid is None:
            return
        pod, at = self.model.pods[uid], self.stage.now - late * SECOND
        busy = {place: max(at - pod.start, 0) * share // 100 + place for place in devices}
        counters = tuple(Counter(f"GPU-{uid}-{place}", found, 0, 0) for place, found in busy.items())
        self.sequence += 1
        terms, closed = self.client.hmget(keys.report(uid), ["terms", "closed"])
        boot = f"boot-{len(pod.boots) + anew}"
        (outcome,) = ReportIntake(self.client).take([Submission(uid, boot, self.sequence, at, counters)])
        assert outcome in {IntakeOutcome.TAKEN, IntakeOutcome.NOT_RUNNING}
        if outcome is IntakeOutcome.TAKEN and terms is not None:
            if anew:
                pod.boots.append(0)
            # Once a period was closed, a report that was under way counts as received after that.
            self.model.report(
                pod, max(at, int(closed or 0)), {place: found for place, found in busy.items() if place < 2}
            )

    @rule(choice=st.integers(0, 5), every=st.sampled_from([50, 240]), count=st.integers(5, 15))
    def report_while_nobody_leads(self, choice: int, every: int, count: int) -> None:
        for number in range(count):
            self.report(choice, number % 60, frozenset({0}), 0, anew=False)
            self.stage.pass_time(every)

    @rule(choice=st.integers(0, 5), seconds_ago=st.sampled_from([0, 0, 1, 30]))
    def finish(self, choice: int, seconds_ago: int) -> None:
        """A pod's containers end; the leader sees that when it looks."""
        uid = self.running(choice)
        if uid is not None:
            pod = self.model.pods[uid]
            ended = max(self.stage.now - seconds_ago * SECOND, pod.start) // SECOND * SECOND
            pod.end = ended
            self.stage.finish(self.stage.source_pod(uid), (self.stage.now - ended) // SECOND)

    @rule(choice=st.integers(0, 5), rounds=st.integers(0, 2), share=st.integers(0, 120), ago=st.sampled_from([4, 5]))
    def finish_before_a_boundary_that_rounds_have_passed(self, choice: int, rounds: int, share: int, ago: int) -> None:
        """The leader sees an end after it has settled the period that follows."""
        self.pass_time_to_a_boundary(0)
        for _ in range(rounds):
            self.stage.round()
            self.stage.pass_time(2)
        self.stage.pass_time(4 - 2 * rounds)
        self.report(choice, share, frozenset({0}), 0, anew=False)
        self.finish(choice, ago)

    @rule(choice=st.integers(0, 5))
    def remove(self, choice: int) -> None:
        """A pod is deleted while a leader watches."""
        uid = self.running(choice)
        if uid is not None:
            self.round_undisturbed()
            self.model.pods[uid].end = self.stage.now
            self.stage.remove(uid)
            self.round_undisturbed()

    @rule(namespace=st.sampled_from(NAMESPACES), payer=st.sampled_from("ab"))
    def move(self, namespace: str, payer: str) -> None:
        self.payers[namespace] = payer
        self.write_budgets()

    @rule(
        price=st.sampled_from(["1", "2.5", "1/3"]), later=st.sampled_from(["1", "3"]), after=st.sampled_from([1, 4000])
    )
    def reprice(self, price: str, later: str, after: int) -> None:
        """The admin installs other prices, now and for later; a leader takes them over."""
        points = [(self.stage.now, Fraction(price)), (self.stage.now + after * SECOND, Fraction(later))]
        self.keeper_rules = ControllerRules(
            bill=self.model.bill, prices={"A100": tuple(PricePoint(*point) for point in points)}
        )
        self.lead()
        self.round_undisturbed()
        self.model.reprice(self.stage.now, points)

    @rule(
        account=st.sampled_from("ab"), ago=st.sampled_from([0, 3600, 20_000]), hours=st.sampled_from(["0.5", "-0.25"])
    )
    def correct(self, account: str, ago: int, hours: str) -> None:
        """Somebody sets right what was spent; no less than nothing, which would be refused."""
        effective = max(self.stage.now - ago * SECOND, NOON)
        beside, length = CYCLES[account]
        key = account, effective - (effective - beside) % length
        amount = int(Fraction(hours) * GPU_HOUR)
        if amount < 0:
            self.round_undisturbed()
        if self.model.corrected.get(key, 0) + amount >= 0:
            self.sequence += 1
            self.stage.correct(f"c{self.sequence}", account, hours, effective)
            self.model.corrected[key] = self.model.corrected.get(key, 0) + amount

    # A leader that could not read an amount knows nothing of it, also once somebody has mended it.
    @precondition(lambda self: not self.was_broken)
    @rule()
    def compare_with_what_a_new_leader_would_load(self) -> None:
        """What the leader has of each open session is what the next one reads from the store."""
        self.round_undisturbed()
        assert self.stage.keeper is not None
        next_books = Books(self.keeper_rules)
        load(self.client, next_books, self.stage.now)
        kept, read = (
            {metered.session.uid: metered.acknowledged for metered in books.pods.sessions.all()}
            for books in (self.stage.keeper.books, next_books)
        )
        for metered in self.stage.keeper.books.pods.sessions.all():
            # Whoever paid for no time at all is not among the payers any more.
            payers = {account for _, account in next_books.assignments[metered.session.namespace]}
            known = metered.acknowledged
            periods = {key: found for key, found in known.periods.items() if key[0] in payers or found.amount}
            kept[metered.session.uid] = known._replace(periods=periods)
        running = {uid for uid, acknowledged in kept.items() if not acknowledged.closed}
        different = {uid: (kept[uid], read.get(uid)) for uid in running if kept[uid] != read.get(uid)}
        assert not different, different

    def teardown(self) -> None:
        try:
            self.round_undisturbed()
            # A namespace that has only just moved has been nowhere for any time yet.
            self.stage.round(1)
            # Where use is billed, a balance is closed by the last settlement: the next one brings it up to date.
            self.stage.round()
            expected = self.model.expected(reading.assignments(self.client), self.stage.now)
            different = {}
            for key, amounts in expected.items():
                stored = reading.stored_amounts(self.client, *key)
                for uid in amounts.keys() | stored.keys():
                    found = stored[uid].amount if uid in stored else 0
                    if found != amounts.get(uid, 0):
                        different[key, uid] = {"stored": found, "expected": amounts.get(uid, 0)}
            assert not different, different
            for key in {*expected, *self.model.corrected}:
                total = sum(expected.get(key, {}).values()) + self.model.corrected.get(key, 0)
                assert self.stage.spent(*key) == total
            around = AuditEnvironment(
                self.client, lambda: read_cluster(self.stage.source.mirrors, None), lambda: self.stage.now, bool
            )
            differences = audit(around, AuditRequest(patience_seconds=0, bill=self.model.bill.value)).differences
            told = {Figure.STATUS}  # nobody writes the statuses of budgets here
            unexpected = [each for each in differences if each.figure not in told]
            assert not unexpected, unexpected
        finally:
            self.client.close()
            self.folder.cleanup()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


@pytest.mark.parametrize("bill", [Bill.RESERVED, Bill.USED, Bill.MAX])
def test_whatever_rounds_run_all_is_billed_by_time_and_by_reports_as_they_were_received(
    server: RedisServer, bill: Bill
) -> None:
    story: Any = partial(Story, server, bill)
    run_state_machine_as_test(story, settings=settings(max_examples=EXAMPLES, stateful_step_count=25, phases=PHASES))
