"""What the acts of the demonstration share: the screen, the processes, and what has been built up so far."""

from __future__ import annotations

import ssl
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from fairgpu import names
from fairgpu.client import transport
from fairgpu.client.server import Server
from fairgpu.commands import CommandError
from fairgpu.demo.admission import Admission, Admitted
from fairgpu.demo.children import Child, Children, StepError
from fairgpu.demo.cluster import Cluster
from fairgpu.demo.folder import ADMIN, BUDGET, NAMESPACE, Folder
from fairgpu.demo.gpus import Gpus
from fairgpu.demo.screen import Reading, Screen
from fairgpu.states import BudgetState

Json = dict[str, Any]


@dataclass
class Stage:
    """The acts add to it as the story goes on."""

    screen: Screen
    folder: Folder
    children: Children
    gpus: Gpus
    cluster: Cluster = field(init=False)
    admission: Admission = field(init=False)
    bound: list[Json] = field(default_factory=list)
    admitted: list[Json] = field(default_factory=list)
    sidecars: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.folder.pods)

    def server(self) -> Server:
        """The timekeeper, under the token of an admin."""
        tls = ssl.create_default_context(cafile=str(self.folder.timekeeper_ca))
        return Server("127.0.0.1", self.folder.timekeeper_port, "", tls, self.folder.signer.person(ADMIN))

    def client_environment(self) -> dict[str, str]:
        """What the client's commands are told."""
        return {
            "FAIRGPU_SERVER": self.folder.timekeeper_url,
            "FAIRGPU_CA_FILE": str(self.folder.timekeeper_ca),
            "FAIRGPU_TOKEN": self.folder.signer.person(ADMIN),
        }

    def reading(self) -> Reading:
        """The budget as the timekeeper tells it now.

        Raises:
            StepError: it does not answer.
        """
        try:
            budget = transport.get(self.server(), f"/v1/budgets/{BUDGET}")
            sessions = transport.get(self.server(), f"/v1/sessions?namespace={NAMESPACE}")["sessions"]
        except CommandError as error:
            raise StepError(str(error)) from error
        return Reading(
            budget=BUDGET,
            state=BudgetState(budget["state"]),
            available=exact(budget["available"]),
            spent=exact(budget["spent"]),
            used=sum(exact(session["used"]) for session in sessions),
            rate=int(budget["rate"]["microGPUSecondsPerSecond"]),
        )

    def sessions(self) -> int:
        """How many reservations are on the meter."""
        try:
            return len(transport.get(self.server(), f"/v1/sessions?namespace={NAMESPACE}")["sessions"])
        except CommandError as error:
            raise StepError(str(error)) from error

    def timekeeper_ready(self) -> bool:
        """Whether the timekeeper serves and knows the budget."""
        try:
            return self.folder.timekeeper_ca.exists() and bool(transport.get(self.server(), f"/v1/budgets/{BUDGET}"))
        except CommandError:
            return False

    def create(self, name: str, manifest: Json) -> Admitted:
        """Sends a manifest under another name to the webhook, as `kubectl create` would."""
        renamed = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
        return self.admission.create(NAMESPACE, renamed)


def exact(money: Any) -> int:
    """An amount of the REST API in microGPU-seconds; 0 where there is none."""
    return int(money["microGPUSeconds"]) if money else 0


def program(name: str) -> str:
    """The path of an installed command."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module under this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def manifests() -> Iterable[tuple[str, Json]]:
    """The dialects and their manifests, in the order of the files' numbers."""
    folder = files("fairgpu.demo") / "manifests"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number, _, dialect = file.name.removesuffix(".yaml").partition("-")
        if number.isdigit():
            yield dialect, yaml.safe_load(file.read_text())


def manifest(name: str) -> Json:
    """One manifest by its file's name."""
    loaded: Json = yaml.safe_load((files("fairgpu.demo") / "manifests" / f"{name}.yaml").read_text())
    return loaded


def sidecar_of(pod: Json) -> Json:
    """The container that admission put first.

    Raises:
        StepError: it is not there.
    """
    init = pod["spec"].get("initContainers") or [{}]
    container: Json = init[0]
    if container.get("name") != names.SIDECAR_CONTAINER or container.get("restartPolicy") != "Always":
        raise StepError(f"no sidecar was put into pod {pod['metadata']['name']}")
    return container
