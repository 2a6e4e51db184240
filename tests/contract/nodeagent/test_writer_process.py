"""The agent keeps a writer of the schedule pages: one that hangs is replaced, and no other."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from nodeagent import handover
from nodeagent.pages import SCHEDULE, last_write_ns, written_ns
from nodeagent.schedule_page import STALE_AFTER_NS
from nodeagent.writer_process import AGAIN_SECONDS, HANGS_SECONDS, Silence, WriterProcess, silence
from tests.support.waiting import wait_until

GPU = "GPU-1"
OTHER_GPU = "GPU-2"
STALE_SECONDS = STALE_AFTER_NS / 10**9
HANGS = "writer of the pages hangs"
ENDED = "writer of the pages ended"


class Kept:
    """A writer, kept by an agent whose clock the test can set forward."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ended = 0
        self._ahead_ns = 0
        self._key = 6
        self.writer = WriterProcess(root, self._count, lambda: time.monotonic_ns() + self._ahead_ns)

    def _count(self) -> None:
        self.ended += 1

    def pass_seconds(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 10**9)

    def share(self, **cores: int) -> None:
        """Starts a container on each GPU, as the agent does: with 30 percent of `GPU`, unless others are named."""
        self._key += 1
        gpus = {uuid.replace("_", "-"): core for uuid, core in cores.items()} or {GPU: 30}
        listed = [{"uuid": uuid, "containers": [self._container(core)]} for uuid, core in gpus.items()]
        beside = self.root / "beside"
        beside.write_text(json.dumps({"gpus": listed}))
        beside.replace(self.root / SCHEDULE)
        self.writer.is_to_show({uuid: frozenset({(0, self._key, core, 0)}) for uuid, core in gpus.items()})
        self.writer.set_gpus(gpus)

    def _container(self, core: int) -> dict[str, Any]:
        return {"slot": 0, "key": self._key, "corePercent": core, "policy": "hard", "ledger": str(self.root / "ledger")}

    def has_a_stale_page(self) -> bool:
        age = self.writer.oldest_page_seconds()
        return age is not None and age > STALE_SECONDS

    def find_silence(self) -> None:
        """Looks twice, with the time between that a writer needs to write once more."""
        self.pass_seconds(HANGS_SECONDS)
        self.writer.keep()
        self.pass_seconds(AGAIN_SECONDS)
        self.writer.keep()

    def pid(self) -> int:
        """The process id of the writer, the only child with this folder."""
        return wait_until(self._children, "a writer runs")[0]

    def _children(self) -> list[int]:
        children = (int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split())
        root = str(self.root).encode()
        return [pid for pid in children if root in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]

    def written_ns(self) -> int:
        return last_write_ns(self.root, [GPU]) or 0

    def locks(self) -> bool:
        """Returns whether the writer has the lock of the pages."""
        held = [line.split()[4] for line in Path("/proc/locks").read_text().splitlines() if " FLOCK " in line]
        return str(self.pid()) in held

    def is_replaced(self) -> bool:
        """Looks on, in the same instant, until another writer has written a page."""

        def looks() -> int:
            self.writer.keep()
            return self.ended

        wait_until(looks, "the writer has ended, and another one starts")
        since = time.monotonic_ns()
        return bool(wait_until(lambda: self.written_ns() > since, "the next one writes the page"))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    kept.writer.keep()
    try:
        yield kept
    finally:
        kept.writer.end()


def test_a_host_without_room_for_a_process_is_asked_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.share()
    os.kill(kept.pid(), signal.SIGKILL)

    def refuse(_command: list[str]) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(subprocess, "Popen", refuse)

        def refused() -> bool:
            kept.writer.keep()
            return [each["event"] for each in logged].count("writer of the pages not started") >= 2

        wait_until(refused, "the agent has tried twice")
    assert kept.ended == 1, "one process has ended"
    kept.writer.keep()
    since = time.monotonic_ns()
    wait_until(lambda: kept.written_ns() > since, "the next writer writes the page")


class Waiting(NamedTuple):
    """A writer with pages to write, which waits for the lock that another process would have."""

    kept: Kept
    lock: int


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    kept = Kept(tmp_path)
    lock = handover.lock(tmp_path / handover.PAGES)
    assert lock is not None
    kept.writer.keep()
    try:
        kept.share()
        yield Waiting(kept, lock)
    finally:
        kept.writer.end()


