"""Computes the cost of pods from times, prices, payers, periods and reports, independently of the ledger's code.

The model knows no reconciliations, no leaders and no store. Times are nanoseconds since 1970, and amounts are
microGPU-seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.pricing import Bill

FLOOR = 10
"""The percent of a GPU that a best-effort share is charged at least."""
WHOLE_MIB = 81920
"""The memory of each device, in MiB."""

Key = tuple[str, int]
Payers = Sequence[tuple[int, str]]
Periods = Sequence[tuple[int, int]]
"""The start and end of each of an account's periods, in order; the end is not part of the period."""
PriceList = Mapping[str, Sequence[tuple[int, Fraction]]]
"""Pairs of an instant and the price from it on, in order, keyed by model; `*` stands for every other model."""


@dataclass
class Pod:
    """A pod as it really ran on two GPUs, and the money by its reports, over all starts of its sidecar.

    Attributes:
        prices: the price of each GPU when the pod started; its reports are priced by it.
        boots: the money that each start of its sidecar has reported so far.
        reported: an instant, the money up to it, and the devices named up to it, after each report, in order.
        node: its node.
        alive: the instant at which its last report was received.
    """

    namespace: str
    percent: int
    models: tuple[str, str]
    borrows: bool
    start: int
    prices: tuple[Fraction, Fraction]
    end: int | None = None
    boots: list[int] = field(default_factory=lambda: [0])
    reported: list[tuple[int, int, frozenset[int]]] = field(default_factory=list)
    node: str = ""
    alive: int = 0

    def total(self, instant: int) -> tuple[int, frozenset[int]]:
        """Returns the money that was reported before an instant, and the devices that were named."""
        before = [found for found in self.reported if found[0] < instant]
        return before[-1][1:] if before else (0, frozenset())

    def rates(self, percent: int) -> list[int]:
        """Returns the rate of each of its GPUs by the prices when it started, in microGPU-seconds a second."""
        return [rate(percent or FLOOR, price) for price in self.prices]


class Use(NamedTuple):
    """A report's figures of one device: nanoseconds of GPU time, nanoseconds with memory held, and memory in MiB."""

    busy: int
    span: int = 0
    memory_mib: int = 0


class Stretch(NamedTuple):
    """A stretch of a pod's time, from `start` to before `end`; reports count in it if received before `received`.

    Reports that come after a pod's end count as received at its end.
    """

    start: int
    end: int
    received: int


def rate(percent: int, price: Fraction) -> int:
    """Returns the rate of a share of a GPU, in microGPU-seconds a second, rounded up."""
    return -(-GPU_SECOND * percent * price // 100)


class BillingModel:
    """The prices, pods and reports of a test, and the cost of the pods that follows from them."""

    def __init__(self, bill: Bill) -> None:
        self.bill = bill
        self.pods: dict[str, Pod] = {}
        self.configured: list[tuple[int, PriceList]] = [(0, {})]
        """The settings' prices, each from the instant on at which a leader first read them."""
        self.silent: dict[str, int] = {}
        """The nodes that nothing is heard of, and the last sign of life of each."""

    def reprice(self, now: int, prices: PriceList) -> None:
        """Replaces the prices from now on; amounts that were charged stay."""
        self.configured.append((now, prices))

    def price(self, model: str, instant: int) -> Fraction:
        """Returns the price of a model at an instant: its own, else that of all others, else 1."""
        prices = [prices for since, prices in self.configured if since <= instant][-1]
        for name in (model, "*"):
            known = [price for since, price in prices.get(name, ()) if since <= instant]
            if known:
                return known[-1]
        return Fraction(1)

    def start(
        self, uid: str, namespace: str, percent: int, models: tuple[str, str], start: int, *, borrows: bool, node: str
    ) -> None:
        """Adds a pod that is bound to two GPUs at `start`, and reserves `percent` of each; 0 is a best-effort share."""
        prices = self.price(models[0], start), self.price(models[1], start)
        self.pods[uid] = Pod(namespace, percent, models, borrows or not percent, start, prices, node=node)

    def alive_until(self, pod: Pod, now: int) -> int:
        """Returns the time up to which a pod is known to run: now, or the last sign of life if its node is silent."""
        if pod.node not in self.silent:
            return now
        return max(pod.start, min(max(self.silent[pod.node], pod.alive), now))

    def report(self, pod: Pod, at: int, boot: int, used: Mapping[int, Use]) -> None:
        """Takes a report from one start of a pod's sidecar.

        Args:
            at: the time of the report, in nanoseconds.
            boot: the index of the start of the sidecar.
            used: the use that this start has measured so far, keyed by device.
        """
        last_at, last, named = pod.reported[-1] if pod.reported else (0, 0, frozenset[int]())
        at = max(at, last_at)
        age = max(at - pod.start, 0)
        worth = Fraction(0)
        for device, (busy, span, memory) in used.items():
            occupied = Fraction(min(span, age) * min(memory, WHOLE_MIB), WHOLE_MIB)
            worth += max(Fraction(min(busy, age)), occupied) * pod.prices[device]
        grown = max(int(worth / 1000) - pod.boots[boot], 0)
        pod.boots[boot] += grown
        if named | used.keys():
            most = int(age * sum(pod.prices) / 1000)
            pod.reported.append((at, min(last + grown, most), named | used.keys()))

    def reserved(self, pod: Pod, low: int, high: int) -> int:
        """Returns the cost of a stretch of a pod's time by its reservation."""
        changes = {since for since, _ in self.configured}
        changes |= {since for _, prices in self.configured for points in prices.values() for since, _ in points}
        rates: list[tuple[int, int]] = []
        for moment in [low, *sorted(change for change in changes if low < change < high)]:
            found = sum(rate(pod.percent or FLOOR, self.price(model, moment)) for model in pod.models)
            if not rates or rates[-1][1] != found:
                rates.append((moment, found))
        ends = [*(since for since, _ in rates[1:]), high]
        return sum(found * (end - since) // SECOND for (since, found), end in zip(rates, ends, strict=True))

    def cost(self, pod: Pod, stretches: Sequence[Stretch]) -> int:
        """Returns the cost of a pod in one period of one account."""
        reserved = sum(self.reserved(pod, stretch.start, stretch.end) for stretch in stretches)
        named: frozenset[int] = frozenset()
        used = 0
        for low, _, until in stretches:
            after, named = pod.total(until)
            used += after - (pod.total(low)[0] if low > pod.start else 0)
        if self.bill is Bill.RESERVED or not named:
            return reserved
        own = pod.rates(pod.percent)
        used += reserved * sum(each for device, each in enumerate(own) if device not in named) // sum(own)
        ceiling = reserved * sum(pod.rates(100)) // sum(own) if pod.borrows else reserved
        used = min(used, ceiling)
        return used if self.bill is Bill.USED else max(used, reserved)

    def expected(
        self, payers: Mapping[str, Payers], periods: Mapping[str, Periods], now: int
    ) -> dict[Key, dict[str, int]]:
        """Returns the cost of each pod in each period of each account up to an instant."""
        found: dict[tuple[Key, str], list[Stretch]] = {}
        for uid, pod in self.pods.items():
            end = self.alive_until(pod, now) if pod.end is None else pod.end
            moves = payers[pod.namespace]
            payer = next((account for since, account in reversed(moves) if since <= end), moves[0][1])
            present = payer, next((start for start, until in periods[payer] if start <= end < until), 0)
            for index, (since, account) in enumerate(moves):
                until = min(moves[index + 1][0] if index + 1 < len(moves) else end, end)
                first = max(pod.start, since if index else 0)
                for start, stop in periods[account]:
                    low, high = max(first, start), min(until, stop)
                    if low < high:
                        stays = pod.end is None and high == end and (account, start) == present
                        received = 1 << 62 if high == pod.end else high + stays
                        found.setdefault(((account, start), uid), []).append(Stretch(low, high, received))
        costs: dict[Key, dict[str, int]] = {}
        for (key, uid), stretches in found.items():
            costs.setdefault(key, {})[uid] = self.cost(self.pods[uid], stretches)
        return costs
