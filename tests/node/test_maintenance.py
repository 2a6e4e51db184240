"""A node that is drained, uncordoned and booted again: nothing is left of what was, and containers start anew."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nodeagent.service import BOOT_ID
from tests.node.machine import NAME, Machine, uuid
from tests.node.pods import container, place
from tests.node.test_recovery import fresh
from tests.support.waiting import wait_until

NODE = f"/api/v1/nodes/{NAME}"
FOLDER = Path("/run/fairgpu-nodeagent")
SPECS = Path("/var/run/cdi")
OTHER_BOOT = "d8ae5a5e-0000-4000-8000-000000000002"


def test_a_drained_node_gives_all_back_and_takes_pods_again_once_it_is_uncordoned(
    machine: Machine, namespace: str
) -> None:
    api = machine.plane.admin.api
    pod = place(machine, namespace, [container("main", 60, 4096)], name="before")
    pod.found("main")
    api.patch(NODE, {"spec": {"unschedulable": True}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "before", "namespace": namespace}}
    api.create(f"{pod.path}/eviction", eviction)
    wait_until(lambda: not machine.plane.exists(pod.path), "the pod is evicted")
    wait_until(lambda: not [*(FOLDER / "containers").iterdir(), *SPECS.iterdir()], "nothing is left of it")
    assert machine.is_ready(), "the agent stays on a node that is drained"
    api.patch(NODE, {"spec": {"unschedulable": None}})
    following = place(machine, namespace, [container("main", 60, 4096)], name="after")
    assert following.found("main").share == ("main", uuid(0), 60, 4096)


def test_a_boot_voids_all_that_the_agent_wrote_before_where_its_folder_lies_on_a_disk(
    machine: Machine, namespace: str
) -> None:
    """The kubelet refuses pods with devices that it finds after a boot; their controllers make others."""
    before = place(machine, namespace, [container("main", 60, 4096)], name="before")
    before.found("main")
    page = (FOLDER / "gpus" / uuid(0) / "schedule").stat().st_ino
    with booted(machine, OTHER_BOOT) as since:
        wait_until(lambda: machine.registered_since(since), "the kubelet knows the device plugin again")
        wait_until(machine.is_ready, "the node is ready again")
        assert (FOLDER / "boot").read_text() == OTHER_BOOT
        assert not (FOLDER / "containers" / before.uid).exists()
        assert not list(SPECS.iterdir())
        before.delete()
        after = place(machine, namespace, [container("main", 60, 4096)], name="after")
        assert after.found("main").share == ("main", uuid(0), 60, 4096)
        assert (FOLDER / "gpus" / uuid(0) / "schedule").stat().st_ino != page
        wait_until(lambda: fresh(0), "the page is written")
    wait_until(machine.is_ready, "the node is ready again")


@contextmanager
def booted(machine: Machine, boot_id: str) -> Iterator[float]:
    """A node that has just booted: all its processes have ended, and the kernel gives the boot another name.

    Yields the time of the boot.
    """
    file = machine.folder / "boot_id"
    file.write_text(boot_id)
    with machine.servers["agent"].away(), machine.servers["kubelet"].away():
        with machine.servers["containerd"].away():
            _end_containers()
            subprocess.run(["mount", "--bind", file, BOOT_ID], check=True)
        wait_until(machine.runtime_answers, "containerd answers")
        since = time.time()
    try:
        yield since
    finally:
        with machine.servers["agent"].away():
            subprocess.run(["umount", BOOT_ID], check=True)
            since = time.time()
        wait_until(lambda: machine.registered_since(since), "the kubelet knows the device plugin again")


def _end_containers() -> None:
    """Ends every container of the node with its runtime's shim, as a machine does that is switched off."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (folder / "cmdline").read_bytes()
            if b"containerd-shim-runc-v2" in command or "/fairgpu-node-" in (folder / "cgroup").read_text():
                os.kill(int(folder.name), signal.SIGKILL)
