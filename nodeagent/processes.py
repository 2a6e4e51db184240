"""Processes of the host as /proc shows them: the container of each, and the pid by which the process knows itself.

The agent shares the host's PID namespace, so the pids in the agent's /proc are those that NVML names. Every file
read here is readable without rights over the process (proc(5)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
START_TIME = 22
"""The field of /proc/PID/stat with the start time, counted from 1."""
_IN_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
    r"[/:](?:[a-z-]+[-:])?(?P<container>[0-9a-f]{64})"
)
"""A container's cgroup by the drivers `cgroupfs` and `systemd`: kubelet's cgroup manager names the pod's part, the
runtime its container's. A static pod's uid has no dashes."""


@dataclass(frozen=True)
class Process:
    """A process of the host.

    Attributes:
        pid: the pid in the host's PID namespace.
        own_pid: the pid in the innermost PID namespace of the process, by which it knows itself.
        start_time: the start of the process, in clock ticks since the host booted.
        pod_uid: the uid of the pod in whose cgroup the process is; empty outside all pods.
        container_id: the container's id, as the runtime names it; empty outside all pods.
    """

    pid: int
    own_pid: int
    start_time: int
    pod_uid: str = ""
    container_id: str = ""


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """Returns the process that has this pid now; None where there is none, or its files cannot be read."""
    folder = proc / str(pid)
    try:
        began = _start_time((folder / "stat").read_text())
        own_pid = own_pid_of((folder / "status").read_text())
        pod_uid, container_id = in_pod((folder / "cgroup").read_text())
        again = _start_time((folder / "stat").read_text())
    except (OSError, ValueError):
        return None
    return Process(pid, own_pid, began, pod_uid, container_id) if began == again else None


def in_pod(cgroups: str) -> tuple[str, str]:
    """Returns the pod's uid and the container's id by the text of /proc/PID/cgroup; empty outside all pods.

    The text may be of cgroup version 1 or 2. Its first match counts, since a container may make further cgroups.
    """
    found = _IN_POD.search(cgroups)
    return (found["uid"].replace("_", "-"), found["container"]) if found else ("", "")


def own_pid_of(status: str) -> int:
    """Returns a process's pid in its innermost PID namespace, from the text of /proc/PID/status (proc(5), NSpid).

    Raises:
        ValueError: there is no such line, or it names no pid.
    """
    for line in status.splitlines():
        name, _, pids = line.partition(":")
        if name == "NSpid" and pids.split():
            return int(pids.split()[-1])
    raise ValueError("no NSpid")


class Processes:
    """Remembers processes from one look to the next, for as long as the driver names them."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: Mapping[int, Process] = {}

    def look(self, pids: frozenset[int]) -> Mapping[int, Process]:
        """Returns the living processes among these, by pid; a reused pid is another process."""
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
            return _start_time((self._proc / str(process.pid) / "stat").read_text()) == process.start_time
        except (OSError, ValueError):
            return False


def _start_time(stat: str) -> int:
    """Returns a process's start time from the text of /proc/PID/stat, in clock ticks since the host booted.

    Raises:
        ValueError: the text has no such field, or it is no number.
    """
    # The second field is the program's name in parentheses, which may hold spaces and parentheses.
    return int(stat.rpartition(")")[2].split()[START_TIME - 3])
