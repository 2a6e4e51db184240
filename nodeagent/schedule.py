"""Writes one GPU's schedule page: reads its containers' activity, plans turns, and publishes them.

    python -m nodeagent.schedule --page FILE --containers FILE

The containers file is JSON and read again when it changes: {"uuid": "GPU-...", "containers": [{"slot": 0, "key": 1,
"corePercent": 30, "policy": "hard", "ledger": "/path/of/ledger", "device": 0}]}; the policy is hard, elastic or
best_effort, device the GPU's index in the container's configuration. A container may have "memoryLimitBytes", a limit
other than its configuration's, "noticeNs", when it will be evicted on CLOCK_MONOTONIC, and "cgroup", its folder in the
host's cgroup hierarchy: once one is named, NVML is asked what the driver holds for its processes. A container with
several GPUs has "startNs" (nodeagent.turns.starts), where its turn begins in the period on each of them. A container
that may start again has a "name", by which its debts and claims outlive its key.

This program needs only the standard library of Python 3.9, and nvidia-ml-py once NVML is asked: `make -C vcuda gpu`
runs it on machines on which nothing of FairGPU is installed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairgpu.signals import call_at_end
from nodeagent import turns
from nodeagent.nvml import Figures, asked
from nodeagent.rounds import Container, describe, first_state, step
from nodeagent.schedule_page import (
    CHECKSUM_AT,
    EPOCH_AT,
    GENERATION_AT,
    HEARTBEAT_AT,
    LEDGER_PAGE_SIZE,
    SIZE,
    Activity,
    Page,
    pack,
    rest_checksum,
    times_checksum,
    unpack_activity,
)

GENERATION_END = GENERATION_AT + 8
GENERATION_WORD, HEARTBEAT_WORD, EPOCH_WORD = GENERATION_AT // 8, HEARTBEAT_AT // 8, EPOCH_AT // 8
CHECKSUM_HALF_WORD = CHECKSUM_AT // 4
PERIOD_AT = Page._fields.index("period_ns")
"""The index of a page's first field that stays the same in each period of one plan; of the fields before, only the uuid
does."""
INTERVAL_SECONDS = 0.01
"""The time between two writes, after which a waking container is noticed at the latest; the format allows 20 ms."""


class PageFile:
    """The file of a GPU's schedule page, mapped for writing. It is created if missing, and never replaced.

    A file of another length gets the length of a page.

    Raises:
        OSError: the file cannot be opened, or its file system has no room for it.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != SIZE:
                # A store into a hole of a mapped file ends the process where the file system is full.
                os.posix_fallocate(descriptor, 0, SIZE)
                os.ftruncate(descriptor, SIZE)
            self._memory = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        # A page's numbers are little-endian, as the processors of GPU nodes are. One store writes each of them whole.
        self._words = memoryview(self._memory).cast("Q")
        self._half_words = memoryview(self._memory).cast("I")
        self._generation = self._words[GENERATION_WORD] // 2 * 2
        self._last: Page | None = None
        self._rest = 0
        """The checksum of what follows the times of the last page."""

    def write(self, page: Page) -> None:
        """Writes a page into the file; a reader gets the old or the new page, or sees that it must read again.

        Raises:
            ValueError: the file has no room for the page; the last page stays.
        """
        last = self._last
        if last is not None and last.uuid == page.uuid and last[PERIOD_AT:] == page[PERIOD_AT:]:
            self.renew(page.heartbeat_ns, page.epoch_ns)
            return
        packed = pack(page, self._generation + 2)
        self._words[GENERATION_WORD] = self._generation + 1
        self._memory[:GENERATION_AT] = packed[:GENERATION_AT]
        self._memory[GENERATION_END:] = packed[GENERATION_END:]
        self._generation += 2
        self._words[GENERATION_WORD] = self._generation
        self._last, self._rest = page, rest_checksum(packed)

    def renew(self, heartbeat_ns: int, epoch_ns: int) -> None:
        """Writes new times into the page that `write` wrote last, and changes nothing else of it.

        Args:
            heartbeat_ns: when the page is written, in ns of CLOCK_MONOTONIC.
            epoch_ns: when the present period began, in ns of CLOCK_MONOTONIC.

        Raises:
            ValueError: a time does not fit its field; the page stays.
        """
        checksum = times_checksum(heartbeat_ns, epoch_ns) ^ self._rest
        words, generation = self._words, self._generation
        words[GENERATION_WORD] = generation + 1
        words[HEARTBEAT_WORD] = heartbeat_ns
        words[EPOCH_WORD] = epoch_ns
        self._half_words[CHECKSUM_HALF_WORD] = checksum
        words[GENERATION_WORD] = self._generation = generation + 2

    def close(self) -> None:
        """Unmaps the file. The page stays as it is."""
        self._words.release()
        self._half_words.release()
        self._memory.close()


def read_activity(container: Container) -> Activity:
    """Returns the activity of a container on a GPU, from its shim's ledger file.

    All its figures are 0 while the file is missing or invalid.
    """
    try:
        descriptor = os.open(container.ledger, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Activity()
    try:
        devices = unpack_activity(os.pread(descriptor, LEDGER_PAGE_SIZE, 0))
    except OSError:
        return Activity()
    finally:
        os.close(descriptor)
    return devices[container.device] if container.device < len(devices) else Activity()


def read_containers(path: Path) -> tuple[str, tuple[Container, ...]]:
    """Returns a GPU's uuid and the containers that share it, from a JSON file of the form that this module describes.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not of that form; the message names the fault.
    """
    try:
        return containers_of(json.loads(path.read_bytes()))
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: {error!r} is missing or of a wrong kind") from error


def containers_of(document: Mapping[str, Any]) -> tuple[str, tuple[Container, ...]]:
    """Returns a GPU's uuid and the containers that share it, from a JSON object of the form that this module describes.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: a field is missing or of a wrong kind.
    """
    containers = tuple(
        Container(
            slot=int(each["slot"]),
            key=int(each["key"]),
            core_percent=int(each["corePercent"]),
            policy=turns.Policy[str(each["policy"]).upper()],
            ledger=str(each["ledger"]),
            device=int(each.get("device", 0)),
            memory_limit_bytes=int(each.get("memoryLimitBytes", 0)),
            notice_ns=int(each.get("noticeNs", 0)),
            cgroup=Path(each["cgroup"]) if each.get("cgroup") else None,
            start_ns=int(each["startNs"]) if "startNs" in each else None,
            name=str(each.get("name", "")),
        )
        for each in document["containers"]
    )
    return str(document["uuid"]), containers


def run(page: Path, source: Path, stop: threading.Event, clock: Callable[[], int] = time.monotonic_ns) -> None:
    """Writes one GPU's schedule page until it is stopped.

    A containers file that becomes invalid, or is gone, is reported, and the last valid one is used.

    Args:
        page: the path of the page's file.
        source: the path of the containers file, which is read again when it changes.
        stop: ends the writing once it is set.
        clock: returns ns of CLOCK_MONOTONIC.

    Raises:
        OSError: a file cannot be read or written at the start.
        ValueError: at the start, the containers file is invalid, or its shares sum to more than 100 percent; or it has
            a number for which the page has no room.
    """
    version = _version(source)  # before it is read: a later change shows
    uuid, containers = read_containers(source)
    state = first_state(clock())
    file = PageFile(page)
    driver = Figures(asked(uuid))
    threading.Thread(target=driver.watch, args=(stop,), name="nvml", daemon=True).start()
    try:
        while not stop.is_set():
            now_ns = clock()
            activities = {each.slot: read_activity(each) for each in containers}
            driver.listed = (containers, {slot: activity.charged_bytes for slot, activity in activities.items()})
            driver.ask(max((activity.sample_wanted_ns for activity in activities.values()), default=0))
            state, made = step(state, containers, activities, now_ns, clock())
            file.write(describe(uuid, containers, state, made, now_ns, driver.latest))
            stop.wait(INTERVAL_SECONDS)
            changed = _version(source)
            if changed != version:
                version = changed
                uuid, containers = _reread(source, (uuid, containers))
    finally:
        file.close()


def _version(source: Path) -> tuple[int, int]:
    """Returns a file's inode and time of change, which differ after each change; zeros while there is no file."""
    try:
        status = source.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _reread(source: Path, kept: tuple[str, tuple[Container, ...]]) -> tuple[str, tuple[Container, ...]]:
    try:
        uuid, containers = read_containers(source)
        turns.plan([turns.Tenant(each.slot, each.core_percent, each.policy, active=False) for each in containers])
    except (OSError, ValueError) as error:
        sys.stderr.write(json.dumps({"event": "schedule.containers_refused", "reason": str(error)}) + "\n")
        return kept
    return uuid, containers


def main() -> None:
    """Runs the writer of one GPU's schedule page until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m nodeagent.schedule", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--page", type=Path, required=True, help="the schedule page to write")
    parser.add_argument("--containers", type=Path, required=True, help="JSON: the GPU's uuid and its containers")
    arguments = parser.parse_args()
    stop = threading.Event()
    call_at_end(stop.set)
    run(arguments.page, arguments.containers, stop)


if __name__ == "__main__":
    main()
