"""A day of every stack: 2,000 pods and claims of each kind while nodes change, against a bill computed apart."""

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
LAYOUTS = (
    {"nvidia.com/mig-3g.40gb": "2", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-1g.10gb.me": "1"},
    {"nvidia.com/mig-1g.10gb": "14"},
    {"nvidia.com/mig-3g.40gb": "4"},
)
"""The resources that a node offers, for each layout of MIG on its GPUs."""
CLOUD = {"node.kubernetes.io/instance-type": "g5.12xlarge"}
LATE = Stack("late", A100, {GPU: "8"}, {}, {"late": Asking(Fraction(1), ({GPU: "1"},))})
"""A node whose labels come later."""
LATE_OF_CLOUD = Stack("late-of-cloud", "", {GPU: "8"}, CLOUD, {"late": Asking(Fraction(1), ({GPU: "1"},))})
"""One whose model its cloud names at once; how its GPUs are shared comes later."""


def slice_of(pool: str, devices: list[dict[str, Any]], driver: str = "gpu.nvidia.com", **spec: Any) -> dict[str, Any]:
    """A ResourceSlice as a driver publishes it."""
    named = {"driver": driver, "nodeName": "dra", "pool": {"name": pool, "generation": 1}, "devices": devices}
    return {"metadata": {"name": pool, "uid": pool}, "spec": {**named, **spec}}


def device(name: str, model: str, **more: Any) -> dict[str, Any]:
    """A device of such a slice."""
    return {"name": name, "attributes": {"productName": {"string": model}}, **more}


def counters(memory: str, multiprocessors: str) -> dict[str, Any]:
    """The counters of a GPU, or those that a partition consumes of them."""
    return {"memory": {"value": memory}, "multiprocessors": {"value": multiprocessors}}


A100_BY_DRIVER, H100_BY_DRIVER = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
PARTITION = {"name": "cpx-0", "attributes": {"productName": {"string": "MI300X"}}}
PARTITION["attributes"]["partitionProfile"] = {"string": "cpx_nps4"}  # type: ignore[index]
TAKEN = {"counterSet": "gpu", "counters": counters("40Gi", "42")}
SLICES = (
    slice_of("dra", [device(f"gpu-{at}", (A100_BY_DRIVER, H100_BY_DRIVER)[at % 2]) for at in range(8)]),
    slice_of(
        "mig",
        [device("mig-0", A100_BY_DRIVER, consumesCounters=[TAKEN])],
        sharedCounters=[{"name": "gpu", "counters": counters("80Gi", "98")}],
    ),
    slice_of(
        "shared",
        [device("gpu-0", H100_BY_DRIVER, allowMultipleAllocations=True, capacity={"memory": {"value": "80Gi"}})],
    ),
    slice_of("amd", [PARTITION], "gpu.amd.com"),
    slice_of("cards", [{"name": "eth1"}], "dra.net"),
)
WAYS_OF_CLAIMS: dict[str, dict[str, Any]] = {
    "partition": {"driver": "gpu.nvidia.com", "pool": "mig", "device": "mig-0"},
    "share": {
        "driver": "gpu.nvidia.com",
        "pool": "shared",
        "device": "gpu-0",
        "shareID": "one",
        "consumedCapacity": {"memory": "20Gi"},
    },
    "xcd": {"driver": "gpu.amd.com", "pool": "amd", "device": "cpx-0"},
    "extended": {"driver": "gpu.nvidia.com", "pool": "dra", "device": "gpu-1"},
    "idle": {"driver": "gpu.nvidia.com", "pool": "dra", "device": "gpu-0"},
    "watcher": {"driver": "gpu.nvidia.com", "pool": "dra", "device": "gpu-0", "adminAccess": True},
    "card": {"driver": "dra.net", "pool": "cards", "device": "eth1"},
}
"""The device of each claim: no pod reserves `idle`, `extended` is for a pod's limits, and the last two cost nothing."""
FREE = {"watcher", "card"}


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

    def set_claim(self, uid: str, devices: list[dict[str, Any]], pods: list[str], namespace: str = "team-a") -> None:
        """Writes a claim as scheduler and controller leave it."""
        status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]}
        if devices:
            status["allocation"] = {"devices": {"results": devices}}
        metadata = {"uid": uid, "name": uid, "namespace": namespace, "creationTimestamp": format_instant(NOON)}
        self.claims[uid] = {"metadata": metadata, "status": status}
        self._write("claims", uid, self.claims[uid])

    def look(self, *, new_leader: bool = False) -> None:
        """Shows the present state to both; a new leader has seen no deletion since the last round."""
        if new_leader:
            self.harness.lead(RULES)
        watched = self.harness.now
        self.harness.reconcile(ROUND_SECONDS)
        seen = copy.deepcopy(self.pods)
        self.bill.see(self.harness.now, seen, self.nodes, watched if new_leader else self.harness.now)
        self.bill.see_claims(self.harness.now, self.claims, seen, SLICES)

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
    for item in SLICES:
        day._write("slices", item["metadata"]["name"], item)
    day.nodes["dra"] = {"metadata": {"name": "dra", "labels": {}}, "status": {"capacity": {}}}
    harness.lead(RULES)
    harness.reconcile()
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
        labels = {**mixed.labels, "nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": ""}
        day.set_node(mixed, labels=labels, capacity=random.choice(LAYOUTS))
    if number % 5 == 0:
        intel = next(stack for stack in STACKS if stack.name == "intel")
        day.set_node(intel, capacity={"gpu.intel.com/i915": random.choice(["4", "8", "16"])})
    if number % 12 == 0:
        day.set_node(LATE)
        day.set_node(LATE_OF_CLOUD)
    if number % 12 == random.choice([1, 2, 3, 4]):
        day.set_node(LATE, labels={"nvidia.com/gpu.product": A100})
    if number % 12 == random.choice([1, 2, 3, 4]):
        discovered = {"nvidia.com/gpu.product": "NVIDIA-A10G-SHARED", "nvidia.com/gpu.replicas": "4"}
        day.set_node(LATE_OF_CLOUD, labels=CLOUD | discovered)


