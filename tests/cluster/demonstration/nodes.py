"""The nodes that run the pods of the demonstration: a real node, or this program in its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from demo.children import Child, Children
from demo.gpus import Gpus
from demo.running import end_sidecars, start_sidecar, work
from fairgpu import names
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.stand_ins import StandInNode

Json = dict[str, Any]


class Node(Protocol):
    """A node with four GPUs."""

    def run(self, pod: Json) -> None:
        """Returns once the pod's program works; the pod has been placed."""

    def report(self, pod: Json) -> None:
        """Returns once the pod's sidecar reports."""

    def finish(self, pods: Iterable[Json]) -> list[Json]:
        """Ends the pods' programs and sidecars; returns the pods as the API server has them then."""


@dataclass
class PlayedNode:
    """This program in place of the kubelet and the GPUs; only the sidecars are real."""

    plane: ControlPlane
    node: StandInNode
    gpus: Gpus
    children: Children
    folder: Path
    sidecars: list[Child] = field(default_factory=list)

    def run(self, pod: Json) -> None:
        """Says that the pod runs, and writes what its program uses."""
        self.node.set_pod_phase(*_named(pod), "Running")
        work(self.gpus, pod, self._usage(pod))

    def report(self, pod: Json) -> None:
        """Starts the pod's sidecar with a token that the API server made for this pod."""
        namespace, _ = _named(pod)
        token = self.plane.token(namespace, "default", audience=names.TOKEN_AUDIENCE, pod=pod)
        archive = self.folder / "sidecar.pyz"
        self.sidecars.append(start_sidecar(self.children, archive, pod, token, self._usage(pod)))

    def finish(self, pods: Iterable[Json]) -> list[Json]:
        """Ends the sidecars, and says that the pods have succeeded."""
        end_sidecars(self.children, self.sidecars)
        return [self.node.set_pod_phase(*_named(pod), "Succeeded") for pod in pods]

    def _usage(self, pod: Json) -> Path:
        return self.folder / "usage" / str(pod["metadata"]["uid"])


def _named(pod: Json) -> tuple[str, str]:
    return str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"])
