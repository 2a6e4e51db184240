"""The process that writes a schedule page, as a container on that GPU sees it."""

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent import schedule
from nodeagent.driver_figures import DriverSample
from nodeagent.schedule_page import LEDGER_MAGIC, Page
from tests.support.processes import ending
from tests.support.schedule_page import unpack
from tests.support.waiting import wait_until


def ledger(folder: Path, name: str, activity_ns: int = 0) -> str:
    page = bytearray(4096)
    struct.pack_into("<QQ", page, 0, LEDGER_MAGIC, 1)
    struct.pack_into("<Q", page, 64, activity_ns)
    (folder / name).write_bytes(page)
    return str(folder / name)


def containers(folder: Path, *listed: dict[str, object]) -> Path:
    path = folder / "containers.json"
    fresh = folder / "containers.new"
    fresh.write_text(json.dumps({"uuid": "GPU-1", "containers": listed}))
    fresh.rename(path)
    return path


@contextmanager
def writer(folder: Path) -> Iterator[Path]:
    page = folder / "schedule"
    command = [sys.executable, "-m", "nodeagent.schedule", "--page", page, "--containers", folder / "containers.json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, ending(process):
        yield page
    assert process.returncode == 0


def eventually(page: Path, holds: Callable[[Page], bool]) -> Page:
    """The first good page of which that holds."""

    def good() -> Page | None:
        try:
            found = unpack(page.read_bytes())
        except (OSError, ValueError):
            return None
        return found if holds(found) else None

    return wait_until(good, "a page comes of which that holds")


def test_turns_follow_what_the_containers_do(tmp_path: Path) -> None:
    thirty = {"slot": 0, "key": 1, "corePercent": 30, "policy": "elastic", "ledger": ledger(tmp_path, "thirty")}
    seventy = {"slot": 1, "key": 2, "corePercent": 70, "policy": "hard", "ledger": ledger(tmp_path, "seventy")}
    containers(tmp_path, thirty, seventy)
    with writer(tmp_path) as page:
        idle = eventually(page, lambda found: len(found.slots) == 2)
        assert not any(slot.active for slot in idle.slots)
        ledger(tmp_path, "thirty", time.monotonic_ns() + 10**12)
        alone = eventually(page, lambda found: found.slots[0].active)
        assert alone.slots[0].effective_permille == 1000
        ledger(tmp_path, "seventy", time.monotonic_ns() + 10**12)
        both = eventually(page, lambda found: found.slots[1].active)
        assert [slot.effective_permille for slot in both.slots] == [300, 700]


def test_the_heartbeat_goes_on(tmp_path: Path) -> None:
    containers(tmp_path)
    with writer(tmp_path) as page:
        first = eventually(page, lambda _: True)
        eventually(page, lambda found: found.heartbeat_ns > first.heartbeat_ns)


def test_a_list_that_changes_while_the_first_is_read_is_read_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"slot": 0, "key": 1, "corePercent": 30, "policy": "hard", "ledger": ledger(tmp_path, "a")}
    other = {"slot": 1, "key": 2, "corePercent": 30, "policy": "hard", "ledger": ledger(tmp_path, "b")}
    source, page, stop = containers(tmp_path, one), tmp_path / "schedule", threading.Event()
    read = schedule.read_containers

    def then_changed(path: Path) -> object:
        found = read(path)
        monkeypatch.setattr(schedule, "read_containers", read)
        containers(tmp_path, one, other)
        return found

    monkeypatch.setattr(schedule, "read_containers", then_changed)
    writes = threading.Thread(target=schedule.run, args=(page, source, stop))
    writes.start()
    try:
        assert [slot.key for slot in eventually(page, lambda shown: len(shown.slots) == 2).slots] == [1, 2]
    finally:
        stop.set()
        writes.join()


def test_a_reader_of_the_driver_that_fails_unexpectedly_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").mkdir()
    one = {"slot": 0, "key": 1, "corePercent": 30, "policy": "hard", "ledger": ledger(tmp_path, "a")}
    source = containers(tmp_path, one | {"cgroup": str(tmp_path / "cgroup")})
    page, stop = tmp_path / "schedule", threading.Event()
    failures = iter(range(2))

    def sample() -> DriverSample:
        if next(failures, None) is not None:
            raise RuntimeError("an answer of another form")
        return DriverSample(1, 1 << 30, {})

    monkeypatch.setattr(schedule, "asked", lambda _: sample)
    writes = threading.Thread(target=schedule.run, args=(page, source, stop))
    writes.start()
    try:
        eventually(page, lambda found: bool(found.slots) and found.slots[0].driver_sampled_ns == 1)
    finally:
        stop.set()
        writes.join()


def test_a_bad_list_of_containers_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    one = {"slot": 0, "key": 1, "corePercent": 60, "policy": "hard", "ledger": ledger(tmp_path, "one")}
    two = {**one, "slot": 1, "key": 2}
    three = {**two, "corePercent": 40}
    containers(tmp_path, one)
    with writer(tmp_path) as page:
        seen = eventually(page, lambda found: len(found.slots) == 1)
        containers(tmp_path, one, two)
        eventually(page, lambda found: found.heartbeat_ns > seen.heartbeat_ns + 100_000_000 and len(found.slots) == 1)
        containers(tmp_path, one, three)
        eventually(page, lambda found: len(found.slots) == 2)


def test_a_list_of_containers_that_is_gone_leaves_the_last_one_in_force_until_there_is_one_again(
    tmp_path: Path,
) -> None:
    one = {"slot": 0, "key": 1, "corePercent": 30, "policy": "hard", "ledger": ledger(tmp_path, "a")}
    source = containers(tmp_path, one)
    with writer(tmp_path) as page:
        eventually(page, lambda found: len(found.slots) == 1)
        source.unlink()
        gone_ns = time.monotonic_ns()
        after = eventually(page, lambda found: found.heartbeat_ns > gone_ns + 100_000_000)
        assert [slot.key for slot in after.slots] == [1]
        containers(tmp_path, one | {"key": 2})
        eventually(page, lambda found: [slot.key for slot in found.slots] == [2])
