"""Pods for the node's tests, placed on GPUs as the scheduler would, and what their containers found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.containers.config_file import DEVICE, HEAD
from tests.cluster.control_plane.stand_ins import bind
from tests.node.machine import MEMORY_MIB, NAME, PROGRAMS, Machine, uuid
from tests.support.waiting import wait_until

LOOK = (
    "printf 'init\\ntotal %s\\n' $SIMULATED_GPU | actor > /out/$0.info; "
    "cp /etc/vcuda/config /out/$0.config; env > /out/$0.env; "
    "mv /out/$0.env /out/$0.done; "
)
"""A container's script: what the driver says that it has, and what the agent gave it, into files by its name."""
STAYS = LOOK + "exec sleep 3600"
ENDS = LOOK + "exit 0"


def container(name: str, core: int, memory_mib: int, script: str = STAYS, **fields: Any) -> dict[str, Any]:
    """A container that asks for a piece of one GPU."""
    amounts = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": str(core), "fairgpu.io/gpu-memory": str(memory_mib)}
    return {
        "name": name,
        "image": PROGRAMS,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script, name],
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        **fields,
    }


@dataclass(frozen=True)
class Placed:
    """A pod on the node."""

    machine: Machine
    namespace: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        """The path at which the API server has the pod."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def read(self) -> dict[str, Any]:
        """The pod as the API server has it."""
        return self.machine.plane.admin.api.get(self.path)

    def phase(self) -> str:
        """Its phase."""
        shown: str = self.read()["status"]["phase"]
        return shown

    def wait_until(self, phase: str) -> None:
        """Returns once the pod has that phase."""
        wait_until(lambda: self.phase() == phase, f"{self.name} is {phase}")

    def delete(self) -> None:
        """Deletes the pod; returns once it is gone."""
        self.machine.plane.admin.api.delete(self.path)
        wait_until(lambda: not self.machine.plane.exists(self.path), f"{self.name} is gone")

    def file(self, name: str) -> Path:
        """A file that a container wrote to /out."""
        return Path("/var/lib/kubelet/pods", self.uid, "volumes/kubernetes.io~empty-dir/out", name)

    def found(self, container: str) -> Found:
        """Returns the findings of a container once it has run."""
        done = self.file(f"{container}.done")
        wait_until(done.exists, f"container {container} of {self.name} has run")
        result, total, _ = self.file(f"{container}.info").read_text().splitlines()[-1].split()
        config = self.file(f"{container}.config").read_bytes()
        name = HEAD.unpack_from(config)[5].rstrip(b"\0").decode()
        first = DEVICE.unpack_from(config, HEAD.size)
        return Found(
            name,
            first[0].rstrip(b"\0").decode(),
            first[7],
            int(result),
            int(total) >> 20,
            frozenset(done.read_text().split()),
        )

    def described(self) -> str:
        """The events that `kubectl describe` shows of it."""
        said: str = self.machine.plane.admin.kubectl("describe", "pod", "--namespace", self.namespace, self.name).stdout
        return said

    def events(self, reason: str) -> list[str]:
        """The messages of the pod's events of a kind."""
        query = {"fieldSelector": f"involvedObject.uid={self.uid},reason={reason}"}
        found = self.machine.plane.admin.api.get(f"/api/v1/namespaces/{self.namespace}/events", query)
        return [event["message"] for event in found["items"]]

    def refusal(self) -> str:
        """The message of the event by which the agent refuses to start a container of the pod."""

        def messages() -> list[str]:
            found = self.events("PlacementRefused")
            assert found or not self.read()["status"].get("reason"), f"the kubelet refuses the pod: {self.described()}"
            return found

        return wait_until(messages, f"{self.name} is refused")[0]


@contextmanager
def static_pod(machine: Machine, namespace: str, body: Mapping[str, Any]) -> Iterator[Placed]:
    """A static pod until the end of the block: the name of its mirror on the API server, and the uid in the kubelet."""
    metadata = {**body["metadata"], "namespace": namespace}
    file = machine.static_pods / f"{metadata['name']}.json"
    file.write_text(json.dumps({**body, "metadata": metadata}))
    name = f"{metadata['name']}-{NAME}"
    mirror = f"/api/v1/namespaces/{namespace}/pods/{name}"
    wait_until(lambda: machine.plane.exists(mirror), "the static pod has its mirror")
    annotations = machine.plane.admin.api.get(mirror)["metadata"]["annotations"]
    try:
        yield Placed(machine, namespace, name, annotations["kubernetes.io/config.mirror"])
    finally:
        file.unlink()
    wait_until(lambda: not machine.plane.exists(mirror), "the static pod is gone")


@dataclass(frozen=True)
class Found:
    """The findings of a container: name, GPU and percent of its configuration, the driver's answer and total in MiB."""

    name: str
    uuid: str
    core: int
    result: int
    total_mib: int
    environment: frozenset[str]

    @property
    def share(self) -> tuple[str, str, int, int]:
        """The container's name, and its part of which GPU."""
        return self.name, self.uuid, self.core, self.total_mib


def place(
    machine: Machine,
    namespace: str,
    containers: Sequence[Mapping[str, Any]],
    init: Sequence[Mapping[str, Any]] = (),
    *,
    name: str = "train",
    gpu: int = 0,
    node: str = NAME,
    restart: str = "Never",
    grace_seconds: int = 0,
    allocation: Mapping[str, Any] | str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Placed:
    """Creates a pod and binds it with an allocation: all that its containers ask for on one GPU, or what is given."""
    body = manifest(name, containers, init, restart=restart, grace_seconds=grace_seconds, annotations=annotations)
    pod = machine.plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
    given = [{"name": each["name"], "devices": [_device(each, gpu)]} for each in [*init, *containers]]
    usual = {"v": 1, "node": node, "containers": given}
    bind(machine.plane.admin, pod, NAME, usual if allocation is None else allocation or None)
    return Placed(machine, namespace, name, pod["metadata"]["uid"])


def manifest(
    name: str,
    containers: Sequence[Mapping[str, Any]],
    init: Sequence[Mapping[str, Any]] = (),
    *,
    restart: str = "Never",
    grace_seconds: int = 0,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod that is not placed yet."""
    spec = {
        "schedulerName": "fairgpu-scheduler",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "restartPolicy": restart,
        "containers": list(containers),
        "initContainers": list(init),
        "volumes": [{"name": "out", "emptyDir": {}}],
    }
    metadata = {"name": name, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _device(container: Mapping[str, Any], gpu: int) -> dict[str, Any]:
    limits = container["resources"]["limits"]
    return {
        "uuid": uuid(gpu),
        "model": "Simulated GPU",
        "totalMiB": MEMORY_MIB,
        "core": int(limits["fairgpu.io/gpu-core"]),
        "memoryMiB": int(limits["fairgpu.io/gpu-memory"]),
    }
