"""Processes in cgroups of version 2, by the kernel's own words; the host's other tests run on what version it has."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.processes import read_process

CONTAINER = "cd" * 32


def unified() -> Path:
    """Where the kernel's one hierarchy of version 2 is mounted, with or without controllers (cgroups(7))."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(Path(target) for _, target, kind, *_ in mounts if kind == "cgroup2")


@pytest.fixture(params=["{root}/kubepods/burstable/pod{uid}/{container}", "{root}/kubepods.slice/{slice}/{scope}"])
def group(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A container's cgroup as kubelet and runtime name it, by `cgroupfs` and by `systemd`, with its pod's uid."""
    uid = str(uuid.uuid4())
    root = unified() / f"fairgpu-cgroups-{os.getpid()}"
    path = Path(
        request.param.format(
            root=root,
            uid=uid,
            container=CONTAINER,
            slice=f"kubepods-pod{uid.replace('-', '_')}.slice",
            scope=f"cri-containerd-{CONTAINER}.scope",
        )
    )
    path.mkdir(parents=True)
    yield uid, path
    for folder in [path, *path.parents]:
        if folder.is_relative_to(root):
            folder.rmdir()


def test_a_process_in_a_cgroup_of_version_2_belongs_to_its_container(group: tuple[str, Path]) -> None:
    uid, path = group
    below = path / "of-its-own"
    below.mkdir()
    process = subprocess.Popen(["sleep", "3600"])
    try:
        (below / "cgroup.procs").write_text(str(process.pid))
        found = read_process(process.pid)
        assert found is not None
        assert (found.pod_uid, found.container_id) == (uid, CONTAINER)
    finally:
        process.kill()
        process.wait()
        below.rmdir()
