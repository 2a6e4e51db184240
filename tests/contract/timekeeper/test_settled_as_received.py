"""Whatever rounds run, fail or do not run: what is billed is what a model makes of time and of reports as received."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.keeper_stage import Stage
from tests.redis_server import RedisServer
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.metering.bill import Bill
from timekeeper.metering.reports import Counter
from timekeeper.rules.money import SECOND
from timekeeper.store import reading
from timekeeper.store.report_intake import Outcome, ReportIntake, Submission

NAMESPACES = ("team-a", "team-b")
STEPS = ("assign", "open", "settle", "index", "publish")


class KilledError(RuntimeError):
    """The leader ends here: what it has sent is in the store, and it does not know."""


@dataclass
class Pod:
    """A pod as it really ran: percent of its two GPUs, and what it reported by when, over all starts of its sidecar."""

    namespace: str
    percent: int
    start: int
    end: int | None = None
    boots: list[int] = field(default_factory=lambda: [0])
    reported: list[tuple[int, int, frozenset[int]]] = field(default_factory=list)

    def total(self, instant: int) -> tuple[int, frozenset[int]]:
        """What had been reported before an instant in nanoseconds of GPU time, and of which devices."""
        before = [found for found in self.reported if found[0] < instant]
        named = frozenset[int]().union(*(devices for *_, devices in before))
        return (before[-1][1] if before else 0), named


def billed(pod: Pod, low: int, high: int, bill: Bill, *, last: bool) -> int:
    """What a stretch of a pod costs in microGPU-seconds."""
    reserved = 2 * pod.percent * (high - low) // 100_000
    after, named = pod.total(2**62 if last and pod.end is not None else high + last)
    if bill is Bill.RESERVED or not named:
        return reserved
    before, _ = pod.total(low)
    used = after // 1000 - (before // 1000 if low > pod.start else 0)
    used = min(used + reserved * (2 - len(named)) // 2, reserved)
    return used if bill is Bill.USED else reserved


class World:
    """Budgets of an hour and of a day, their pods, and the leaders that come and go."""

    def __init__(self, stage: Stage, bill: Bill) -> None:
        self.stage, self.bill = stage, bill
        self.pods: dict[str, Pod] = {}
        self.payers = dict(zip(NAMESPACES, "ab", strict=True))
        self.sequence = 0
        self.dies_at = ""
        self.write_budgets()
        self.lead()

    def write_budgets(self) -> None:
        for name, every in (("a", "hour"), ("b", "day")):
            paid = [namespace for namespace, payer in self.payers.items() if payer == name] or [f"{name}-none"]
            self.stage.budget(name, paid, period={"every": every})

    def lead(self) -> None:
        def step(name: str) -> None:
            if name == self.dies_at:
                self.dies_at = ""
                raise KilledError

        self.stage.lead(KeeperRules(bill=self.bill), step=step)

    def round(self, dies_at: str = "") -> None:
        self.dies_at = dies_at
        try:
            self.stage.round()
        except KilledError:
            self.lead()
        self.dies_at = ""

    def start(self, namespace: str, percent: int) -> None:
        uid = f"p{len(self.pods)}"
        item = self.stage.pod(uid, namespace, core=percent)
        device = {"model": "A100", "totalMiB": 81920, "core": percent, "memoryMiB": 1}
        held = ",".join(f'{{"uuid":"GPU-{uid}-{place}",{str(device)[1:-1]}}}'.replace("'", '"') for place in (0, 1))
        allocation = f'{{"v":1,"node":"n1","containers":[{{"name":"main","devices":[{held}]}}]}}'
        item["metadata"]["annotations"]["fairgpu.io/allocation"] = allocation
        limits = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": str(2 * percent), "fairgpu.io/gpu-memory": "2"}
        item["spec"]["containers"][0]["resources"]["limits"] = limits
        self.stage.write_pod(item)
        self.pods[uid] = Pod(namespace, percent, self.stage.now // SECOND * SECOND)
        self.round()

    def report(self, uid: str, share: int, devices: frozenset[int], *, anew: bool) -> None:
        """A sidecar reports that its devices were busy for a share of the time since the pod began."""
        pod, now = self.pods[uid], self.stage.now
        if anew:
            pod.boots.append(0)
        room = (now - pod.start) * len(devices) - sum(pod.boots)
        pod.boots[-1] += max(room, 0) * share // 100 // 1000 * 1000
        self.sequence += 1
        parts = [pod.boots[-1] // len(devices) // 1000 * 1000] * len(devices)
        pod.boots[-1] = sum(parts)
        counters = tuple(Counter(f"GPU-{uid}-{place}", busy, 0, 0) for place, busy in zip(devices, parts, strict=True))
        given_ = Submission(uid, f"boot-{len(pod.boots)}", self.sequence, now, counters)
        assert ReportIntake(self.stage.client).take([given_]) == [Outcome.TAKEN]
        best = max(sum(pod.boots), pod.reported[-1][1] if pod.reported else 0)
        pod.reported.append((now, best, devices))

    def move(self, namespace: str, payer: str) -> None:
        self.payers[namespace] = payer
        self.write_budgets()
        self.round()

    def expected(self) -> dict[tuple[str, int, str], int]:
        """What each pod costs in each period of each account."""
        payers = reading.assignments(self.stage.client)
        found: dict[tuple[str, int, str], int] = {}
        for uid, pod in self.pods.items():
            end = self.stage.now if pod.end is None else pod.end
            moves = payers[pod.namespace]
            for index, (since, account) in enumerate(moves):
                until = min(moves[index + 1][0] if index + 1 < len(moves) else end, end)
                low = max(pod.start, since if index else 0)
                length = (3600 if account == "a" else 86400) * SECOND
                while low < until:
                    period = low - low % length
                    high = min(until, period + length)
                    key = (account, period, uid)
                    found[key] = found.get(key, 0) + billed(pod, low, high, self.bill, last=high == end)
                    low = high
        return found

    def stored(self, keys: set[tuple[str, int, str]]) -> dict[tuple[str, int, str], int]:
        found = {}
        for account, period, uid in keys:
            amounts = reading.stored_amounts(self.stage.client, account, period)
            found[account, period, uid] = amounts[uid].amount if uid in amounts else -1
        return found


events = st.lists(
    st.tuples(
        st.sampled_from(["start", "report", "report", "report", "boot", "end", "round", "lead", "move", "die"]),
        st.integers(0, 200),
        st.sampled_from([0.25, 1, 59, 600, 1799.5, 3600, 5000, 9000]),
    ),
    min_size=1,
    max_size=25,
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as folder, RedisServer(Path(folder)) as running:
        yield running


def happen(world: World, kind: str, choice: int) -> None:
    running = sorted(uid for uid, pod in world.pods.items() if pod.end is None)
    uid = running[choice % len(running)] if running else ""
    match kind:
        case "start":
            world.start(NAMESPACES[choice % 2], (1, 33, 100)[choice % 3])
        case "report" | "boot" if uid:
            named = (frozenset({0}), frozenset({0, 1}))[choice % 2]
            known = frozenset[int]().union(*(devices for *_, devices in world.pods[uid].reported))
            world.report(uid, choice % 101, named | known, anew=kind == "boot")
        case "end" if uid:
            world.pods[uid].end = world.stage.now
            world.stage.remove(uid)
            world.round()
        case "round":
            world.round()
        case "lead":
            world.lead()
        case "move":
            world.move(NAMESPACES[choice % 2], "ab"[choice // 2 % 2])
        case "die":
            world.round(STEPS[choice % len(STEPS)])


@settings(deadline=None)
@given(events, st.sampled_from(Bill))
def test_whatever_rounds_run_all_is_billed_by_time_and_by_reports_as_they_were_received(
    server: RedisServer, found: list[tuple[str, int, float]], bill: Bill
) -> None:
    with server.client() as client, tempfile.TemporaryDirectory() as folder:
        client.flushall()
        world = World(Stage(Path(folder), client), bill)
        world.start("team-a", 100)
        for kind, choice, seconds in found:
            happen(world, kind, choice)
            world.stage.pass_time(seconds)
        world.round()
        world.round()
        expected = world.expected()
        assert world.stored(set(expected)) == expected
