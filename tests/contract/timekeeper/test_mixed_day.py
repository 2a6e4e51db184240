"""A day of every stack: 2,000 pods and shared claims while nodes change, against a bill that was computed apart."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from fractions import Fraction
from random import Random
from typing import Any

from tests.support.ledger.audited import audited, write_statuses
from tests.support.ledger.harness import MONTH, NOON, LedgerHarness
from tests.support.ledger.plain_bill import PlainBill, nanoseconds
from tests.support.other_stacks import A100, GPU, OWN_LINE, STACKS, Asking, Stack
from tests.support.randomness import chance
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.money import SECOND
from timekeeper.domain.pricing import BY_WORDS, PricePoint
from timekeeper.domain.timestamps import format_instant
from timekeeper.ledger import reading

PODS = 2000
ROUND_SECONDS = 300
ROUNDS = 288
TEAMS = tuple(f"team-{letter}" for letter in "abcde")
PRICES = {
    "*": Fraction(1),
    "A100": Fraction(4),
    "H100": Fraction(13, 2),
    "T4": Fraction(1, 3),
    "MI300X": Fraction(5),
    "910B3": Fraction(7, 5),
}
RULES = ControllerRules(
    prices={key: (PricePoint(0, price),) for key, price in PRICES.items()} | {BY_WORDS: (PricePoint(0, Fraction(1)),)},
    own_resources={"example.com/npu": Listed("own", OWN_LINE["parts"], model_labels=tuple(OWN_LINE["model_labels"]))},
)
RELABELLED = (
    {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "16"},
    {"nvidia.com/gpu.product": f"{A100}-SHARED", "nvidia.com/gpu.replicas": "2"},
    {"nvidia.com/gpu.product": f"{A100}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"},
    {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.replicas": "3"},
)
LATE = Stack("late", A100, {GPU: "8"}, {}, {"late": Asking(Fraction(1), ({GPU: "1"},))})
"""A node whose labels come later."""
DEVICES = {f"gpu-{at}": ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")[at % 2] for at in range(8)}


@dataclass
class Day:
    """The cluster's objects as they are now, and who bills them."""

    harness: LedgerHarness
    random: Random
    bill: PlainBill
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def stamp(self) -> str:
        """An instant since the last round, in whole seconds as the API server writes it."""
        return format_instant(self.harness.now - self.random.randrange(ROUND_SECONDS) * SECOND)

    def set_node(self, stack: Stack, **changes: Any) -> None:
        """Writes a node as its plugins do now."""
        now = replace(stack, **changes)
        metadata = {"name": stack.name, "uid": stack.name, "labels": now.labels, "annotations": now.annotations}
        self.nodes[stack.name] = {"metadata": metadata, "status": {"capacity": now.capacity}}
        self._write("nodes", stack.name, self.nodes[stack.name])

    def create(self, node: str, asking: Asking, **spec: Any) -> str:
        """Creates a pod that was bound since the last round."""
        uid, stamp = f"pod-{self.made}", self.stamp()
        self.made += 1
        limits = [{"name": f"c{at}", "resources": {"limits": each}} for at, each in enumerate(asking.limits)]
        self.pods[uid] = {
            "metadata": {
                "uid": uid,
                "name": uid,
                "namespace": self.random.choice(TEAMS),
                "creationTimestamp": stamp,
                "annotations": dict(asking.annotations),
                "labels": dict(asking.labels),
            },
            "spec": {"nodeName": node, "containers": limits, "schedulerName": asking.scheduler, **spec},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
            },
        }
        self.harness.write_pod(self.pods[uid])
        return uid

    def finish(self, uid: str) -> None:
        """A pod's containers ended since the last round, and after it was bound."""
        bound = nanoseconds(self.pods[uid]["status"]["conditions"][0]["lastTransitionTime"])
        end = max(nanoseconds(self.stamp()), bound)
        state = {"terminated": {"exitCode": 0, "finishedAt": format_instant(end)}}
        self.pods[uid]["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "c0", "state": state}]}
        self.ends[uid] = end
        self.harness.write_pod(self.pods[uid])

    def remove(self, uid: str) -> None:
        """A pod's object is deleted."""
        del self.pods[uid]
        self.harness.remove(uid)

    def strip(self, uid: str) -> None:
        """Somebody removes what a scheduler wrote on a pod that runs."""
        if uid in self.bill.lines:
            self.pods[uid]["metadata"]["annotations"] = {}
            self.harness.write_pod(self.pods[uid])

    def set_claim(self, uid: str, devices: list[str], pods: list[str]) -> None:
        """Writes a claim as scheduler and controller leave it."""
        found = [{"driver": "gpu.nvidia.com", "pool": "dra", "device": device} for device in devices]
        status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]}
        if found:
            status["allocation"] = {"devices": {"results": found}}
        metadata = {"uid": uid, "name": uid, "namespace": "team-a", "creationTimestamp": format_instant(NOON)}
        self.claims[uid] = {"metadata": metadata, "status": status}
        self._write("claims", uid, self.claims[uid])

    def look(self, *, new_leader: bool = False) -> None:
        """Shows the present state to both; a new leader has seen no deletion since the last round."""
        if new_leader:
            self.harness.lead(RULES)
        watched = self.harness.now
        self.harness.round(ROUND_SECONDS)
        seen = copy.deepcopy(self.pods)
        self.bill.see(self.harness.now, seen, self.nodes, watched if new_leader else self.harness.now)
        self.bill.see_claims(self.harness.now, self.claims, seen, DEVICES)

    def _write(self, kind: str, name: str, item: dict[str, Any]) -> None:
        (self.harness.folder / kind).mkdir(exist_ok=True)
        beside = self.harness.folder / f".{name}.new"
        beside.write_text(json.dumps(item))
        beside.replace(self.harness.folder / kind / f"{name}.json")


