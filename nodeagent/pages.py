"""The writer of all schedule pages of a node: one process beside the agent, so that no page waits for anything else.

    python -m nodeagent.pages --root FOLDER --parent PID

It reads `FOLDER/schedule.json` again whenever that changes: {"gpus": [{"uuid": "GPU-...", "containers": [...]}]}, the
containers as nodeagent.schedule describes them; and the driver's figures from `FOLDER/figures.json`
(nodeagent.figures_file). Each GPU's page is `FOLDER/gpus/UUID/schedule`; that of a GPU whose containers are refused
keeps the containers that it had. A second writer of the same folder waits until the first has ended, and goes on from
there.
"""

from __future__ import annotations

import argparse
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
from nodeagent.rounds import Container, State, active_since_ns, begun, describe, rest, step
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
CONTENDED = 2
AGAIN_NS = 1_000_000_000
"""After how long the writer tries again what the host did not let it do, as where `/run` was full."""
SCHEDULE = "schedule.json"

NO_FIGURES: Keyed = {}

Gpus = Mapping[str, tuple[Container, ...]]


class Ledgers:
    """The containers' ledgers, kept open: to open and close them took most of a round's time."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}

    def activity(self, ledger: Path, device: int) -> Activity:
        """Returns the activity on a device in a ledger; none while the ledger is absent, short or invalid."""
        descriptor = self._open.get(ledger)
        try:
            if descriptor is None:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = self._open[ledger] = os.open(ledger, flags)
            return unpack_one(os.pread(descriptor, activity_bytes(device), 0), device)
        except OSError:
            return Activity()

    def keep(self, ledgers: Iterable[Path]) -> None:
        """Closes all other ledgers."""
        wanted = frozenset(ledgers)
        for path in [path for path in self._open if path not in wanted]:
            os.close(self._open.pop(path))


class Gpu:
    """One GPU's schedule page, and the state that its writer keeps between writes."""

    def __init__(self, uuid: str, page: Path, now_ns: int) -> None:
        """Creates the page's file where it is missing.

        Raises:
            OSError: the file cannot be made.
        """
        page.parent.mkdir(parents=True, exist_ok=True)
        self._uuid = uuid
        self._file = PageFile(page)
        self._state: State = begun(now_ns)
        self._written: tuple[turns.Plan, tuple[Container, ...], Keyed] | None = None
        """The content of the page apart from its times."""

    @property
    def contended(self) -> bool:
        """Whether two or more containers had work at the last look."""
        return len(self._state.active) >= CONTENDED

    def write(
        self, containers: tuple[Container, ...], ledgers: Ledgers, figures: Keyed, clock: Callable[[], int]
    ) -> None:
        """Reads the activity that may change turns, plans these, and publishes them with the driver's last figures."""
        now_ns = clock()
        rested = rest(self._state, containers, now_ns)
        if rested is None or self._wakes(containers, ledgers, now_ns):
            activities = {each.slot: ledgers.activity(each.ledger, each.device) for each in containers}
            now_ns = clock()
            rested = step(self._state, containers, activities, now_ns)
        self._state, made = rested
        last = self._written
        if last is not None and made is last[0] and containers is last[1] and figures is last[2]:
            self._file.renew(now_ns, self._state.period_start_ns)
            return
        known = of_slots(figures, ((each.slot, each.key) for each in containers))
        self._file.write(describe(self._uuid, containers, self._state, made, now_ns, known))
        self._written = made, containers, figures

    def _wakes(self, containers: tuple[Container, ...], ledgers: Ledgers, now_ns: int) -> bool:
        """Returns whether a container that was idle at the last look has work."""
        active, since_ns = self._state.active, active_since_ns(now_ns)
        return any(
            ledgers.activity(each.ledger, each.device).activity_ns > since_ns
            for each in containers
            if each.slot not in active
        )

    def close(self) -> None:
        """Unmaps the page, which stays as it is."""
        self._file.close()


