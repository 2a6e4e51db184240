"""The state that the sections on a real control plane share: the people, the processes, and the pods so far."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from demo.children import Children, wait_until
from demo.folder import BUDGET, HELD_NAMESPACE, NAMESPACE
from demo.screen import Reading, Screen
from demo.steps import STEP_LIMIT_SECONDS, read_budget, require, run_client, watch
from fairgpu import names
from fairgpu.client.server import Server
from fairgpu.states import BudgetState
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import StandInNode
from tests.cluster.demonstration.nodes import Node
from tests.cluster.services.replicas import Ports
from tests.cluster.services.scheduler import running_scheduler

Json = dict[str, Any]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
FINANCE = "finance"


@dataclass
class ClusterEnvironment:
    """Each section adds to it.

    Attributes:
        ada: she may do everything inside her teams' namespaces and nothing outside.
        other_nodes: the nodes whose GPUs NVIDIA's plugin shares, by their names; this program plays their kubelets.
        ports: those of the timekeeper's REST API.
        real_node: whether pods that are shared by FairGPU run on a kubelet.
        looking: the timekeeper of the mode look, while it runs.
        money: the account that may hand out GPU-hours, once there is a timekeeper.
        server: the timekeeper, once it is there.
        node: the node whose GPUs FairGPU shares, once there is one.
        bound: the pods that FairGPU's scheduler has placed.
    """

    screen: Screen
    children: Children
    plane: ControlPlane
    ada: Identity
    other_nodes: dict[str, StandInNode]
    ports: Ports
    redis_url: str
    folder: Path
    stack: ExitStack
    real_node: bool
    looking: ExitStack = field(default_factory=ExitStack)
    money: Identity = field(init=False)
    server: Server = field(init=False)
    node: Node = field(init=False)
    ca_pem: str = field(init=False)
    bound: list[Json] = field(default_factory=list)

    def meet_timekeeper(self) -> None:
        """Trusts the timekeeper's CA, which it has published, and asks it as the account that hands out GPU-hours."""
        config_map = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps/{names.TIMEKEEPER_SERVICE}-ca"
        self.ca_pem = self.plane.admin.api.get(config_map)["data"]["ca.crt"]
        tls = ssl.create_default_context(cadata=self.ca_pem)
        token = self.plane.token(names.SYSTEM_NAMESPACE, FINANCE, audience=names.TOKEN_AUDIENCE)
        self.server = Server("localhost", self.ports.https, "", tls, token)
        self.money = self.plane.service_account(names.SYSTEM_NAMESPACE, FINANCE)

    def kubectl(self, who: Identity, *arguments: str, shown: str = "", stdin: Any = None, fails: bool = False) -> str:
        """Runs kubectl, and shows the command with all that it said.

        Raises:
            StepError: it failed, or did not where it was to.
        """
        self.screen.command("kubectl " + (shown or " ".join(arguments)))
        self.children.check()
        done = who.kubectl(*arguments, stdin=stdin, check=False)
        self.screen.output(done.stderr, "red" if fails else "yellow")
        self.screen.output(done.stdout)
        require((done.returncode != 0) is fails, f"kubectl ended with {done.returncode}: {done.stderr}")
        return done.stderr if fails else done.stdout + done.stderr

    def create(self, file: str, name: str = "", *, namespace: str = NAMESPACE, fails: bool = False) -> str:
        """`kubectl create` of one of the demonstration's manifests, in the team's namespace, by one of the team."""
        document = yaml.safe_load(manifest_path(file).read_text())
        document["metadata"]["name"] = name or document["metadata"]["name"]
        document["spec"]["restartPolicy"] = "Never"  # the programs end with the demonstration
        shown = f"-n {namespace} create -f {name + '.yaml' if name else file}"
        return self.kubectl(
            self.ada, "-n", namespace, "create", "-f", "-", shown=shown, stdin=yaml.safe_dump(document), fails=fails
        )

    def heard(self, state: BudgetState, namespace: str = NAMESPACE) -> None:
        """Returns once admission has heard of the state of a budget of FairGPU's own dialect."""
        document = yaml.safe_load(manifest_path("1-native.yaml").read_text())
        self.heard_of(state, namespace, {**document, "metadata": {"name": "asking"}})

    def heard_of(self, state: BudgetState, namespace: str, pod: Json) -> None:
        """Returns once admission has heard of the state of a namespace's budget: dry runs with a GPU pod tell."""

        def admission_shows_it() -> bool:
            dry = self.ada.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
            return bool(dry["metadata"].get("annotations", {}).get(names.BUDGET_STATE) == state.value)

        wait_until(
            f"admission has heard that the budget is {state}", admission_shows_it, self.children, STEP_LIMIT_SECONDS
        )

    def gated(self, name: str, namespace: str = HELD_NAMESPACE) -> bool:
        """Whether a gate keeps the scheduler from a pod of a team that is held."""
        pod = self.plane.admin.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return bool(pod["spec"].get("schedulingGates"))

    def start_scheduler(self) -> None:
        """Starts kube-scheduler and the extender beside it, which run until the end."""
        self.stack.enter_context(running_scheduler(self.plane, self.ports.https))

    def placed(self, name: str) -> bool:
        """Whether the scheduler has given a pod of the team a node and devices."""
        pod = self.plane.admin.api.get(f"{PODS}/{name}")
        return bool(pod["spec"].get("nodeName")) and names.ALLOCATION in pod["metadata"]["annotations"]

    def run(self, name: str) -> None:
        """Returns once the scheduler has placed a pod and its node runs it."""
        wait_until(f"{name} is placed", lambda: self.placed(name), self.children, STEP_LIMIT_SECONDS)
        self.bound.append(self.plane.admin.api.get(f"{PODS}/{name}"))
        self.node.run(self.bound[-1])

    def client(self, *arguments: str) -> None:
        """Runs a command of the client with the kubeconfig's token, and shows it with what it said."""
        ca_file = self.folder / "fairgpu-ca.crt"
        ca_file.write_text(self.ca_pem)
        environment = {
            "FAIRGPU_SERVER": f"https://localhost:{self.server.port}",
            "FAIRGPU_CA_FILE": str(ca_file),
            "KUBECONFIG": str(self.money.kubeconfig),
        }
        run_client(self.screen, environment, arguments)

    def asks(self, *arguments: str) -> None:
        """Runs a command that asks the API server alone, and shows it with what it said."""
        run_client(self.screen, {"KUBECONFIG": str(self.plane.admin.kubeconfig)}, arguments)

    def all_placed(self) -> list[Json]:
        """The pods of the team, once each holds devices: there is room for all of them."""

        def pods() -> list[Json]:
            return list(self.plane.admin.api.get(PODS)["items"])

        def placed() -> bool:
            return all(item["spec"].get("nodeName") for item in pods())

        wait_until("every pod is placed", placed, self.children, STEP_LIMIT_SECONDS)
        return pods()

    def status_of(self, budget: str = BUDGET) -> str:
        """The state in a budget's status; empty before its first status."""
        found = self.plane.admin.api.get(f"/apis/{names.BUDGET_API}/gpubudgets/{budget}")
        return str(found.get("status", {}).get("state", ""))

    def reading(self, budget: str = BUDGET) -> Reading:
        """A budget by the timekeeper's present answer; it and the namespace that it pays for have one name."""
        return read_budget(self.server, budget, budget)

    def watch(self, *states: BudgetState, budget: str = BUDGET) -> Reading:
        """Shows a budget until it is in one of these states."""
        return watch(self.screen, self.children, lambda: self.reading(budget), *states)


def manifest_path(file: str) -> Path:
    """One of the demonstration's manifests."""
    return Path("demo", "manifests", file)


def manifest_files() -> Iterable[str]:
    """The dialects' manifests, in the order of their numbers."""
    return sorted(file.name for file in manifest_path("").iterdir() if file.name[0].isdigit())
