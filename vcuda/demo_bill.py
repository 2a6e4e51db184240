"""The two programs once more, now as pods of a team: what their sidecars report, and what the timekeeper bills.

The services are those of `fairgpu demo`, which also plays the API server, the scheduler and the kubelet here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from node import MIB, Container, Node, Share, uuid
from shares import begun, paged

from demo.children import Children, wait_until
from demo.environment import Environment
from demo.folder import NAMESPACE, Folder
from demo.gpus import Gpus
from demo.running import allocation_of, cost, end_sidecars
from demo.screen import UNIT, Screen
from demo.sections import serve
from demo.steps import STEP_LIMIT_SECONDS, accepted, exact
from fairgpu import names
from fairgpu.client import transport

Json = dict[str, Any]
CONTAINER = "main"
KERNEL_MICROSECONDS = "100"
SECONDS = 4.0


def pod(name: str, core_percent: int, memory_mib: int) -> Json:
    """A pod that asks for a piece of a GPU."""
    limits = {names.GPU: 1, names.GPU_CORE: core_percent, names.GPU_MEMORY: memory_mib}
    spec = {"containers": [{"name": CONTAINER, "image": "registry.example/cuda:1", "resources": {"limits": limits}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def bound(environment: Environment, document: Json) -> Json:
    """The pod as it runs, once it was admitted and has the simulated GPU's piece that it asked for."""
    return environment.cluster.bind(accepted(environment.admission.create(NAMESPACE, document), names.IN_BUDGET_CLASS))


def container_of(node: Node, running: Json, slot: int, usage: Path) -> Container:
    """The pod's container on the node, with its files in the pod's usage volume, where the sidecar looks."""
    given = allocation_of(running).containers[0].devices[0]
    share = Share(given.memory_mib * MIB, given.core_percent, slot=slot, schedule=str(node.folder / "page"))
    return Container(node, usage / CONTAINER, (share,), settings={"SIMGPU_LABEL": running["metadata"]["name"]})


def sessions(environment: Environment) -> dict[str, Json]:
    """The reservations on the meter, by their pods' names."""
    listed = transport.get(environment.server(), f"/v1/sessions?namespace={NAMESPACE}")["sessions"]
    return {one["pod"]: one for one in listed}


def billed(root: Path, documents: Sequence[Json], seconds: float = SECONDS) -> tuple[dict[str, int], int, int]:
    """Runs the pods for so long on the services.

    Returns:
        What each pod's programs used by its sidecar's reports, what the timekeeper bills for all of them, and what
        their own times come to; in microGPU-seconds.
    """
    folder = Folder(root)
    folder.logs.mkdir(parents=True)
    node = Node(root / "node", settings={"SIMGPU_CALL_COSTS": "1"})
    node.folder.mkdir()
    with Children(folder.logs) as children, ExitStack() as ending:
        environment = Environment(Screen(), folder, children, Gpus())
        environment.cluster.offer([uuid()])
        serve(environment)
        pods = [bound(environment, document) for document in documents]
        containers = [container_of(node, one, slot, folder.usage(one)) for slot, one in enumerate(pods)]
        ending.enter_context(paged(node, containers))
        ending.enter_context(begun([(one, (KERNEL_MICROSECONDS,)) for one in containers], seconds))
        for one in pods:
            environment.start_sidecar(one)
        time.sleep(seconds)
        reported = lambda: all(exact(one["used"]) for one in sessions(environment).values())  # noqa: E731 (read once, here)
        wait_until("what each used is reported", reported, children, STEP_LIMIT_SECONDS)
        environment.command("sessions", "-n", NAMESPACE)
        used = {name: exact(one["used"]) for name, one in sessions(environment).items()}
        end_sidecars(children, environment.sidecars)
        expected = sum(cost(environment.cluster.finish(one)) for one in pods)
        wait_until("every pod is settled", lambda: environment.sessions() == 0, children, STEP_LIMIT_SECONDS)
        return used, environment.reading().spent, expected


def show_bill(root: Path, documents: Sequence[Json]) -> tuple[bool, str]:
    """Whether the bill is what it has to be, and what it says."""
    used, spent, expected = billed(root, documents)
    amounts = ", ".join(f"{name} used {amount / UNIT:.1f}" for name, amount in used.items())
    line = f"{amounts}; billed is what they held: {spent / UNIT:.2f} GPU-seconds, what the pods' times come to"
    return spent == expected and all(0 < amount < spent for amount in used.values()), line
