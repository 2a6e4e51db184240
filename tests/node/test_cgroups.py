"""Processes in cgroups of version 2, by the kernel's own words; the host's other tests run on what version it has."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.processes import read_process

pytestmark = pytest.mark.cgroups

ROOT = Path(__file__).parents[2]
CONTAINER = "cd" * 32
AGENT, AGENT_CONTAINER = "0a9e27c4-0000-4000-8000-000000000001", "ef" * 32
READ = """
import sys
from nodeagent.processes import read_process
found = read_process(int(sys.argv[1]))
print(found.pod_uid, found.container_id)
"""


def unified() -> Path:
    """Returns the folder at which the kernel's one hierarchy of version 2 is mounted (cgroups(7)).

    Its controllers may all belong to version 1.
    """
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(Path(target) for _, target, kind, *_ in mounts if kind == "cgroup2")


def named(form: str, uid: str, container: str) -> str:
    """A container's cgroup by kubelet and containerd, below the host's root."""
    pod, scope = f"kubepods-pod{uid.replace('-', '_')}.slice", f"cri-containerd-{container}.scope"
    return form.format(uid=uid, container=container, slice=pod, scope=scope)


@pytest.fixture(params=["kubepods/burstable/pod{uid}/{container}", "kubepods.slice/{slice}/{scope}"])
def group(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path, Path]]:
    """A pod's uid, its container's cgroup and the agent's, as the drivers `cgroupfs` and `systemd` name them."""
    uid = str(uuid.uuid4())
    root = unified() / f"fairgpu-cgroups-{os.getpid()}"
    path, agent = root / named(request.param, uid, CONTAINER), root / named(request.param, AGENT, AGENT_CONTAINER)
    path.mkdir(parents=True)
    agent.mkdir(parents=True)
    yield uid, path, agent
    for folder, _, _ in os.walk(root, topdown=False):
        Path(folder).rmdir()


def seen_from(group: Path, pid: int) -> list[str]:
    """A reader in a cgroup namespace of its own finds other paths;  runtimes give one to each container on version 2.

    It sees the paths of others from its own cgroup on (cgroup_namespaces(7)).
    """
    enters = 'echo $$ > "$1/cgroup.procs" && exec unshare --cgroup "$2" -c "$3" "$4"'
    command = ["sh", "-c", enters, "sh", group, sys.executable, READ, str(pid)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()


def test_a_process_in_a_cgroup_of_version_2_belongs_to_its_container(group: tuple[str, Path, Path]) -> None:
    uid, path, agent = group
    below = path / "of-its-own"
    below.mkdir()
    process = subprocess.Popen(["sleep", "3600"])
    try:
        (below / "cgroup.procs").write_text(str(process.pid))
        found = read_process(process.pid)
        assert found is not None
        assert (found.pod_uid, found.container_id) == (uid, CONTAINER)
        assert seen_from(agent, process.pid) == [uid, CONTAINER]
    finally:
        process.kill()
        process.wait()
        below.rmdir()
