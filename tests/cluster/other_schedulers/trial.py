"""The steps of the trial of another stack's own scheduler beside the mode `account`, each checked as it happens."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from demo.screen import Screen
from tests.cluster.account.installed import API, grant
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.installation import Manifest
from tests.cluster.other_schedulers.stack import Stack
from tests.support.ledger.periods import month_midway
from tests.support.processes import FAIRGPU
from tests.support.waiting import wait_until
from timekeeper.domain.holdings.deciding import decide
from timekeeper.domain.holdings.holding import read_bound_pod, read_host_node

GATE = {"name": "fairgpu.io/budget"}
OTHER_GATE = {"name": "example.org/wait"}
DRY_RUN = {"dryRun": "All"}


class TrialError(AssertionError):
    """A step ended otherwise than it must; the message says what was found."""


@dataclass(frozen=True)
class Team:
    """A namespace, the person who may do everything in it, and its budget."""

    namespace: str
    admin: Identity
    budget: str

    @property
    def pods(self) -> str:
        """The path of its pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"


@dataclass(frozen=True)
class Trial:
    """The trial of one stack: `run` takes every step."""

    plane: ControlPlane
    screen: Screen
    stack: Stack

    def run(self) -> None:
        """Takes every step.

        Raises:
            TrialError: a step ended otherwise than it must.
            TimeoutError: a step did not end.
        """
        spent, paid = self._team("spent-", 0), self._team("paid-", 1000)
        self._gets_the_right(paid)
        before = len(self._refusals())
        self._leaves_a_gated_pod_alone(spent, paid)
        self._is_granted(spent)
        self._is_charged(spent, {"held": self.stack.gpus})
        self._asks_in_other_ways(spent)
        if self.stack.group is not None:
            self._starts_a_group_together()
            self._waits_for_a_gated_member(paid)
        self._meets_no_other_refusal(before)

    def _gets_the_right(self, paid: Team) -> None:
        stack = self.stack
        self.screen.section(f"Without the right to write what {stack.name}'s pods are charged by")
        paid.admin.api.create(paid.pods, stack.pod("first"))
        wait_until(lambda: self._is_bound(paid, "first") or self._refusals(), "the scheduler tries to bind the pod")
        if self._is_bound(paid, "first"):
            self.screen.done("the pod is bound all the same")
        else:
            self.screen.output(self._refusals()[0][:600])
            self.screen.done("the pod is not bound")
        writers = self._doctor()["modes"]["writers"][stack.name]
        command = ["create", "clusterrolebinding", f"{stack.name}-writes-gpu-pods"]
        command += ["--clusterrole=fairgpu-pod-status-writer", *(f"--serviceaccount={name}" for name in writers)]
        self.screen.command(f"kubectl {' '.join(command)}")
        self.plane.admin.kubectl(*command)
        self._meets(paid, "first")
        self.screen.done("with the right that `fairgpu doctor` names, the pod is bound")

    def _leaves_a_gated_pod_alone(self, spent: Team, paid: Team) -> None:
        stack = self.stack
        self.screen.section("A pod of a team whose budget is held")
        held = self._held(spent, stack.pod("held"))
        for name in ("second", "third"):
            paid.admin.api.create(paid.pods, stack.pod(name))
            self._meets(paid, name)
        now = spent.admin.api.get(f"{spent.pods}/held")
        _require("nodeName" not in now["spec"], f"the gated pod has the node {now['spec'].get('nodeName')}")
        _require(now["spec"].get("schedulingGates") == [GATE], "the gate is gone")
        self.screen.output(json.dumps(_added(held, now), indent=1))
        errors = [line for line in self._lines() if "/held" in line and _is_error(line)]
        _require(len(errors) < 5, f"{len(errors)} errors about the gated pod, such as {errors[:1]}")
        self.screen.done("it has the gate and no node, while two pods of another team are bound after it")

    def _is_granted(self, spent: Team) -> None:
        self.screen.section("A grant")
        grant(self.plane, spent.budget, 100)
        wait_until(lambda: "schedulingGates" not in self._read(spent, "held")["spec"], "the gate is lifted")
        lifted = time.monotonic()
        self._meets(spent, "held")
        self.screen.done(f"the gate is lifted, and the pod is bound {time.monotonic() - lifted:.1f} s later")

    def _is_charged(self, team: Team, expected: Mapping[str, Fraction]) -> None:
        self.screen.section("What its pods are charged as")
        node = read_host_node(self.plane.admin.api.get(f"/api/v1/nodes/{self.stack.node}"))
        for name, gpus in expected.items():
            pod = self._read(team, name)
            decision = decide(read_bound_pod(pod), node, {})
            held = sum((part.count * max(part.time, part.memory) for part in decision.holdings), Fraction(0))
            written = {key: value for key, value in pod["metadata"]["annotations"].items() if "fairgpu" not in key}
            self.screen.output(f"{name}: {json.dumps(written)}")
            self.screen.output("\n".join(map(str, decision.holdings)))
            _require(not decision.doubts, f"doubts: {', '.join(sorted(decision.doubts))}")
            _require(held == gpus, f"{name} holds {held} GPUs, and {gpus} were expected")
        rate = float(sum(expected.values(), Fraction(0)))
        wait_until(lambda: self._rate(team) == rate, f"the budget pays {rate} GPUs")
        self.screen.done(f"the budget pays {rate} GPU-hours an hour, what the requests say")

    def _asks_in_other_ways(self, team: Team) -> None:
        expected = {"held": self.stack.gpus}
        for pod, gpus in self.stack.more:
            name = pod["metadata"]["name"]
            team.admin.api.create(team.pods, pod)
            self._meets(team, name)
            expected[name] = gpus
        if self.stack.more:
            self._is_charged(team, expected)

    def _starts_a_group_together(self) -> None:
        self.screen.section("A group of two pods, held")
        team = self._team("gang-", 0)
        assert self.stack.group is not None
        member = self.stack.group(team.namespace, "gang", 2)
        for name in ("gang-0", "gang-1"):
            self._held(team, member(self.stack.pod(name)))
        grant(self.plane, team.budget, 100)
        for name in ("gang-0", "gang-1"):
            self._meets(team, name)
        self.screen.done("both have the gate; a grant lifts both, and both are bound")
        self._is_charged(team, dict.fromkeys(("gang-0", "gang-1"), self.stack.gpus))

    def _waits_for_a_gated_member(self, paid: Team) -> None:
        self.screen.section("A group of two pods, one behind a gate")
        assert self.stack.group is not None
        member = self.stack.group(paid.namespace, "half", 2)
        gated = member(self.stack.pod("half-0"))
        gated["spec"]["schedulingGates"] = [OTHER_GATE]
        paid.admin.api.create(paid.pods, gated)
        paid.admin.api.create(paid.pods, member(self.stack.pod("half-1")))
        paid.admin.api.create(paid.pods, self.stack.pod("after"))
        self._meets(paid, "after")
        counts = self._is_bound(paid, "half-1")
        paid.admin.api.patch(f"{paid.pods}/half-0", {"spec": {"schedulingGates": None}})
        for name in ("half-0", "half-1"):
            self._meets(paid, name)
        said = "was bound without it" if counts else "waits for it"
        self.screen.done(f"the member without a gate {said}; a pod outside the group is bound meanwhile")

    def _meets_no_other_refusal(self, before: int) -> None:
        self.screen.section("Refusals by FairGPU's policies since the right was given")
        found = self._refusals()[before:]
        _require(not found, f"{len(found)} refusals, such as {found[:1]}")
        self.screen.done("none")

    def _team(self, prefix: str, gpu_hours: int) -> Team:
        namespace = self.plane.create_namespace(prefix)
        name = f"budget-{namespace}"
        spec = {
            "namespaces": [namespace],
            "period": month_midway(),
            "onExhausted": "hold",
            "allowance": {"gpuHours": gpu_hours},
        }
        item = {"apiVersion": "fairgpu.io/v1alpha1", "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
        self.plane.admin.api.create(f"{API}/gpubudgets", item)
        return Team(namespace, self.plane.namespace_admin(namespace), name)

    def _held(self, team: Team, pod: Manifest) -> Manifest:
        """Creates a pod once the webhook holds the team's pods; returns it as it was stored."""

        def holds() -> bool:
            tried = team.admin.api.create(team.pods, pod, DRY_RUN)
            return GATE in tried["spec"].get("schedulingGates", [])

        wait_until(holds, "the webhook knows that the budget is spent")
        stored = team.admin.api.create(team.pods, pod)
        _require(stored["spec"]["schedulerName"] == self.stack.scheduler, "another scheduler was named")
        return stored

    def _meets(self, team: Team, name: str) -> None:
        """Returns once a pod is bound, and its plugin and kubelet have done their part."""

        def bound() -> bool:
            for process in self.stack.processes:
                process.check_alive()
            return self._is_bound(team, name)

        wait_until(bound, f"{name} is bound")
        self.stack.bound(self._read(team, name))

    def _is_bound(self, team: Team, name: str) -> bool:
        return bool(self._read(team, name)["spec"].get("nodeName"))

    def _read(self, team: Team, name: str) -> Manifest:
        return self.plane.admin.api.get(f"{team.pods}/{name}")

    def _rate(self, team: Team) -> float:
        status = self.plane.admin.api.get(f"{API}/gpubudgets/{team.budget}").get("status", {})
        return float(status.get("burnRate", 0))

    def _lines(self) -> list[str]:
        return [
            line for process in self.stack.processes for line in process.log.read_text(errors="replace").splitlines()
        ]

    def _refusals(self) -> list[str]:
        return [line for line in self._lines() if "fairgpu-" in line and "denied" in line]

    def _doctor(self) -> Any:
        command = [*FAIRGPU, "doctor", "--kubeconfig", str(self.plane.admin.kubeconfig), "-o", "json"]
        environ = {"PATH": os.defpath, "HOME": str(self.plane.folder)}
        doctor = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return json.loads(doctor.stdout)


def _added(before: Manifest, now: Manifest) -> dict[str, Any]:
    """Returns the labels, annotations and conditions of a pod that are new or changed."""
    added: dict[str, Any] = {}
    for kind in ("labels", "annotations"):
        old = before["metadata"].get(kind, {})
        added[kind] = {key: value for key, value in now["metadata"].get(kind, {}).items() if old.get(key) != value}
    added["conditions"] = now.get("status", {}).get("conditions", [])
    return added


def _is_error(line: str) -> bool:
    """Whether a line of a log is one of an error, in the form of klog or of zap."""
    return line.startswith("E") or "\tERROR\t" in line or '"level":"error"' in line


def _require(condition: object, otherwise: str) -> None:
    if not condition:
        raise TrialError(otherwise)