def begin(harness: LedgerHarness, random: Random) -> Day:
    """A cluster with one node of each stack, whose metering begins now."""
    for team in TEAMS:
        harness.budget(team, [team], gpu_hours=100_000)
    day = Day(harness, random, PlainBill(NOON))
    for stack in STACKS:
        day.set_node(stack)
    devices = [{"name": name, "attributes": {"productName": {"string": model}}} for name, model in DEVICES.items()]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "dra", "pool": {"name": "dra", "generation": 1}, "devices": devices}
    day._write("slices", "dra", {"metadata": {"name": "dra", "uid": "dra"}, "spec": spec})
    day.nodes["dra"] = {"metadata": {"name": "dra", "labels": {}}, "status": {"capacity": {}}}
    harness.lead(RULES)
    harness.round()
    return day


def change_nodes(day: Day, number: int) -> None:
    """Relabels a node, lays out MIG anew, changes replicas, adds nodes whose labels come later."""
    random = day.random
    if number % 3 == 0:
        stack = random.choice([stack for stack in STACKS if stack.name in {"nvidia-whole", "nvidia-sliced"}])
        day.set_node(stack, labels=random.choice(RELABELLED))
    if number % 7 == 0:
        mixed = next(stack for stack in STACKS if stack.name == "nvidia-mixed")
        product = random.choice([A100, "NVIDIA-H100-80GB-HBM3", "NVIDIA-A30"])
        day.set_node(mixed, labels={**mixed.labels, "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": ""})
    if number % 5 == 0:
        intel = next(stack for stack in STACKS if stack.name == "intel")
        day.set_node(intel, capacity={"gpu.intel.com/i915": random.choice(["4", "8", "16"])})
    if number % 12 == 0:
        day.set_node(LATE)
    if number % 12 == random.choice([1, 2, 3, 4]):
        day.set_node(LATE, labels={"nvidia.com/gpu.product": A100})


def change_pods(day: Day) -> None:
    """Creates, finishes and deletes pods, and takes away what was written on some."""
    random = day.random
    for uid in [uid for uid in day.pods if uid not in day.ends and random.random() < 0.12]:
        if "resourceClaims" not in day.pods[uid]["spec"]:
            day.finish(uid)
    for uid in [uid for uid in day.ends if uid in day.pods and random.random() < 0.3]:
        if "resourceClaims" not in day.pods[uid]["spec"]:
            day.remove(uid)
    for uid in [uid for uid in day.pods if uid not in day.ends and uid in day.bill.lines and random.random() < 0.01]:
        random.choice([day.remove, day.strip])(uid)
    for _ in range(min(random.randint(4, 12), PODS - day.made)):
        stack = random.choice([*STACKS, LATE])
        if stack.name in day.nodes:
            name = random.choice(sorted(stack.pods))
            uid = day.create(stack.name, stack.pods[name])
            if random.random() < 0.05:
                day.finish(uid)  # it ended before anybody saw it


def share_claim(day: Day, number: int, users: list[str]) -> None:
    """Three pods share a claim in turn: each comes before the one before it ends; then the claim is freed."""
    uid, step = f"claim-{number // 8}", number % 8
    if step < 3:
        claiming = Asking(Fraction(0), ({},))
        users.append(day.create("dra", claiming, resourceClaims=[{"name": "gpu"}]))
        if step:
            day.finish(users[-2])
        devices = [f"gpu-{number // 8 % 4}", f"gpu-{4 + number // 8 % 4}"]
        day.set_claim(uid, devices, users[-2:])
    elif step == 5:
        day.finish(users[-1])
        day.set_claim(uid, [], [])
        day.bill.free(uid, [day.ends[users[-1]]])


def test_the_bill_of_a_mixed_day_is_that_of_a_computation_apart(harness: LedgerHarness) -> None:
    day = begin(harness, chance(16))
    users: list[str] = []
    for number in range(ROUNDS):
        change_nodes(day, number)
        change_pods(day)
        share_claim(day, number, users)
        day.look(new_leader=number in {60, 200})
    while day.made < PODS:
        change_pods(day)
        day.look()

    stored = {team: reading.stored_amounts(harness.client, team, MONTH) for team in TEAMS}
    charged = {uid: found.amount for amounts in stored.values() for uid, found in amounts.items()}
    expected = {uid: line.cost(PRICES, harness.now) for uid, line in day.bill.lines.items()}
    of_claims = {uid.rsplit("-", 2)[0]: amount for uid, amount in charged.items() if uid.startswith("claim-")}
    charged = {uid: amount for uid, amount in charged.items() if not uid.startswith("claim-")} | of_claims

    assert day.made >= PODS
    assert len(of_claims) == ROUNDS // 8
    assert {uid: (charged.get(uid, 0), cost) for uid, cost in expected.items() if charged.get(uid, 0) != cost} == {}
    assert charged.keys() <= expected.keys()
    assert sum(harness.spent(team) for team in TEAMS) == sum(expected.values())
    write_statuses(harness)
    assert audited(harness).differences == ()