def test_a_writer_that_hangs_before_its_first_page_is_replaced(kept: Kept) -> None:
    wait_until(kept.locks, "the writer has begun")
    os.kill(kept.pid(), signal.SIGSTOP)
    kept.share()
    assert last_write_ns(kept.root, [GPU]) is None
    with capture_logs() as logs:
        kept.find_silence()
        assert kept.is_replaced()
    assert [event["event"] for event in logs] == [HANGS, ENDED]


def test_a_writer_that_hangs_after_its_first_page_is_replaced(kept: Kept) -> None:
    kept.share()
    wait_until(kept.written_ns, "its GPU has a page")
    os.kill(kept.pid(), signal.SIGSTOP)
    with capture_logs() as logs:
        kept.find_silence()
        assert kept.is_replaced()
    assert [event["event"] for event in logs] == [HANGS, ENDED]


def test_a_writer_that_hangs_is_replaced_also_while_what_it_has_to_write_changes_each_second(kept: Kept) -> None:
    kept.share()
    wait_until(kept.written_ns, "its GPU has a page")
    os.kill(kept.pid(), signal.SIGSTOP)
    for _ in range(int(HANGS_SECONDS + AGAIN_SECONDS) + 1):
        kept.pass_seconds(1)
        kept.writer.set_gpus([GPU])
        kept.writer.keep()
    assert kept.is_replaced()


def test_a_writer_that_hangs_before_it_has_the_lock_is_replaced_once_the_lock_is_free(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    others = handover.lock(tmp_path / handover.PAGES)
    assert others is not None
    kept.writer.keep()
    try:
        os.kill(kept.pid(), signal.SIGSTOP)
        os.close(others)
        kept.share()
        kept.find_silence()
        assert kept.is_replaced()
    finally:
        kept.writer.end()


def test_a_writer_that_was_stopped_together_with_the_agent_goes_on(kept: Kept) -> None:
    kept.share()
    wait_until(kept.written_ns, "its GPU has a page")
    pid = kept.pid()
    os.kill(pid, signal.SIGSTOP)
    kept.pass_seconds(2 * HANGS_SECONDS)
    with capture_logs() as logs:
        kept.writer.keep()
        frozen_ns = kept.written_ns()
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: kept.written_ns() > frozen_ns, "the writer goes on")
        kept.pass_seconds(AGAIN_SECONDS)
        kept.writer.keep()
        assert kept.pid() == pid
        frozen_ns = kept.written_ns()
        wait_until(lambda: kept.written_ns() > frozen_ns, "the writer still writes")
    assert (logs, kept.ended) == ([], 0)


def test_a_silence_leads_to_an_end_only_if_the_writer_had_time_to_write_after_it_was_found() -> None:
    hangs_ns, again_ns = int(HANGS_SECONDS * 10**9), int(AGAIN_SECONDS * 10**9)
    assert silence(None, 5, 0, 4 + hangs_ns) is None
    found = silence(None, 5, 0, 5 + hangs_ns)
    assert found is not None
    assert not found.lasts(5 + hangs_ns + again_ns - 1), "the agent looks sooner where something wakes it"
    assert found.lasts(5 + hangs_ns + again_ns)
    assert silence(found, 5, 0, 6 + hangs_ns) is found
    assert silence(found, 6, 0, 6 + hangs_ns) == Silence(6, 6 + hangs_ns), "it wrote meanwhile: look anew"
    assert silence(found, 5, 6, 5 + hangs_ns) is None, "it has had pages to write for a shorter time"


def test_a_sign_of_work_that_lies_ahead_is_of_an_earlier_boot_and_counts_as_none() -> None:
    hangs_ns = int(HANGS_SECONDS * 10**9)
    assert silence(None, 2 * hangs_ns, 5, 5 + hangs_ns) == Silence(0, 5 + hangs_ns)
    assert silence(None, 5 + hangs_ns, 5, 5 + hangs_ns) is None, "it worked in this instant"


def test_a_writer_that_waits_for_another_ones_lock_is_not_ended_and_the_log_says_so(waiting: Waiting) -> None:
    kept = waiting.kept
    pid = kept.pid()
    with capture_logs() as logs:
        for _ in range(2):
            kept.find_silence()
    assert [event["event"] for event in logs] == ["another writer has the lock of the pages"] * 2
    os.close(waiting.lock)
    wait_until(kept.written_ns, "the writer that waited writes")
    assert (kept.pid(), kept.ended) == (pid, 0)


def test_the_oldest_page_is_stale_while_its_writer_is_stopped_and_no_longer_once_it_goes_on(kept: Kept) -> None:
    assert kept.writer.oldest_page_seconds() is None, "no container shares a GPU"
    kept.share()
    wait_until(kept.written_ns, "its GPU has a page")
    wait_until(lambda: not kept.has_a_stale_page(), "the page is new")
    os.kill(kept.pid(), signal.SIGSTOP)
    wait_until(kept.has_a_stale_page, "the page has grown stale")
    os.kill(kept.pid(), signal.SIGCONT)
    wait_until(lambda: not kept.has_a_stale_page(), "the page is written again")


def test_a_page_is_stale_that_no_writer_has_ever_written(waiting: Waiting) -> None:
    wait_until(waiting.kept.has_a_stale_page, "its writer waits for another one's lock")
    os.close(waiting.lock)
    wait_until(lambda: not waiting.kept.has_a_stale_page(), "its writer has the lock")


def test_a_writer_that_refuses_what_it_is_to_write_is_not_ended_and_the_pages_of_other_gpus_go_on(kept: Kept) -> None:
    kept.share(GPU_1=101, GPU_2=30)
    wait_until(lambda: written_ns(kept.root, OTHER_GPU), "the other GPU has a page")
    wait_until(kept.has_a_stale_page, "the refused GPU's page is not written")
    assert last_write_ns(kept.root, [GPU]) is None
    kept.share(GPU_1=101)
    pid, since_ns = kept.pid(), time.monotonic_ns()
    wait_until(lambda: handover.noted_ns(kept.root / handover.PAGES) > since_ns, "the writer is at work")
    with capture_logs() as logs:
        kept.pass_seconds(HANGS_SECONDS)
        kept.writer.keep()
        noted_ns = handover.noted_ns(kept.root / handover.PAGES)
        wait_until(lambda: handover.noted_ns(kept.root / handover.PAGES) > noted_ns, "it goes on")
        kept.pass_seconds(AGAIN_SECONDS)
        kept.writer.keep()
    assert (logs, kept.ended, kept.pid()) == ([], 0, pid)


def test_a_gpu_that_is_refused_after_it_had_a_page_counts_until_its_page_shows_its_containers(kept: Kept) -> None:
    assert kept.writer.outdated_pages() == 0, "no container shares a GPU"
    kept.share(GPU_1=30, GPU_2=30)
    wait_until(lambda: not kept.writer.outdated_pages(), "both pages show their containers")
    kept.share(GPU_1=101, GPU_2=40)
    wait_until(lambda: kept.writer.outdated_pages() == 1, "the other GPU's page shows its new container")
    since_ns = time.monotonic_ns()
    wait_until(lambda: (written_ns(kept.root, GPU) or 0) > since_ns, "the refused GPU's last page goes on")
    wait_until(lambda: kept.writer.outdated_pages() == 1, "it does not show the container that is refused")
    kept.share(GPU_1=50, GPU_2=40)
    wait_until(lambda: not kept.writer.outdated_pages(), "the page shows the container that is not refused")


def test_pages_whose_containers_the_writer_cannot_be_given_count_as_outdated_and_their_writer_is_left_alone(
    kept: Kept,
) -> None:
    """The host has no room for the schedule: what the agent says of it is all that changes."""
    kept.writer.is_to_show({GPU: frozenset({(0, 7, 30, 0)})})
    with capture_logs() as logs:
        kept.find_silence()
    assert (kept.writer.outdated_pages(), kept.writer.oldest_page_seconds()) == (1, None)
    assert logs == []


def test_a_page_that_was_never_made_counts_as_outdated(waiting: Waiting) -> None:
    assert waiting.kept.writer.outdated_pages() == 1, "its writer waits for another one's lock"
    os.close(waiting.lock)
    wait_until(lambda: not waiting.kept.writer.outdated_pages(), "its writer has the lock")


def test_a_writer_without_pages_is_left_alone(kept: Kept) -> None:
    with capture_logs() as logs:
        kept.find_silence()
        kept.find_silence()
    assert (logs, kept.ended) == ([], 0)


def test_the_end_of_the_agent_waits_for_no_writer_that_is_stopped(kept: Kept) -> None:
    wait_until(kept.locks, "the writer has begun")
    os.kill(kept.pid(), signal.SIGSTOP)
    kept.writer.end()
    freed = handover.lock(kept.root / handover.PAGES)
    assert freed is not None
    os.close(freed)
