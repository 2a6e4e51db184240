"""The state that the sections of the demonstration share: the screen, the processes, and the pods so far."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from demo.admission import Admission, Admitted
from demo.children import Child, Children, StepError, wait_until
from demo.cluster import Cluster
from demo.folder import ADMIN, BUDGET, NAMESPACE, Folder
from demo.gpus import Gpus
from demo.running import start_sidecar
from demo.screen import Reading, Screen
from demo.steps import STEP_LIMIT_SECONDS, accepted, read_budget, run_client, watch
from fairgpu import names
from fairgpu.client import transport
from fairgpu.client.server import Server
from fairgpu.commands import CommandError
from fairgpu.states import BudgetState

Json = dict[str, Any]


@dataclass
class Environment:
    """The state of the demonstration, to which each of its sections adds.

    Attributes:
        screen: the output.
        folder: the files and ports of the services.
        children: the child processes.
        gpus: the played GPUs.
        cluster: the played cluster.
        admission: the client of the webhook; set once the services run.
        bound: the pods that were bound, as JSON.
        admitted: the pods that were admitted, as JSON.
        sidecars: the processes of the pods' sidecars.
    """

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
        """Returns the timekeeper as client commands talk to it, with the token of an admin."""
        tls = ssl.create_default_context(cafile=str(self.folder.timekeeper_ca))
        return Server("127.0.0.1", self.folder.timekeeper_port, "", tls, self.folder.signer.person(ADMIN))

    def start_sidecar(self, pod: Json) -> None:
        """Starts the sidecar of a bound pod as a process, and adds it to `sidecars`.

        Raises:
            StepError: admission put no sidecar into the pod.
        """
        metadata = pod["metadata"]
        token = self.folder.signer.pod(NAMESPACE, metadata["name"], metadata["uid"])
        child = start_sidecar(self.children, self.folder.sidecar, pod, token, self.folder.usage(pod))
        self.sidecars.append(child)

    def command(self, *arguments: str) -> None:
        """Runs a command of `fairgpu` with these arguments, and shows the command and its output.

        Raises:
            StepError: the command failed.
            TimeoutExpired: the command has not ended in time.
        """
        run_client(self.screen, self.client_environment(), arguments)

    def watch(self, *states: BudgetState) -> Reading:
        """Shows the team's budget until it is in one of the given states; returns the last reading.

        Raises:
            StepError: the budget gets into none of the states in time, the timekeeper refuses or does not answer, or a
                child process has ended.
        """
        return watch(self.screen, self.children, self.reading, *states)

    def next_pod(self, name: str, priority_class: str, state: BudgetState, namespace: str = NAMESPACE) -> Admitted:
        """Sends a new pod through admission again and again, until the webhook finds its budget in the given state.

        Args:
            name: the pod's name.
            priority_class: the class that the pod must then get.
            state: the state of the namespace's budget to wait for.
            namespace: the namespace in which the pod would be created.

        Returns:
            The result of admission in that state.

        Raises:
            StepError: the webhook does not learn the state in time or gives no valid answer, a child process has ended,
                or the pod is refused or gets another class.
        """
        native = dict(manifests())["native"]
        document = {**native, "metadata": {**native["metadata"], "name": name}}

        def knows_state() -> bool:
            admitted = self.admission.create(namespace, document)
            return bool(admitted.pod["metadata"].get("annotations", {}).get(names.BUDGET_STATE) == state.value)

        wait_until(f"the webhook knows that the budget is {state}", knows_state, self.children, STEP_LIMIT_SECONDS)
        admitted = self.admission.create(namespace, document)
        accepted(admitted, priority_class)
        return admitted

    def client_environment(self) -> dict[str, str]:
        """Returns the environment variables by which the client's commands find the timekeeper."""
        return {
            "FAIRGPU_SERVER": self.folder.timekeeper_url,
            "FAIRGPU_CA_FILE": str(self.folder.timekeeper_ca),
            "FAIRGPU_TOKEN": self.folder.signer.person(ADMIN),
        }

    def reading(self) -> Reading:
        """Returns the team's budget as the timekeeper has it now.

        Raises:
            StepError: the timekeeper refuses, or does not answer.
        """
        return read_budget(self.server(), BUDGET, NAMESPACE)

    def sessions(self) -> int:
        """Returns the number of the team's open sessions.

        Raises:
            StepError: the timekeeper refuses, or does not answer.
        """
        try:
            return len(transport.get(self.server(), f"/v1/sessions?namespace={NAMESPACE}")["sessions"])
        except CommandError as error:
            raise StepError(str(error)) from error

    def timekeeper_ready(self) -> bool:
        """Returns whether the timekeeper answers and has the team's budget."""
        try:
            return self.folder.timekeeper_ca.exists() and bool(transport.get(self.server(), f"/v1/budgets/{BUDGET}"))
        except CommandError:
            return False


def manifests() -> Iterable[tuple[str, Json]]:
    """Yields each dialect's name and its example pod as JSON, in the order of the numbers in the files' names."""
    folder = files("demo") / "manifests"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number, _, dialect = file.name.removesuffix(".yaml").partition("-")
        if number.isdigit():
            yield dialect, yaml.safe_load(file.read_text())


def manifest(name: str) -> Json:
    """Returns the manifest in a file of the demonstration, as JSON.

    Args:
        name: the file's name, without `.yaml`.
    """
    loaded: Json = yaml.safe_load((files("demo") / "manifests" / f"{name}.yaml").read_text())
    return loaded
