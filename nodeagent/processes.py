"""Reads processes of the host from /proc: the container of each, and its pid in its own PID namespace.

The agent shares the host's PID namespace, so the pids in the agent's /proc are those that NVML names. Every file that
is read here is readable without rights over the process (proc(5)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
NAME_BYTES = 64
"""At least as many as /proc/PID/comm has: 15, or up to 63 for a thread of the kernel, and a newline (proc(5))."""
STAT_BYTES = 4096
"""A number of bytes that exceeds the length of /proc/PID/stat: 52 numbers, and a name of at most 64 bytes."""
FLAGS = 9
"""The field of /proc/PID/stat with the kernel's flags of the process, counted from 1."""
START_TIME = 22
"""The field with the start time."""
EXITING = 0x4
"""The flag of a process that ends or has ended, PF_EXITING (include/linux/sched.h)."""
_IN_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
    r"[/:](?:[a-z-]+[-:])?(?P<container>[0-9a-f]{64})"
)
"""A container's cgroup by the drivers `cgroupfs` and `systemd`: kubelet's cgroup manager names the pod's part, the
runtime its container's. A static pod's uid has no dashes.
https://github.com/kubernetes/kubernetes/blob/v1.34.2/pkg/kubelet/cm/cgroup_manager_linux.go (ToSystemd, ToCgroupfs)
https://github.com/containerd/containerd/blob/v2.2.0/internal/cri/server/helpers.go (getCgroupsPath)
https://github.com/cri-o/cri-o/tree/main/internal/config/cgmgr (ContainerCgroupPath)"""


@dataclass(frozen=True)
class Process:
    """A process of the host.

    Attributes:
        pid: the process id in the host's PID namespace.
        own_pid: the process id in the innermost PID namespace of the process, by which it knows itself.
        start_time: when the process started, in clock ticks since the host booted.
        pod_uid: the uid of the pod in whose cgroup the process is; empty outside all pods.
        container_id: the container's id in the runtime; empty outside all pods.
    """

    pid: int
    own_pid: int
    start_time: int
    pod_uid: str = ""
    container_id: str = ""


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Returns the process that has a process id now; None if there is none, or its files cannot be read.

    The files contain the program's name, which may consist of any bytes.

    Args:
        pid: the process id, in the host's PID namespace.
        proc: the folder in which the host's /proc is mounted.
    """
    folder = proc / str(pid)
    try:
        began = _start_time(_stat(proc, pid))
        own_pid = own_pid_of((folder / "status").read_bytes())
        pod_uid, container_id = in_pod((folder / "cgroup").read_text(errors="replace"))
        again = _start_time(_stat(proc, pid))
    except (OSError, ValueError):
        return None
    return Process(pid, own_pid, began, pod_uid, container_id) if began == again else None


def in_pod(cgroups: str) -> tuple[str, str]:
    """Returns the uid of the pod and the id of the container to which a process belongs; empty texts outside all pods.

    Args:
        cgroups: the text of /proc/PID/cgroup, of cgroup version 1 or 2. The first container in it counts, since a
            container may make further cgroups.
    """
    found = _IN_POD.search(cgroups)
    return (found["uid"].replace("_", "-"), found["container"]) if found else ("", "")


def own_pid_of(status: bytes) -> int:
    """Returns a process's id in its innermost PID namespace.

    Args:
        status: the content of /proc/PID/status, whose line NSpid names the id (proc(5)). A newline alone ends a line:
            of all bytes that end a line of text, it is the only one that the kernel escapes in a process's name.

    Raises:
        ValueError: there is no such line, or it names no process id.
    """
    for line in status.split(b"\n"):
        name, _, pids = line.partition(b":")
        if name == b"NSpid" and pids.split():
            return int(pids.split()[-1])
    raise ValueError("no NSpid")


def process_names(proc: Path = PROC) -> dict[int, bytes]:
    """Returns the name of each process of the host, keyed by process id, so that a program can be found by its name.

    The kernel cuts a program's name at 15 bytes. A program may change its own name.

    Raises:
        OSError: the folder `proc` cannot be read.
    """
    found = {}
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for pid in os.listdir(folder):  # noqa: PTH208 - a Path for each takes longer than the system calls
            if pid.isdecimal():
                with suppress(OSError):  # it has ended
                    found[int(pid)] = _content(f"{pid}/comm", NAME_BYTES, folder).removesuffix(b"\n")
    finally:
        os.close(folder)
    return found


def is_of_node(pid: int, administers: Callable[[str], bool], proc: Path = PROC) -> bool:
    """Returns whether a process belongs to the admin of the node, so that its name can be trusted.

    The process does if it runs outside all pods, or in a container that was made with the right to administer the host.
    The author of any other pod may give a process any name. The answer is False for a process that ends, or whose files
    in /proc cannot be read.

    Args:
        pid: the process id, in the host's PID namespace.
        administers: returns whether a container, given its id in the runtime, was made with the right to administer
            the host.
        proc: the folder in which the host's /proc is mounted.
    """
    try:
        _, container_id = in_pod((proc / str(pid) / "cgroup").read_text(errors="replace"))
        # By cgroup version 1 a process that ends is in no pod any more, and a pod may keep one that has ended for long.
        ends = _field(_stat(proc, pid), FLAGS) & EXITING
    except (OSError, ValueError):
        return False
    return not ends and (not container_id or administers(container_id))


class Processes:
    """Reads processes of the host, and remembers them from one call to the next so that few files are read again."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: Mapping[int, Process] = {}

    def look(self, pids: frozenset[int]) -> Mapping[int, Process]:
        """Returns the processes that live now under these ids of the host's PID namespace, keyed by the id.

        A process that has got an earlier one's id is read anew.
        """
        found = {}
        for pid in pids:
            known = self._known.get(pid)
            process = known if known is not None and self._lives(known) else read_process(pid, self._proc)
            if process is not None:
                found[pid] = process
        self._known = found
        return found

    def _lives(self, process: Process) -> bool:
        try:
            return _start_time(_stat(self._proc, process.pid)) == process.start_time
        except (OSError, ValueError):
            return False


def _stat(proc: Path, pid: int) -> str:
    """Returns the text of /proc/PID/stat, which the agent reads once a second for each process on a GPU.

    Raises:
        OSError: there is no such process.
    """
    return _content(f"{proc}/{pid}/stat", STAT_BYTES).decode(errors="replace")


def _content(path: str, most_bytes: int, folder: int | None = None) -> bytes:
    """Returns the first bytes of a file of /proc, at most `most_bytes`.

    It makes the system calls itself: a Path and a text file for each file took twice as long.

    Args:
        folder: a descriptor of the folder to which the path is relative; None for the working directory.

    Raises:
        OSError: there is no such process.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


def _start_time(stat: str) -> int:
    """Returns a process's start time from the text of /proc/PID/stat, in clock ticks since the host booted.

    Raises:
        ValueError: the text has no such field, or it is no number.
    """
    return _field(stat, START_TIME)


def _field(stat: str, number: int) -> int:
    """Returns a numeric field of /proc/PID/stat; `number`, counted from 1, is that of a field after the program's name.

    Raises:
        ValueError: the text has no such field, or it is no number.
    """
    # The second field is the program's name in parentheses, which may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    if len(fields) < number - 2:
        raise ValueError(f"no field {number} in {stat!r}")
    return int(fields[number - 3])
