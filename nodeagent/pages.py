"""The writer of all schedule pages of a node: one process beside the agent, so that no page waits for anything else.

    python -m nodeagent.pages --root FOLDER --parent PID

The writer plans the turns in which each container may launch kernels on a GPU, and publishes them for the shims. Its
inputs are two files, which it reads again whenever they change:

- `FOLDER/schedule.json`: {"gpus": [{"uuid": "GPU-...", "containers": [...]}]}. The form of a container is that of
  nodeagent.schedule. If the containers of a GPU are invalid, its page keeps the last valid ones.
- `FOLDER/figures.json`: what the driver says of each container's memory and GPU time (nodeagent.figures_file).

It writes one page for each GPU, `FOLDER/gpus/UUID/schedule`. A second writer of the same folder waits until the first
has ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from fairgpu.logs import configure_logs
from fairgpu.signals import call_at_end
from nodeagent import figures_file, handover, turns
from nodeagent.figures_file import Keyed, of_slots
from nodeagent.rounds import Container, State, active_since_ns, describe, first_state, rest, rests_until_ns, step
from nodeagent.schedule import PageFile, containers_of
from nodeagent.schedule_page import (
    HEARTBEAT_BYTES,
    LEDGER_DEVICES,
    Activity,
    Shown,
    activity_bytes,
    heartbeat_ns,
    pack,
    shown,
    unpack_one,
)

_log = structlog.get_logger(__name__)

CONTENDED_SECONDS = 0.02
"""The time between two writes of a page with two or more active containers (vcuda/include/schedule.h)."""
QUIET_EVERY = 2
"""The rounds between two writes of any other page: 40 ms, and less than 100 where the writer wakes late."""
NOTED_EVERY = 5
"""The rounds between two notes by which the writer shows that it works: 100 ms, at most a tenth of the time that the
agent waits for a note."""
CONTENDED = 2
AGAIN_NS = 1_000_000_000
"""The time after which the writer repeats what the host refused, as when `/run` was full."""
SCHEDULE = "schedule.json"

NO_FIGURES: Keyed = {}

Gpus = Mapping[str, tuple[Container, ...]]


class Ledgers:
    """Reads the ledger files of containers' shims, and keeps them open: opening them took most of a round's time."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def activity(self, ledger: str, device: int) -> Activity:
        """Returns what a container's shim reports of its use of one GPU; all figures are 0 without a sound ledger.

        Args:
            ledger: the path of the container's ledger file.
            device: the GPU's index among the container's GPUs.
        """
        descriptor = self._open.get(ledger)
        try:
            if descriptor is None:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = self._open[ledger] = os.open(ledger, flags)
            return unpack_one(os.pread(descriptor, activity_bytes(device), 0), device)
        except OSError:
            return Activity()

    def keep(self, ledgers: Iterable[str]) -> None:
        """Closes the open ledger files, but for those at these paths."""
        wanted = frozenset(ledgers)
        for path in [path for path in self._open if path not in wanted]:
            os.close(self._open.pop(path))


class Gpu:
    """Writes the schedule page of one GPU, and keeps the state that the next write needs."""

    def __init__(self, uuid: str, page: Path, clock: Callable[[], int]) -> None:
        """Opens the page's file, and creates it if it is missing.

        Args:
            uuid: the GPU's uuid.
            page: the path of the page's file.
            clock: returns ns of CLOCK_MONOTONIC.

        Raises:
            OSError: the file cannot be opened or created.
        """
        page.parent.mkdir(parents=True, exist_ok=True)
        self._uuid = uuid
        self._file = PageFile(page)
        self._clock = clock
        self._state: State = first_state(clock())
        self._rests_until_ns = 0
        """The time until which a write changes only the page's times, if its containers and figures stay the same."""
        self._written: tuple[turns.Plan, tuple[Container, ...], Keyed] | None = None
        """The content of the page apart from its times."""

    @property
    def contended(self) -> bool:
        """Whether two or more containers had work on the GPU at the last write."""
        return len(self._state.active) >= CONTENDED

    def write(self, containers: tuple[Container, ...], ledgers: Ledgers, figures: Keyed, now_ns: int) -> None:
        """Plans the turns of the GPU's containers from their activity, and writes the schedule page.

        Args:
            containers: the containers that share the GPU.
            ledgers: the containers' ledger files.
            figures: the driver's figures of each container, keyed by its slot and key.
            now_ns: the present time, in ns of CLOCK_MONOTONIC.

        Raises:
            ValueError: the shares sum to more than 100 percent (OvercommittedError), or the page has no room for a
                number.
        """
        last = self._written
        if now_ns < self._rests_until_ns and last is not None and containers is last[1] and figures is last[2]:
            self._file.renew(now_ns, self._state.period_start_ns)
            return
        rested = rest(self._state, containers, now_ns)
        if rested is None or self._wakes(containers, ledgers, now_ns):
            activities = {each.slot: ledgers.activity(each.ledger, each.device) for each in containers}
            rested = step(self._state, containers, activities, now_ns, self._clock())
        self._state, made = rested
        all_active = len(self._state.active) == len(containers)
        self._rests_until_ns = rests_until_ns(self._state) if all_active else 0
        if last is not None and made is last[0] and containers is last[1] and figures is last[2]:
            self._file.renew(now_ns, self._state.period_start_ns)
            return
        known = of_slots(figures, ((each.slot, each.key) for each in containers))
        self._file.write(describe(self._uuid, containers, self._state, made, now_ns, known))
        self._written = made, containers, figures

    def _wakes(self, containers: tuple[Container, ...], ledgers: Ledgers, now_ns: int) -> bool:
        """Returns whether a container that had no work at the last write of the page has had or wanted work since.

        The page's turns are then planned anew, from the activity of all containers.
        """
        active, since_ns = self._state.active, active_since_ns(now_ns)
        return len(active) < len(containers) and any(
            ledgers.activity(each.ledger, each.device).activity_ns > since_ns
            for each in containers
            if each.slot not in active
        )

    def close(self) -> None:
        """Closes the page's file. The page stays as it is."""
        self._file.close()


