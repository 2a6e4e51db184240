"""Keeps a writer of the schedule pages running beside the agent, and replaces one that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from nodeagent import handover
from nodeagent.pages import last_write_ns, read_shown, written_ns
from nodeagent.schedule_page import Shown

_log = structlog.get_logger(__name__)

NS = 10**9
HANGS_SECONDS = 30.0
"""The time without a sign of work (a written page or note) after which the writer is suspected to hang. A writer starts
within seconds, and a page is stale after one; but to end a writer that only waits for a processor would delay the pages
further."""
AGAIN_SECONDS = 1.0
"""The time after the suspicion in which the writer may still show that it works. If the agent and the writer were
stopped together, the agent may run again before the writer does."""
END_SECONDS = 2.0
"""The time that the writer has to end once it is asked to; it checks for the request every 20 ms."""


class Silence(NamedTuple):
    """A time in which the writer of the schedule pages shows no sign of work. Times are ns of CLOCK_MONOTONIC.

    Attributes:
        worked_ns: when the writer last showed a sign of work; 0 for never.
        found_ns: when the agent first noticed that there was no sign of work since then.
    """

    worked_ns: int
    found_ns: int

    def lasts(self, now_ns: int) -> bool:
        """Returns whether the silence has lasted AGAIN_SECONDS since it was noticed: the writer then counts as hanging.

        Args:
            now_ns: the present time, in ns of CLOCK_MONOTONIC.
        """
        return now_ns - self.found_ns >= AGAIN_SECONDS * NS


def silence(before: Silence | None, worked_ns: int, since_ns: int, now_ns: int) -> Silence | None:
    """Returns the present silence of the writer of the schedule pages; None for the first HANGS_SECONDS without work.

    All times are ns of CLOCK_MONOTONIC.

    Args:
        before: the previous answer; its silence goes on if the writer has shown no sign of work since.
        worked_ns: when the writer last showed that it works; 0 before the first time. A time later than `now_ns` counts
            as 0: it was noted in an earlier boot, in a folder on a disk.
        since_ns: the time from which the writer has had pages to write.
        now_ns: the present time.
    """
    worked_ns = worked_ns if worked_ns <= now_ns else 0
    if now_ns - max(worked_ns, since_ns) < HANGS_SECONDS * NS:
        return None
    return before if before is not None and before.worked_ns == worked_ns else Silence(worked_ns, now_ns)


class WriterProcess:
    """Runs the process that writes a node's schedule pages.

    One thread calls `keep` and `end`; any thread may call the other methods.
    """

    def __init__(self, root: Path, ended: Callable[[], None], clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Stores how to run the process, which `keep` starts.

        Args:
            root: the agent's folder.
            ended: called for each process that ended by itself or hung.
            clock: returns ns of CLOCK_MONOTONIC.
        """
        self._root = root
        self._ended = ended
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._to_show: Mapping[str, frozenset[Shown]] = {}
        self._has: Mapping[str, int] = {}
        """The time from which the writer has had each page to write, in ns of CLOCK_MONOTONIC, keyed by the GPU's uuid.

        `_to_show` and `_has` are replaced whole, so that they need no lock.
        """
        self._since_ns = 0
        self._silence: Silence | None = None

    def is_to_show(self, gpus: Mapping[str, frozenset[Shown]]) -> None:
        """Stores the containers that each GPU's page must show, keyed by the GPU's uuid, for `outdated_pages`."""
        self._to_show = gpus

    def set_gpus(self, uuids: Iterable[str]) -> None:
        """Replaces the set of GPUs, given by uuid, whose schedule pages the process has to write."""
        now_ns, before = self._clock(), self._has
        self._has = {uuid: before.get(uuid, now_ns) for uuid in uuids}

    def oldest_page_seconds(self) -> float | None:
        """Returns the seconds since the least recent write of a page that is to be written; None for no such page.

        A page that was never written is as old as its GPU's first container.
        """
        known, now_ns = self._has, self._clock()
        ages = [now_ns - max(written_ns(self._root, uuid) or 0, since_ns) for uuid, since_ns in known.items()]
        return max(ages) / NS if ages else None

    def outdated_pages(self) -> int:
        """Returns the number of GPUs whose page is missing, or shows other containers or notices than it must.

        A page that is to change counts until it is written, which takes 40 ms. It counts for longer if the process
        refuses the GPU's containers, or if the host has no room for the process's input: the last page then stays.
        """
        return sum(read_shown(self._root, uuid) != containers for uuid, containers in self._to_show.items())

    def keep(self) -> None:
        """Starts the process that writes the pages if it does not run, and kills it if it hangs.

        If the process has ended or was killed, the next call logs that, and starts another. If the host has no room for
        a process, the call logs that, and the next one tries again. A process that waits for the lock of another writer
        does not count as hanging.
        """
        if self._process is not None and self._process.poll() is None:
            self._end_one_that_hangs(self._process)
            return
        if self._process is not None:
            _log.error("writer of the pages ended", status=self._process.returncode)
            self._process = None
            self._ended()
        command = [sys.executable, "-m", "nodeagent.pages", "--root", str(self._root), "--parent", str(os.getpid())]
        try:
            self._process = subprocess.Popen(command)  # noqa: S603 - this program's own module
        except OSError as error:
            _log.error("writer of the pages not started", error=str(error))
        self._wait_anew()

    def end(self) -> None:
        """Ends the process that writes the pages, by SIGKILL if it does not end within END_SECONDS."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # it may be in a system call that cannot be interrupted
                self._process.wait(END_SECONDS)

    def _end_one_that_hangs(self, process: subprocess.Popen[bytes]) -> None:
        known = self._has
        if not known:
            self._silence = None
            return
        since_ns = max(min(known.values()), self._since_ns)
        # A writer that refuses its input does not hang, and another one would refuse the same: its note proves that it
        # runs. Where the disk has no room for a note, a write to a page, which needs none, proves it.
        worked_ns = handover.noted_ns(self._root / handover.PAGES)
        if silence(None, worked_ns, since_ns, self._clock()) is not None:
            worked_ns = max(worked_ns, last_write_ns(self._root, known.keys()) or 0)
        now_ns = self._clock()  # after the signs of work, none of which may seem to come from an earlier boot
        self._silence = silence(self._silence, worked_ns, since_ns, now_ns)
        if self._silence is None or not self._silence.lasts(now_ns):
            return
        silent_seconds = (now_ns - max(self._silence.worked_ns, since_ns)) / NS
        if self._waits_for_another(process.pid):
            _log.error("another writer has the lock of the pages", silent_seconds=silent_seconds)
        else:
            _log.error("writer of the pages hangs", silent_seconds=silent_seconds)
            process.kill()
        self._wait_anew()

    def _waits_for_another(self, pid: int) -> bool:
        """Returns whether a process other than the one with this id holds the writer's lock; false if unknown."""
        try:
            return handover.held_by_another(self._root / handover.PAGES, pid)
        except OSError:
            return False

    def _wait_anew(self) -> None:
        self._since_ns, self._silence = self._clock(), None
