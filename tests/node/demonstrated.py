"""The demonstration's node: kubelet, containerd, the node agent and four simulated GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from demo.children import Children, StepError, wait_until
from demo.steps import STEP_LIMIT_SECONDS
from fairgpu import names
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.node import images, shipped_images
from tests.node.journey.name_server import name_server
from tests.node.machine import ACTOR, ADDRESS, Machine, joined_node
from tests.support import waiting

Json = dict[str, Any]
GPUS, MEMORY_MIB, MODEL = 4, 81920, "A100"
PROGRAM = """#!/bin/sh
# Works for a few hundredths of a second of the GPU's time, again and again, until the file `end` is there.
{
  echo init; echo ctx "$SIMULATED_GPU"; echo alloc work 1000000000
  until [ -e /run/fairgpu/end ]; do echo launch "spin_ms_$1"; sleep 0.1; done
} | actor > /dev/null
"""
MILLISECONDS = {"train": 20, "serve": 20, "notebook": 2, "evaluate": 30, "embed": 15}
"""The work of one kernel of each image that the manifests name."""


class RealNode:
    """A kubelet that runs the pods."""

    def __init__(self, machine: Machine, children: Children) -> None:
        self._machine = machine
        self._children = children

    def run(self, pod: Json) -> None:
        """Returns once the kubelet says that the pod runs."""
        self._wait(pod, "Running")

    def report(self, pod: Json) -> None:
        """Does nothing: the kubelet has started the sidecar before the program."""

    def finish(self, pods: Iterable[Json]) -> list[Json]:
        """Lets the programs end, after which the kubelet ends the sidecars."""
        running = [self._wait(pod, "Running") for pod in pods]
        for pod in running:
            volume = Path("/var/lib/kubelet/pods", pod["metadata"]["uid"], "volumes/kubernetes.io~empty-dir")
            for container in pod["spec"]["containers"]:
                (volume / names.USAGE_VOLUME / container["name"] / "end").touch()
        return [self._wait(pod, "Succeeded") for pod in running]

    def _wait(self, pod: Json, phase: str) -> Json:
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{name}"

        def reached() -> bool:
            now = self._machine.plane.admin.api.get(path)["status"]
            if now.get("phase") == "Failed":
                raise StepError(f"{name} failed: {now}")
            return bool(now.get("phase") == phase)

        wait_until(f"{name} is {phase}", reached, self._children, STEP_LIMIT_SECONDS)
        return self._machine.plane.admin.api.get(path)


@contextmanager
def demonstrated_node(folder: Path, plane: ControlPlane, sidecar: str) -> Iterator[Machine]:
    """A node that has the sidecar's image and those of the manifests, on a control plane that has FairGPU.

    `folder` is the one that the namespaces were laid out with.
    """
    with ExitStack() as stack:
        machine = stack.enter_context(joined_node(folder, plane, GPUS, MEMORY_MIB))
        stack.enter_context(name_server(ADDRESS))
        machine.import_image(shipped_images.sidecar(folder, sidecar))
        (folder / "program").write_text(PROGRAM)
        files = {f"bin/{name}": Path("/bin") / name for name in ("sh", "sleep")}
        files |= {"usr/bin/actor": ACTOR, "program": folder / "program"}
        for name, milliseconds in MILLISECONDS.items():
            entry = ["/bin/sh", "/program", str(milliseconds)]
            machine.import_image(images.image(folder / f"{name}.tar", f"registry.example/{name}:1", entry, files))
        machine.make_gpus(f"* model {MODEL}")
        shown = lambda: f'"{MODEL}"' in machine.node()["metadata"]["annotations"][names.INVENTORY]  # noqa: E731 - read once, here
        waiting.wait_until(shown, "the node says which GPUs it has")
        yield machine
