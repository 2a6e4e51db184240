"""Whatever two replicas, an API server that falls silent, and pods that come and go do in whatever order, no GPU is
given beyond what it has."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairgpu.cluster.api import ApiError
from scheduler.cluster.earmarks import Earmark, encode
from scheduler.cluster.gang_pods import Hold
from scheduler.cluster.objects import read_note
from scheduler.cluster.state import State
from scheduler.extender.binding import BindError, settle
from scheduler.gangs.holding import arrive, release_overdue
from scheduler.placement.holding import Piece
from tests.unit.scheduler.extended import ALLOCATION, ApiServer, Time, ask, bind_pod, deleted, pod
from tests.unit.scheduler.fleets import node

SILENT = ApiError(0, "Unanswered", "read timed out")
NODES = ("n0", "n1")
ANSWERS = {
    "made": [],
    "refused": [(ApiError(403, "Forbidden", "no"), False)],
    "made in silence": [(SILENT, True)],
    "silence": [(SILENT, False)] * 50,
    "silence, and made at last": [(SILENT, False)] * 5 + [(SILENT, True)] + [(SILENT, False)] * 50,
    "silence, and still under way": [(SILENT, None)] + [(SILENT, False)] * 50,
    "silence, still under way, then refused": [(SILENT, None), (ApiError(403, "Forbidden", "no"), False)],
    "made in silence, then refused": [(SILENT, True), (ApiError(403, "Forbidden", "no"), False)],
}
Event = tuple[str, dict[str, Any]]


class Interleavings(RuleBasedStateMachine):
    """An API server with a log of changes, and two replicas that follow it at their own pace; one of them leads."""

    def __init__(self) -> None:
        super().__init__()
        self.api = ApiServer()
        self.time = Time()
        self.log: list[Event] = []
        self.states = [self.listed(), self.listed()]
        self.read = [0, 0]
        self.leader = 0
        self.number = 0
        self.binding: list[tuple[dict[str, Any], str, Hold, State]] = []

    def listed(self) -> State:
        """A replica that has listed everything."""
        state = State()
        for name in NODES:
            state.put_node(node(name, 2))
        state.listed("nodes")
        state.replace_pods(read_note(item) for item in self.api.pods.values())
        state.listed("pods")
        return state

    def note(self, kind: str, name: str) -> None:
        """The API server sends the event of a change."""
        self.log.append((kind, copy.deepcopy(self.api.pods[name])))

    def catch_up(self, replica: int, count: int) -> None:
        """A replica hears the next changes."""
        for kind, item in self.log[self.read[replica] : self.read[replica] + count]:
            if kind == "DELETED":
                self.states[replica].remove_pod(item["metadata"]["uid"])
            else:
                self.states[replica].put_pod(read_note(item))
        self.read[replica] = min(self.read[replica] + count, len(self.log))

    @rule(
        core=st.sampled_from([10, 30, 50, 60, 100]),
        gpus=st.sampled_from([1, 1, 2]),
        gang=st.sampled_from(["", "", "train/2", "train/3"]),
        anew=st.booleans(),
    )
    def create(self, core: int, gpus: int, gang: str, *, anew: bool) -> None:
        self.number += 1
        name = f"p{self.number % 4}" if anew else f"p{self.number}"
        if name not in self.api.pods:
            self.api.pods[name] = pod(name, uid=f"uid-{self.number}", core=core, gpus=gpus, gang=gang)
            self.note("ADDED", name)

    @precondition(lambda self: self.api.pods)
    @rule(data=st.data(), answer=st.sampled_from(sorted(ANSWERS)), skips=st.booleans(), readable=st.booleans())
    def schedule(self, data: st.DataObject, answer: str, *, skips: bool, readable: bool) -> None:
        """kube-scheduler asks about a pod, and perhaps binds it; it may not have seen yet that it is bound."""
        name = data.draw(st.sampled_from(sorted(self.api.pods)))
        item, state = copy.deepcopy(self.api.pods[name]), self.states[self.leader]
        item["spec"].pop("nodeName", None)
        item["metadata"]["annotations"].pop(ALLOCATION, None)
        found = ask(state, item, self.time.now, list(NODES)).node_names
        if not found or skips:
            return
        self.api.unread = None if readable else SILENT
        hold = arrive(state, item["metadata"]["uid"], found[0], self.time.now)
        if hold is None:
            self.bind(state, item, found[0], answer)
        else:
            self.binding.append((item, found[0], hold, state))
            self.go_on(answer)
        self.api.unread = None

    def bind(self, state: State, item: dict[str, Any], node: str, answer: str) -> None:
        name = item["metadata"]["name"]
        before = self.api.pods.get(name, {}).get("spec", {}).get("nodeName")
        self.api.answers = list(ANSWERS[answer])
        with contextlib.suppress(BindError):
            bind_pod(state, self.api, item, node, self.time, lambda: state is self.states[self.leader])
        self.api.answers = []
        if name in self.api.pods and self.api.pods[name]["spec"].get("nodeName") != before:
            self.note("MODIFIED", name)

    @rule()
    def carry_out(self) -> None:
        """The API server carries out what it has been at."""
        before = {name: item["spec"].get("nodeName") for name, item in self.api.pods.items()}
        self.api.finish()
        for name, item in self.api.pods.items():
            if item["spec"].get("nodeName") != before[name]:
                self.note("MODIFIED", name)

    def go_on(self, answer: str) -> None:
        """Binds of a gang that waited go on, or end."""
        ready = [one for one in self.binding if one[2].outcome.done()]
        self.binding = [one for one in self.binding if not one[2].outcome.done()]
        for item, name, hold, state in ready:
            if not hold.outcome.result():
                self.bind(state, item, name, answer)

    @precondition(lambda self: any(not item["spec"].get("nodeName") for item in self.api.pods.values()))
    @rule(data=st.data(), core=st.sampled_from([30, 100]), device=st.sampled_from(["n0-0", "n0-1", "n1-1"]))
    def promise(self, data: st.DataObject, core: int, device: str) -> None:
        """Devices are kept for a pod that waits."""
        unbound = sorted(name for name, item in self.api.pods.items() if not item["spec"].get("nodeName"))
        name = data.draw(st.sampled_from(unbound))
        earmark = Earmark(device.partition("-")[0], (Piece(device, core, core * 10, 1),), (), 10**10)
        self.api.pods[name]["metadata"]["annotations"]["fairgpu.io/earmark"] = encode(earmark)
        self.note("MODIFIED", name)

    @precondition(lambda self: self.api.pods)
    @rule(data=st.data(), ends=st.booleans())
    def finish(self, data: st.DataObject, *, ends: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.api.pods)))
        if ends:
            self.api.pods[name]["status"] = {"phase": "Succeeded"}
            self.note("MODIFIED", name)
        else:
            self.note("DELETED", name)
            del self.api.pods[name]

    @precondition(lambda self: self.api.pods)
    @rule(data=st.data())
    def delete_with_a_finalizer(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.api.pods)))
        self.api.pods[name] = deleted(self.api.pods[name])
        self.note("MODIFIED", name)

    @rule(replica=st.integers(0, 1), count=st.integers(1, 9))
    def hear(self, replica: int, count: int) -> None:
        self.catch_up(replica, count)

    @rule(seconds=st.sampled_from([5.0, 31.0, 66.0]), overtaken=st.booleans())
    def wait(self, seconds: float, *, overtaken: bool) -> None:
        """Time passes; perhaps kube-scheduler asks again about a pod while the pod is read."""
        self.carry_out()
        self.time.now += seconds
        for state in self.states:
            release_overdue(state, self.time.now)
        self.go_on("made")
        settle(self.states[self.leader], Overtaken(self) if overtaken else self.api, self.time.now)

    @rule(replica=st.integers(0, 1))
    def restart(self, replica: int) -> None:
        """A replica's process ends, and another begins in its place.

        If its pod still has the Lease, the new process acts once no attempt of the old one can be under way any more
        and its watch shows the mark that it writes then.
        """
        self.binding = [one for one in self.binding if one[3] is not self.states[replica]]
        self.states[replica], self.read[replica] = self.listed(), len(self.log)
        if replica == self.leader:
            self.carry_out()
            self.catch_up(replica, len(self.log))

    @rule()
    def take_over(self) -> None:
        """The other replica leads once its watch shows its mark, and with it all that was bound before.

        No attempt of the replica before it is under way any more: it sent each only while it led for long enough.
        """
        self.carry_out()
        self.leader = 1 - self.leader
        self.catch_up(self.leader, len(self.log))

    @invariant()
    def no_gpu_is_given_beyond_what_it_has(self) -> None:
        core: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for item in self.api.pods.values():
            if item["spec"].get("nodeName") and item.get("status", {}).get("phase") != "Succeeded":
                for container in json.loads(item["metadata"]["annotations"][ALLOCATION])["containers"]:
                    for device in container["devices"]:
                        core[device["uuid"]] += device["core"]
                        memory[device["uuid"]] += device["memoryMiB"]
        assert max(core.values(), default=0) <= 100
        assert max(memory.values(), default=0) <= 1000

    @invariant()
    def no_pod_that_was_deleted_waits(self) -> None:
        there = {
            item["metadata"]["uid"]
            for item in self.api.pods.values()
            if not item["metadata"].get("deletionTimestamp") or item["spec"].get("nodeName") or "status" in item
        }
        for state, read in zip(self.states, self.read, strict=True):
            if read == len(self.log):
                assert state.waiting.uids() | state.gangs.uids() <= there


class Overtaken(ApiServer):
    """The API server, whose answer to a read arrives after kube-scheduler has bound the pod that was read."""

    def __init__(self, machine: Interleavings) -> None:
        super().__init__()
        self._machine = machine

    def get(self, path: str) -> dict[str, Any]:
        read = copy.deepcopy(self._machine.api.get(path))
        if not read["spec"].get("nodeName"):
            state = self._machine.states[self._machine.leader]
            found = ask(state, read, self._machine.time.now, list(NODES)).node_names
            if found:
                self._machine.bind(state, read, found[0], "made")
        return read


Interleavings.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase
