"""Two agents of one node, as an upgrade has them for a moment: one acts, and the pages are written without a gap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent import handover, schedule_page
from nodeagent.pages import CONTENDED_SECONDS, SCHEDULE
from tests.support.schedule_page import unpack
from tests.support.waiting import LIMIT_S, wait_until

GPU = "GPU-1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The agent's folder, with a GPU that one container shares."""
    container = {"slot": 0, "key": 7, "corePercent": 30, "policy": "hard", "ledger": str(tmp_path / "ledger")}
    (tmp_path / SCHEDULE).write_text(json.dumps({"gpus": [{"uuid": GPU, "containers": [container]}]}))
    return tmp_path


def command(root: Path, parent: int) -> list[str]:
    return [sys.executable, "-m", "nodeagent.pages", "--root", str(root), "--parent", str(parent)]


@contextmanager
def writer(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command(root, os.getpid()))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def heartbeat_ns(root: Path) -> int:
    """The time of the page's last write; 0 before the first."""

    def read() -> int | None:
        try:
            return unpack((root / "gpus" / GPU / "schedule").read_bytes()).heartbeat_ns
        except FileNotFoundError:
            return 0
        except ValueError:
            return None  # it is being written

    (found,) = wait_until(lambda: None if (found := read()) is None else (found,), "the page can be read")
    return found


def waits(process: subprocess.Popen[bytes], root: Path) -> bool:
    """Whether a process catches SIGTERM, as it does once its modules are loaded, and holds no lock of the pages."""
    caught = int(Path(f"/proc/{process.pid}/status").read_text().split("SigCgt:")[1].split()[0], 16)
    inode = f":{(root / handover.PAGES).stat().st_ino} "
    holders = [line.split()[4] for line in Path("/proc/locks").read_text().splitlines() if inode in line]
    return bool(caught >> (signal.SIGTERM - 1) & 1) and str(process.pid) not in holders


def stop_between_writes(process: subprocess.Popen[bytes], root: Path) -> None:
    """Stops a writer while its page can be read: one that is stopped in the middle of a write goes on for a moment."""

    def stopped() -> bool:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state(process) == "T", "the writer stands still")
        try:
            unpack((root / "gpus" / GPU / "schedule").read_bytes())
        except ValueError:
            process.send_signal(signal.SIGCONT)
            return False
        return True

    wait_until(stopped, "the writer stands still between two writes")


def state(process: subprocess.Popen[bytes]) -> str:
    """The state of a process, by its letter (proc(5))."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_writer_goes_on_when_the_last_one_ends(root: Path, end: signal.Signals) -> None:
    with writer(root) as last:
        wait_until(lambda: heartbeat_ns(root), "the page is written")
        with writer(root) as following:
            wait_until(lambda: waits(following, root), "the next writer waits")
            stop_between_writes(last, root)
            frozen = heartbeat_ns(root)
            looked = time.monotonic_ns()
            wait_until(lambda: time.monotonic_ns() - looked > 5 * 20_000_000, "five rounds have passed")
            assert heartbeat_ns(root) == frozen, "one writes at a time"
            last.send_signal(end)
            last.send_signal(signal.SIGCONT)
            last.wait()
            ended = time.monotonic_ns()
            wait_until(lambda: heartbeat_ns(root) > ended, "the next writer writes")


def test_a_writer_whose_agent_has_ended_before_it_begins_ends_at_once(root: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    done = subprocess.run(command(root, ended.pid), timeout=LIMIT_S, check=False)
    assert done.returncode == 0
    assert not (root / "gpus").exists(), "it wrote no page"


def test_a_lock_is_free_once_its_holder_ends_and_a_process_that_is_asked_to_end_waits_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = handover.lock(path)
    assert held is not None
    assert handover.lock(path) is None
    assert handover.wait_for(path, lambda: True) is None


def test_a_writer_that_waits_for_a_lock_tries_it_after_each_round_so_that_no_page_grows_stale(tmp_path: Path) -> None:
    path, rounds = tmp_path / "lock", 0
    held = handover.lock(path)
    assert held is not None

    def a_round_passes() -> bool:
        nonlocal rounds
        rounds += 1
        if rounds == 3:
            os.close(held)
        return False

    taken = handover.wait_for(path, a_round_passes)
    assert taken is not None
    os.close(taken)
    assert rounds == 3
    assert 10 * CONTENDED_SECONDS * 10**9 < schedule_page.STALE_AFTER_NS