def change_pods(day: Day) -> None:
    """Creates, finishes and deletes pods, and takes away what was written on some."""
    random = day.random
    for uid in [uid for uid in day.pods if uid not in day.ends and random.random() < 0.12]:
        if day.pods[uid]["spec"]["nodeName"] != "dra":
            day.finish(uid)
    for uid in [uid for uid in day.ends if uid in day.pods and random.random() < 0.3]:
        if day.pods[uid]["spec"]["nodeName"] != "dra":
            day.remove(uid)
    for uid in [uid for uid in day.pods if uid not in day.ends and uid in day.bill.lines and random.random() < 0.01]:
        random.choice([day.remove, day.strip])(uid)
    for _ in range(min(random.randint(4, 12), PODS - day.made)):
        stack = random.choice([*STACKS, LATE, LATE_OF_CLOUD])
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
        names = (f"gpu-{number // 8 % 4}", f"gpu-{4 + number // 8 % 4}")
        day.set_claim(uid, [{"driver": "gpu.nvidia.com", "pool": "dra", "device": name} for name in names], users[-2:])
    elif step == 5:
        day.finish(users[-1])
        day.set_claim(uid, [], [])
        day.bill.free(uid, [day.ends[users[-1]]])


def claim_each_way(day: Day, number: int, users: dict[str, str]) -> list[str]:
    """A claim for each kind of device in turn, for some rounds; returns those that are freed and had no pod."""
    way, step = list(WAYS_OF_CLAIMS)[number // 4 % len(WAYS_OF_CLAIMS)], number % 4
    uid = f"claim-{way}-{number // 4}"
    if step == 0:
        asking = Asking(Fraction(0), ({GPU: "1"} if way == "extended" else {},))
        spec = {} if way == "extended" else {"resourceClaims": [{"name": "gpu"}]}
        users[uid] = day.create("dra", asking, **spec)
        pod = day.pods[users[uid]]
        if way == "extended":
            mappings = [{"containerName": "c0", "requestName": "container-0-request-0", "resourceName": GPU}]
            pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": uid, "requestMappings": mappings}
            day.harness.write_pod(pod)
        reserving = [] if way == "idle" else [users[uid]]
        day.set_claim(uid, [WAYS_OF_CLAIMS[way]], reserving, pod["metadata"]["namespace"])
    elif step == 3:
        day.finish(users[uid])
        day.set_claim(uid, [], [], day.claims[uid]["metadata"]["namespace"])
        if way == "idle":
            return [uid]
        if way not in FREE:
            day.bill.free(uid, [day.ends[users[uid]]])
    return []


def test_the_bill_of_a_mixed_day_is_that_of_a_computation_apart(harness: LedgerHarness) -> None:
    day = begin(harness, chance(16))
    users: list[str] = []
    users_of: dict[str, str] = {}
    for number in range(ROUNDS):
        change_nodes(day, number)
        change_pods(day)
        share_claim(day, number, users)
        freed = claim_each_way(day, number, users_of)
        day.look(new_leader=number in {60, 200})
        for uid in freed:  # nothing but its deallocation ends a claim that no pod had
            day.bill.free(uid, [harness.now])
    while day.made < PODS:
        change_pods(day)
        day.look()

    stored = {team: reading.stored_amounts(harness.client, team, MONTH) for team in TEAMS}
    charged = {uid: found.amount for amounts in stored.values() for uid, found in amounts.items()}
    expected = {uid: line.cost(PRICES, harness.now) for uid, line in day.bill.lines.items()}
    of_claims = {uid.rsplit("-", 2)[0]: amount for uid, amount in charged.items() if uid.startswith("claim-")}
    charged = {uid: amount for uid, amount in charged.items() if not uid.startswith("claim-")} | of_claims

    assert day.made >= PODS
    assert len(of_claims) == ROUNDS // 8 + sum(uid.split("-")[1] not in FREE for uid in users_of)
    assert not [uid for uid in charged if uid in users_of.values()]
    assert {uid: (charged.get(uid, 0), cost) for uid, cost in expected.items() if charged.get(uid, 0) != cost} == {}
    assert charged.keys() <= expected.keys()
    assert sum(harness.spent(team) for team in TEAMS) == sum(expected.values())
    write_statuses(harness)
    assert audited(harness).differences == ()