def read_gpus(path: Path) -> tuple[Gpus, Mapping[str, str]]:
    """Returns the containers of each GPU from the writer's input file, and the GPUs that it must refuse.

    Returns:
        Two mappings that are keyed by the GPU's uuid: the containers of each sound GPU, and the reason against each
        other one.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no JSON object with a list of GPUs that have a uuid each.
    """
    gpus: dict[str, tuple[Container, ...]] = {}
    refused: dict[str, str] = {}
    try:
        listed = {str(each["uuid"]): each for each in json.loads(path.read_bytes())["gpus"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error!r} is missing or of a wrong kind") from error
    for uuid, each in listed.items():
        try:
            gpus[uuid] = _checked(each)
        except (KeyError, TypeError, OverflowError) as error:
            refused[uuid] = f"{error!r} is missing or of a wrong kind"
        except ValueError as error:
            refused[uuid] = str(error)
    return gpus, refused


def _checked(document: Mapping[str, Any]) -> tuple[Container, ...]:
    """Returns the containers in a GPU's entry of the writer's input, after checking that a page has room for them.

    Raises:
        KeyError, TypeError, OverflowError: a field is missing or of a wrong kind.
        ValueError: two containers have one slot, their shares exceed the GPU, or a number does not fit page or ledger.
    """
    uuid, containers = containers_of(document)
    if len({each.slot for each in containers}) < len(containers):
        raise ValueError("two containers have one slot")
    if any(not 0 <= each.device < LEDGER_DEVICES for each in containers):
        raise ValueError(f"a ledger has room for {LEDGER_DEVICES} devices")
    state, made = step(first_state(0), containers, {}, 0)
    pack(describe(uuid, containers, state, made, 0), 0)
    return containers


def written_ns(root: Path, uuid: str) -> int | None:
    """Returns when a GPU's schedule page was last written, in ns of CLOCK_MONOTONIC; 0 for never.

    None if there is no page, or it cannot be read.

    Args:
        root: the agent's folder.
    """
    try:
        with (root / "gpus" / uuid / "schedule").open("rb") as page:
            return heartbeat_ns(page.read(HEARTBEAT_BYTES))
    except (OSError, ValueError):
        return None


READS = 8
"""The most times that a page is read until it is whole; the shim does the same (vcuda/include/schedule.h)."""


def read_shown(root: Path, uuid: str) -> frozenset[Shown] | None:
    """Returns the containers that a GPU's schedule page shows; None if there is no page, or no reading finds it whole.

    Args:
        root: the agent's folder.
    """
    for _ in range(READS):
        try:
            return shown((root / "gpus" / uuid / "schedule").read_bytes())
        except ValueError:
            continue
        except OSError:
            break
    return None


def last_write_ns(root: Path, uuids: Iterable[str]) -> int | None:
    """Returns when the latest write of some schedule pages was, in ns of CLOCK_MONOTONIC; None without any page.

    Args:
        root: the agent's folder.
        uuids: the uuids of the pages' GPUs.
    """
    return max((at for uuid in uuids if (at := written_ns(root, uuid)) is not None), default=None)


class Writer:
    """Writes the schedule pages of all GPUs of a node, round by round."""

    def __init__(self, root: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._root = root
        self._clock = clock
        self._ledgers = Ledgers()
        self._gpus: Gpus = {}
        self._pages: dict[str, Gpu] = {}
        self._figures: Mapping[str, Keyed] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._again_ns: dict[str, int] = {}
        # Text instead of a Path: making and querying Paths took a twentieth of a round's time.
        self._schedule_file = str(root / SCHEDULE)
        self._figures_file = str(root / figures_file.NAME)
        self._round = 0

    def look(self) -> None:
        """Runs one round: reads an input file if it has changed, and writes the pages that are due.

        A round checks only one of the two files, in turn, since the system call for a check takes long after a sleep.
        After a change of `schedule.json`, the same round also checks the figures.
        """
        quiet = self._round % QUIET_EVERY == 0
        self._round += 1
        if not quiet or self._reread():
            self._reread_figures()
        now_ns = self._clock()  # one time for all pages, so that they have one checksum of their times
        for uuid, containers in self._gpus.items():
            page = self._pages[uuid]
            if quiet or page.contended:
                page.write(containers, self._ledgers, self._figures.get(uuid, NO_FIGURES), now_ns)

    def close(self) -> None:
        """Closes the files of all pages and ledgers. The pages stay as they are."""
        self._ledgers.keep(())
        for page in self._pages.values():
            page.close()

    def _reread(self) -> bool:
        path = self._schedule_file
        try:
            if not self._is_new(path):
                return False
            gpus, refused = read_gpus(Path(path))
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            _log.error("schedule refused", path=path, error=str(error))
            self._read_again(path, error)
            return False
        for uuid, error_text in refused.items():
            _log.error("schedule refused", path=path, uuid=uuid, error=error_text)
        gpus = {**gpus, **{uuid: self._gpus[uuid] for uuid in refused if uuid in self._gpus}}
        for uuid in gpus.keys() - self._pages.keys():
            try:
                self._pages[uuid] = Gpu(uuid, self._root / "gpus" / uuid / "schedule", self._clock)
            except OSError as error:
                _log.error("page not made", uuid=uuid, error=str(error))
                self._read_again(path, error)
        self._gpus = {uuid: containers for uuid, containers in gpus.items() if uuid in self._pages}
        self._ledgers.keep(each.ledger for containers in gpus.values() for each in containers)
        return True

    def _reread_figures(self) -> None:
        path = self._figures_file
        try:
            if self._is_new(path):
                self._figures = figures_file.decode(Path(path).read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.error("figures refused", path=path, error=str(error))
            self._read_again(path, error)

    def _read_again(self, path: str, error: Exception) -> None:
        """Makes the writer read an input file again after AGAIN_NS, even if the file does not change meanwhile.

        It does nothing unless `error` is an OSError: only then may an unchanged file be read with another result.
        """
        if isinstance(error, OSError):
            self._again_ns[path] = self._clock() + AGAIN_NS

    def _is_new(self, path: str) -> bool:
        status = os.stat(path)  # noqa: PTH116 - see __init__
        version = status.st_ino, status.st_mtime_ns
        known, self._versions[path] = self._versions.get(path), version
        if path in self._again_ns and self._clock() >= self._again_ns[path]:
            del self._again_ns[path]
            return True
        return version != known


class Pace:
    """The times at which the page writer's rounds begin, CONTENDED_SECONDS apart, whatever part of that a round takes.

    After a round that takes longer, the next one begins at once; later rounds do not come sooner to catch up.
    """

    def __init__(self, now: float) -> None:
        self._due = now

    def left(self, now: float) -> float:
        """Returns the seconds for which the caller must wait until the next round begins.

        The round begins CONTENDED_SECONDS after the one for which the method was called last; at once if that is past.

        Args:
            now: the present time, in seconds of a monotonic clock.
        """
        self._due = max(self._due + CONTENDED_SECONDS, now)
        return self._due - now


def main() -> None:
    """Runs the writer of the schedule pages until SIGTERM or SIGINT, or until its parent, the agent's process, ends.

    It first waits until no other process writes the pages of this folder.
    """
    parser = argparse.ArgumentParser(prog="python -m nodeagent.pages", description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--root", type=Path, required=True, help="the agent's folder")
    parser.add_argument("--parent", type=int, required=True, help="the process id of the agent, with which it ends")
    arguments = parser.parse_args()
    configure_logs()
    stop = threading.Event()
    call_at_end(stop.set)

    def stopped(seconds: float = CONTENDED_SECONDS) -> bool:
        time.sleep(seconds)  # an Event's wait with a limit makes a lock each time
        return stop.is_set() or os.getppid() != arguments.parent

    lock = handover.wait_for(arguments.root / handover.PAGES, stopped)
    if lock is None:
        return
    writer = Writer(arguments.root)
    pace = Pace(time.monotonic())
    for number in itertools.count():
        if stopped(pace.left(time.monotonic())):
            break
        writer.look()
        if number % NOTED_EVERY == 0:
            handover.note(lock, time.monotonic_ns())
    writer.close()


if __name__ == "__main__":
    main()