def read_gpus(path: Path) -> tuple[Gpus, Mapping[str, str]]:
    """Returns the containers of each GPU, and why those of other GPUs are refused, by uuid.

    Raises:
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
        except (KeyError, TypeError) as error:
            refused[uuid] = f"{error!r} is missing or of a wrong kind"
        except ValueError as error:
            refused[uuid] = str(error)
    return gpus, refused


def _checked(document: Mapping[str, Any]) -> tuple[Container, ...]:
    """Returns a GPU's containers, of which a page can be written.

    Raises:
        KeyError, TypeError: a field is missing or of a wrong kind.
        ValueError: two have one slot, they have more than the GPU, or a number is beyond what a page or a ledger holds.
    """
    uuid, containers = containers_of(document)
    if len({each.slot for each in containers}) < len(containers):
        raise ValueError("two containers have one slot")
    if any(not 0 <= each.device < LEDGER_DEVICES for each in containers):
        raise ValueError(f"a ledger has room for {LEDGER_DEVICES} devices")
    state, made = step(begun(0), containers, {}, 0)
    pack(describe(uuid, containers, state, made, 0), 0)
    return containers


def written_ns(root: Path, uuid: str) -> int | None:
    """Returns when a GPU's page was last written, in ns of CLOCK_MONOTONIC; 0 for never, None without a page."""
    try:
        with (root / "gpus" / uuid / "schedule").open("rb") as page:
            return heartbeat_ns(page.read(HEARTBEAT_BYTES))
    except (OSError, ValueError):
        return None


READS = 8
"""The times that a page is read until it is whole, as the shim does (vcuda/include/schedule.h)."""


def read_shown(root: Path, uuid: str) -> frozenset[Shown] | None:
    """Returns the containers that a GPU's page shows; None where there is no page, or its writing does not end."""
    for _ in range(READS):
        try:
            return shown((root / "gpus" / uuid / "schedule").read_bytes())
        except ValueError:
            continue
        except OSError:
            break
    return None


def last_write_ns(root: Path, uuids: Iterable[str]) -> int | None:
    """Returns when one of these GPUs' pages was last written, in ns of CLOCK_MONOTONIC; None where there is no page."""
    return max((at for uuid in uuids if (at := written_ns(root, uuid)) is not None), default=None)


class Writer:
    """Writes the schedule pages of a node, round by round."""

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
        """Runs one round: reads a changed schedule, and writes the pages that are due."""
        changed = self._reread()
        self._reread_figures()
        quiet = changed or self._round % QUIET_EVERY == 0
        self._round += 1
        for uuid, containers in self._gpus.items():
            page = self._pages[uuid]
            if quiet or page.contended:
                page.write(containers, self._ledgers, self._figures.get(uuid, NO_FIGURES), self._clock)

    def close(self) -> None:
        """Closes all files; the pages stay as they are."""
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
                self._pages[uuid] = Gpu(uuid, self._root / "gpus" / uuid / "schedule", self._clock())
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
        """Lets a file be read again after AGAIN_NS where the host, and not what the file says, was in the way."""
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
    """The instants at which rounds begin, in seconds: one a CONTENDED_SECONDS, whatever a round's work takes.

    A round that takes longer is followed by the next one at once, and makes no later one come sooner.
    """

    def __init__(self, now: float) -> None:
        self._due = now

    def left(self, now: float) -> float:
        """Returns the time until the next round begins, which the caller waits."""
        self._due = max(self._due + CONTENDED_SECONDS, now)
        return self._due - now


def main() -> None:
    """Runs the writer until SIGTERM or SIGINT, or until its parent ends, also where that ends before this begins."""
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
    while not stopped(pace.left(time.monotonic())):
        writer.look()
        handover.note(lock, time.monotonic_ns())
    writer.close()


if __name__ == "__main__":
    main()
