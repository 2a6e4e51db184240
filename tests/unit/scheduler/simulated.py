"""A cluster in memory: an API server, kube-scheduler with its queue, and a replica of the scheduler, by one clock.

The API server's answers get lost at random, and both watches lag behind it, each by itself, until `calm` is called.
kube-scheduler is modelled by what the extender depends on: it asks about pods in the order of their priority, names
the nodes with enough left in sum, counts a pod to its node from filter's answer on, and asks again about a pod that
fitted nowhere only after an event that its own plugins wait for. The real one also asks after five minutes; the model
does not, so that a pod that nothing wakes is found.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import ApiError
from fairgpu.states import BudgetState, NamespaceState, StatesDocument
from scheduler.cluster.earmarks import decode
from scheduler.cluster.eligible import Site
from scheduler.cluster.gang_pods import Hold
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import State
from scheduler.extender.binding import GIVE_UP_SECONDS, BindError, Clock, bind, settle
from scheduler.extender.waking import LOOK_SECONDS, Conditions, keep_waking
from scheduler.extender.wire import BindArguments
from scheduler.gangs.holding import arrive
from scheduler.measures import Measures
from scheduler.reclaim.reclaimer import Clocks, Reclaimer
from scheduler.settings import ReclaimSettings
from tests.unit.scheduler.extended import ALLOCATION, ask, pod
from tests.unit.scheduler.fleets import node

EARMARK, PLACEABLE = "fairgpu.io/earmark", "fairgpu.io/Placeable"
SILENT = ApiError(0, "Unanswered", "read timed out")
EPOCH = 1_700_000_000.0
TICK_SECONDS = 0.5
Item = dict[str, Any]


class ApiServer:
    """Pods by name, and the log of all their changes. While it is `faulty`, some requests fail or get no answer."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pods: dict[str, Item] = {}
        self.log: list[tuple[str, Item]] = []
        self.now = 1000.0
        self.faulty = True
        self.leaving: dict[str, float] = {}
        """When the kubelet has ended each deleted pod."""
        self.ending: dict[str, float] = {}
        """When each pod that runs has done its work, by uid; some pods run for ever."""
        self.ends = True

    def fails(self, chance: float) -> bool:
        return self.faulty and self.random.random() < chance

    def note(self, kind: str, name: str) -> None:
        self.log.append((kind, copy.deepcopy(self.pods[name])))

    def stamp(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def named(self, name: str, uid: str) -> Item:
        """Returns the pod of this name and uid.

        Raises:
            ApiError: it is not there.
        """
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        if self.pods[name]["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "another uid")
        return self.pods[name]

    def get(self, path: str) -> Item:
        """Returns a pod."""
        name = path.rpartition("/")[2]
        if self.fails(0.1):
            raise SILENT
        if name not in self.pods:
            raise ApiError(404, "NotFound", name)
        return copy.deepcopy(self.pods[name])

    def create(self, path: str, body: Item, _query: Any = None) -> Item:
        """Takes an Event, an Eviction or a Binding."""
        name = path.split("/")[-2]
        if body["kind"] == "Eviction":
            if self.fails(0.2):
                raise ApiError(429, "TooManyRequests", "a disruption budget")
            self.named(name, body["deleteOptions"]["preconditions"]["uid"])
            self.delete(name)
        elif body["kind"] == "Binding":
            if self.fails(0.1):
                raise self.random.choice([SILENT, ApiError(500, "Error", "no"), ApiError(403, "Forbidden", "no")])
            self.bind(name, body)
            if self.fails(0.05):
                raise SILENT
        return {}

    def bind(self, name: str, body: Item) -> None:
        """Binds a pod.

        Raises:
            ApiError: it is gone, leaving or bound.
        """
        item = self.named(name, body["metadata"]["uid"])
        if item["metadata"].get("deletionTimestamp") or item["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", name)
        item["spec"]["nodeName"] = body["target"]["name"]
        item["metadata"]["annotations"] |= body["metadata"]["annotations"]
        self.condition(item, {"type": "PodScheduled", "status": "True", "lastTransitionTime": self.stamp()})
        self.note("MODIFIED", name)
        if self.ends and self.random.random() < 0.7:
            self.ending[item["metadata"]["uid"]] = self.now + self.random.choice([5, 20, 60, 200])

    def patch(self, path: str, body: Item, _content_type: str) -> Item:
        """Patches annotations and conditions of a pod."""
        name, before = path.split("/")[-2], len(self.log)
        if self.fails(0.1):
            raise self.random.choice([SILENT, ApiError(500, "Error", "no")])
        item = self.named(name, body["metadata"]["uid"])
        known = copy.deepcopy(item)
        written = item["metadata"]["annotations"] | body["metadata"].get("annotations", {})
        item["metadata"]["annotations"] = {key: value for key, value in written.items() if value is not None}
        for one in body.get("status", {}).get("conditions", []):
            self.condition(item, one)
        if item != known and len(self.log) == before:
            self.note("MODIFIED", name)
        return item

    def condition(self, item: Item, condition: Item) -> None:
        kept = [one for one in item["status"].get("conditions", []) if one["type"] != condition["type"]]
        item["status"]["conditions"] = [*kept, condition]

    def delete(self, name: str) -> None:
        """Deletes a pod: at once, or, if it runs, some time later."""
        item = self.pods[name]
        if item["metadata"].get("deletionTimestamp"):
            return
        if item["spec"].get("nodeName"):
            item["metadata"]["deletionTimestamp"] = self.stamp()
            self.leaving[name] = self.now + self.random.choice([0.5, 2, 30])
            self.note("MODIFIED", name)
        else:
            self.remove(name)

    def remove(self, name: str) -> None:
        self.note("DELETED", name)
        del self.pods[name]
        self.leaving.pop(name, None)

    def end(self, name: str, phase: str) -> None:
        self.pods[name]["status"]["phase"] = phase
        self.note("MODIFIED", name)

    def kubelets(self) -> None:
        """Ends the pods that have done their work by now, and removes the deleted ones that have ended."""
        for name, item in list(self.pods.items()):
            if runs(item) and self.ending.get(item["metadata"]["uid"], self.now + 1) <= self.now:
                self.end(name, "Succeeded")
            tidied = bool(item["status"].get("phase")) and self.random.random() < 0.05
            if tidied or self.leaving.get(name, self.now + 1) <= self.now:
                self.remove(name)


class Machines:
    """The nodes, each with some GPUs, of which one may be fenced.

    Attributes:
        gpus: the number of GPUs of each node.
        fenced, cordoned, gone: the names of the nodes whose first GPU is fenced, that take no new pods, and that the
            API server has not.
    """

    def __init__(self, gpus: dict[str, int]) -> None:
        self.gpus = gpus
        self.fenced: set[str] = set()
        self.cordoned: set[str] = set()
        self.gone: set[str] = set()

    def show(self, state: State, name: str) -> None:
        """The watch shows a node as it is."""
        if name in self.gone:
            state.remove_site(name)
            state.remove_node(name)
            return
        state.put_site(Site(name, {"name": name}, (), name in self.cordoned, 50))
        state.put_node(node(name, self.gpus[name], fenced=(0,) if name in self.fenced else ()))

    def open_to(self, item: Item) -> list[str]:
        wanted = item["spec"].get("nodeSelector", {}).get("name")
        there = [name for name in self.gpus if name not in self.gone | self.cordoned]
        return [name for name in there if wanted in (None, name)]


def runs(item: Item) -> bool:
    return bool(item["spec"].get("nodeName")) and not item["status"].get("phase")


def waits(item: Item) -> bool:
    status, metadata = item["status"], item["metadata"]
    return not (item["spec"].get("nodeName") or metadata.get("deletionTimestamp") or status.get("phase"))


def core_of(item: Item) -> int:
    return int(item["spec"]["containers"][0]["resources"]["limits"]["fairgpu.io/gpu-core"])


def devices_of(item: Item) -> list[Item]:
    """Returns the parts of devices that a bound pod holds."""
    document = json.loads(item["metadata"]["annotations"][ALLOCATION])
    return [device for one in document["containers"] for device in one["devices"]]


class KubeScheduler:
    """The real scheduler as the extender meets it: its view of pods, its queue, and the pods that it counts to nodes.

    Attributes:
        known: the pods as its watch has shown them.
        active: the names of the pods to ask about next.
        waiting: the names of the pods that fitted nowhere.
        later: the pods whose bind failed, and when they are asked about again.
        counted: the uid and the node of each pod that it is binding.
        binding: the pods whose bind waits for their gang.
    """

    def __init__(self, api: ApiServer, machines: Machines) -> None:
        self.api, self.machines = api, machines
        self.read = 0
        self.known: dict[str, Item] = {}
        self.active: list[str] = []
        self.waiting: set[str] = set()
        self.later: dict[str, float] = {}
        self.counted: dict[str, tuple[str, str]] = {}
        self.binding: list[tuple[Item, str, Hold]] = []

    def catch_up(self, count: int) -> None:
        """Its watch shows the next changes."""
        for kind, item in self.api.log[self.read : self.read + count]:
            self.see(kind, item)
        self.read += count

    def see(self, kind: str, item: Item) -> None:
        name, before = item["metadata"]["name"], self.known.get(item["metadata"]["name"])
        self.known[name] = item
        if kind == "DELETED":
            del self.known[name]
        if kind == "DELETED" or not waits(item):
            self.drop(name)
            if item["status"].get("phase") or (kind == "DELETED" and item["spec"].get("nodeName")):
                self.ask_all()
        elif before is None or before["metadata"]["uid"] != item["metadata"]["uid"]:
            self.drop(name)
            self.active.append(name)
        elif name in self.waiting and shown(before) != shown(item):
            self.waiting.remove(name)
            self.active.append(name)

    def drop(self, name: str) -> None:
        self.waiting.discard(name)
        self.later.pop(name, None)
        self.counted.pop(name, None)
        self.active = [one for one in self.active if one != name]

    def ask_all(self) -> None:
        """Queues all pods that fitted nowhere."""
        self.active += sorted(self.waiting)
        self.waiting.clear()

    def with_room(self, item: Item) -> list[str]:
        """Returns the nodes that may take a pod and have as much left, in sum, as it asks for."""
        used = Counter[str]()
        for name, other in self.known.items():
            on = other["spec"].get("nodeName") or self.counted.get(name, ("", ""))[1]
            used[on] += 0 if other["status"].get("phase") else core_of(other)
        # The device plugin takes a fenced GPU from what the node offers, but for what pods hold of it.
        for name in self.machines.fenced:
            on = [device for other in self.api.pods.values() if runs(other) for device in devices_of(other)]
            used[name] += 100 - sum(device["core"] for device in on if device["uuid"] == f"{name}-0")
        nodes = self.machines.open_to(item)
        return [name for name in nodes if used[name] + core_of(item) <= 100 * self.machines.gpus[name]]

    def schedule(self, state: State) -> None:
        """Asks about some pods, and binds those that have a node."""
        now = self.api.now
        self.active += [name for name, at in self.later.items() if at <= now]
        self.later = {name: at for name, at in self.later.items() if at > now}
        for _ in range(self.api.random.randint(1, 6)):
            asked = [name for name in self.active if name in self.known and name not in self.counted]
            if not asked:
                return
            self.ask_about(state, min(asked, key=self.place))

    def place(self, name: str) -> tuple[int, str, str]:
        item = self.known[name]
        return -item["spec"]["priority"], item["metadata"]["creationTimestamp"], item["metadata"]["uid"]

    def ask_about(self, state: State, name: str) -> None:
        item, nodes = self.known[name], self.with_room(self.known[name])
        self.active = [one for one in self.active if one != name]
        found = ask(state, item, self.api.now, nodes).node_names if nodes else []
        if not found:
            self.waiting.add(name)
            self.show_why(name, item)
        elif self.api.fails(0.03):
            # Another plugin refuses the node; the devices stay reserved for a while.
            self.later[name] = self.api.now + self.api.random.choice([1, 40])
        else:
            self.counted[name] = item["metadata"]["uid"], found[0]
            hold = arrive(state, item["metadata"]["uid"], found[0], self.api.now)
            if hold is None:
                self.bind(state, item, found[0])
            else:
                self.binding.append((item, found[0], hold))

    def show_why(self, name: str, item: Item) -> None:
        there = self.api.pods.get(name)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        is_there = there is not None and there["metadata"]["uid"] == item["metadata"]["uid"] and waits(there)
        if there is not None and is_there and condition not in there["status"].get("conditions", []):
            self.api.condition(there, condition)
            self.api.note("MODIFIED", name)

    def bind(self, state: State, item: Item, on: str) -> None:
        """Calls bind; each wait in it takes no time of the cluster's."""
        now, metadata = [self.api.now], item["metadata"]

        def wait(seconds: float) -> bool:
            now[0] += seconds
            return False

        asked = BindArguments(metadata["name"], metadata["namespace"], metadata["uid"], on)
        deadline = now[0] + (self.api.random.choice([1, GIVE_UP_SECONDS]) if self.api.faulty else GIVE_UP_SECONDS)
        try:
            bind(state, self.api, asked, Clock(lambda: now[0], wait), lambda: True, deadline)
        except BindError:
            self.bind_failed(item)

    def bind_failed(self, item: Item) -> None:
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        if self.counted.get(name, ("", ""))[0] == uid:
            del self.counted[name]
        known = self.known.get(name)
        if known is not None and known["metadata"]["uid"] == uid and waits(known):
            self.later[name] = self.api.now + self.api.random.choice([1, 2, 5])
        # A pod that is counted to no node any more is to kube-scheduler as one that has ended.
        self.ask_all()

    def go_on(self, state: State) -> None:
        """Goes on with the binds whose gang has come, or was given up."""
        done = [one for one in self.binding if one[2].outcome.done()]
        self.binding = [one for one in self.binding if not one[2].outcome.done()]
        for item, on, hold in done:
            if hold.outcome.result():
                self.bind_failed(item)
            else:
                self.bind(state, item, on)


def shown(item: Item) -> list[Item]:
    return [one for one in item["status"].get("conditions", []) if one["type"] == PLACEABLE]


class Simulated:
    """The whole: an API server, nodes, kube-scheduler, and one replica of the scheduler with all its loops.

    Attributes:
        state: the replica's state.
        over, held: the namespaces whose budget is spent, and that holds its pods.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.api = ApiServer(random)
        names = [f"n{at}" for at in range(random.randint(1, 4))]
        self.machines = Machines({name: random.choice([1, 2, 4]) for name in names})
        self.kube_scheduler = KubeScheduler(self.api, self.machines)
        self.over: set[str] = set()
        self.held: set[str] = set()
        self.number = 0
        self.left_out: dict[str, set[str]] = {}
        self.restarts = False
        self.state, self.reclaimer, self.read = self.replica()

    def replica(self) -> tuple[State, Reclaimer, int]:
        """A replica that has just read the whole cluster, its reclaimer, and the length of the log at that time."""
        state = State()
        for name in self.machines.gpus:
            self.machines.show(state, name)
        state.listed("nodes")
        state.replace_pods([read_note(copy.deepcopy(item)) for item in self.api.pods.values()])
        state.listed("pods")
        settings = ReclaimSettings(enabled=True, notice_seconds=10, placed_seconds=30, give_up_seconds=100)
        clocks = Clocks(lambda: self.api.now, lambda: EPOCH + self.api.now)
        measures = Measures(CollectorRegistry())
        reclaimer = Reclaimer(state, self.api, settings, clocks, measures, lambda: True)
        self.learn(state)
        return state, reclaimer, len(self.api.log)

    def learn(self, state: State) -> None:
        """The timekeeper publishes the states of budgets."""
        stands = [(name, BudgetState.OVER) for name in self.over] + [(name, BudgetState.HELD) for name in self.held]
        states = tuple(NamespaceState(name, name, stand, 0, 0, 0) for name, stand in stands)
        document = StatesDocument("e.1", True, states, BudgetState.UNLIMITED, {})
        state.budgets.learn_states(document, self.api.now)

    def run(self, ticks: Iterator[None]) -> None:
        """Runs the replica's loop that wakes pods, with all else between its looks, until `ticks` ends."""

        def wait(seconds: float) -> bool:
            if seconds != LOOK_SECONDS:
                return False
            over = next(ticks, self) is self
            return over or self.restarts

        self.restarts = True
        while self.restarts:
            self.restarts = False
            conditions = Conditions(self.api, lambda: True, self.api.stamp, Measures(CollectorRegistry()))
            keep_waking(self.state, conditions, Clock(lambda: self.api.now, wait))

    def tick(self) -> None:
        """Half a second passes."""
        api = self.api
        api.now += TICK_SECONDS
        api.kubelets()
        count = self.lag(len(api.log) - self.read)
        for kind, item in api.log[self.read : self.read + count]:
            if kind == "DELETED":
                self.state.remove_pod(item["metadata"]["uid"])
            else:
                self.state.put_pod(read_note(copy.deepcopy(item)))
        self.read += count
        self.kube_scheduler.catch_up(self.lag(len(api.log) - self.kube_scheduler.read))
        self.kube_scheduler.schedule(self.state)
        self.kube_scheduler.go_on(self.state)
        settle(self.state, api, api.now)
        self.state.budgets.confirmed_at = api.now
        self.reclaimer.step()

    def lag(self, count: int) -> int:
        return self.random.randint(0, count) if self.api.faulty else count

    def calm(self) -> None:
        """From now on no answer is lost, and watches show each change at once."""
        self.api.faulty = False

    def stay(self) -> None:
        """From now on no pod ends by itself."""
        self.api.ends = False
        self.api.ending.clear()

    # Events, drawn at random.

    def act(self) -> None:
        """Lets one thing happen: pods come, go or end; a budget or a node changes; the replica starts anew."""
        drawn = self.random.random()
        for chance, action in (
            (0.45, self.pod_comes),
            (0.25, self.gang_comes),
            (0.10, self.pod_goes),
            (0.09, self.pod_ends),
            (0.05, self.budget_changes),
            (0.04, self.node_changes),
            (0.02, self.replica_restarts),
        ):
            drawn -= chance
            if drawn < 0:
                action()
                return

    def pod_comes(self) -> None:
        core, gpus = self.random.choice([20, 30, 50, 60, 100]), self.random.choice([1, 1, 1, 2])
        self.create(core, gpus, "", self.random.choice(["rich", "spent", "other"]))

    def gang_comes(self) -> None:
        self.number += 1
        count = self.random.choice([2, 2, 3, 4])
        gang, namespace = f"g{self.number}/{count}", self.random.choice(["rich", "spent"])
        core, gpus = self.random.choice([30, 50, 100]), self.random.choice([1, 1, 2])
        for _ in range(count - (self.random.random() < 0.1)):
            self.create(core if self.random.random() < 0.8 else 30, gpus, gang, namespace)

    def create(self, core: int, gpus: int, gang: str, namespace: str) -> None:
        self.number += 1
        name = f"p{self.number}" if self.random.random() < 0.8 else f"again{self.number % 5}"
        if name in self.api.pods:
            return
        changes = {"nodeSelector": {"name": self.random.choice(["n0", "n1"])}} if self.random.random() < 0.15 else {}
        priority = 0 if namespace in self.over else 1000
        item = pod(name, uid=f"u{self.number}", core=core, gpus=gpus, gang=gang, priority=priority, **changes)
        item["metadata"] |= {"namespace": namespace, "creationTimestamp": self.api.stamp()}
        if self.random.random() < 0.15:
            item["metadata"]["annotations"]["fairgpu.io/task-priority"] = "0"
        self.api.pods[name] = item | {"status": {}}
        self.api.note("ADDED", name)

    def pod_goes(self) -> None:
        if self.api.pods:
            self.api.delete(self.random.choice(sorted(self.api.pods)))

    def pod_ends(self) -> None:
        running = sorted(name for name, item in self.api.pods.items() if runs(item))
        if running:
            self.api.end(self.random.choice(running), self.random.choice(["Succeeded", "Failed"]))

    def budget_changes(self) -> None:
        stands, namespace = self.random.choice([self.over, self.held]), self.random.choice(["spent", "spent", "other"])
        stands ^= {namespace}
        self.held -= self.over
        self.learn(self.state)

    def node_changes(self) -> None:
        machines, name = self.machines, self.random.choice(sorted(self.machines.gpus))
        changed = self.random.choice([machines.cordoned, machines.fenced, machines.gone])
        changed ^= {name}
        machines.show(self.state, name)
        self.kube_scheduler.ask_all()

    def replica_restarts(self) -> None:
        """The pod of the scheduler starts anew: kube-scheduler and the extender know what the API server has."""
        self.state, self.reclaimer, self.read = self.replica()
        self.kube_scheduler = KubeScheduler(self.api, self.machines)
        for name in self.api.pods:
            self.kube_scheduler.see("ADDED", copy.deepcopy(self.api.pods[name]))
        self.kube_scheduler.read = len(self.api.log)
        self.restarts = True

    # What must hold at any time.

    def check_devices(self) -> None:
        """No device is given beyond what it has."""
        given = Counter[str]()
        for item in self.api.pods.values():
            for device in devices_of(item) if runs(item) else ():
                given[device["uuid"]] += device["core"]
        assert max(given.values(), default=0) <= 100, given

    def check_plans(self) -> None:
        """No pod is to be evicted on a node on which evictions did not help the same waiting pod."""
        for item in self.api.pods.values():
            text = item["metadata"]["annotations"].get(EARMARK)
            if text and waits(item):
                earmark, before = decode(text), self.left_out.setdefault(item["metadata"]["uid"], set())
                assert earmark.node not in before, item
                before |= set(earmark.left_out)
