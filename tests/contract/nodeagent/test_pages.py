"""The writer of all pages of a node, by the files that it reads and writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodeagent import figures_file, schedule_page
from nodeagent.driver_figures import Figure
from nodeagent.pages import (
    AGAIN_NS,
    CONTENDED_SECONDS,
    QUIET_EVERY,
    SCHEDULE,
    Ledgers,
    Pace,
    Writer,
    last_write_ns,
    read_gpus,
    written_ns,
)
from nodeagent.schedule_page import Activity, Page
from nodeagent.turns import PERIOD_NS
from tests.support.descriptors import open_below
from tests.support.schedule_page import unpack

MS = 1_000_000
ROUND_NS = 20 * MS


class Node:
    """A node whose clock goes on by a round's length at each look."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ns = 10**12
        self.writer = Writer(root, lambda: self.now_ns)

    def tell(self, **gpus: list[dict[str, Any]]) -> None:
        """Writes the schedule as the agent does: by a rename."""
        listed = [{"uuid": uuid, "containers": containers} for uuid, containers in gpus.items()]
        beside = self.root / "beside"
        beside.write_text(json.dumps({"gpus": listed}))
        beside.replace(self.root / SCHEDULE)

    def container(self, slot: int, core: int = 30, **fields: Any) -> dict[str, Any]:
        ledger = self.root / f"ledger-{slot}"
        given = {"slot": slot, "key": slot + 7, "corePercent": core, "policy": "hard", "ledger": str(ledger)}
        return given | fields

    def works(self, slot: int, used_ns: int = 0, overrun_ns: int = 0) -> None:
        """The container's ledger says that it has work now, and waits for its turn if it counts its time."""
        head = struct.pack("<QQ", schedule_page.LEDGER_MAGIC, schedule_page.LEDGER_VERSION)
        waiting_ns = self.now_ns if used_ns else 0
        activity = schedule_page.ACTIVITY.pack(self.now_ns, waiting_ns, used_ns, overrun_ns, 1, 0, 0)
        (self.root / f"ledger-{slot}").write_bytes((head + bytes(48) + activity).ljust(4096, b"\0"))

    def look(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.now_ns += ROUND_NS
            self.writer.look()

    def page(self, uuid: str) -> Page:
        return unpack((self.root / "gpus" / uuid / "schedule").read_bytes())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.writer.close()


def test_a_page_that_could_not_be_made_is_made_once_the_host_lets_it(node: Node) -> None:
    obstacle = node.root / "gpus"
    obstacle.write_text("a file in the place of the folder of pages")
    node.tell(one=[node.container(0)])
    node.look(2)
    obstacle.unlink()
    node.look(AGAIN_NS // ROUND_NS + 1)

    assert [slot.slot for slot in node.page("one").slots] == [0]


def test_each_gpu_has_a_page_with_its_containers_within_two_rounds(node: Node) -> None:
    node.look()
    node.tell(one=[node.container(0)], two=[node.container(1), node.container(2, noticeNs=99)])
    node.look(QUIET_EVERY)
    assert [slot.slot for slot in node.page("one").slots] == [0]
    assert [(slot.slot, slot.notice_ns) for slot in node.page("two").slots] == [(1, 0), (2, 99)]


def test_a_contended_page_is_written_each_round_and_a_quiet_one_less_often(node: Node) -> None:
    node.tell(busy=[node.container(0), node.container(1)], quiet=[node.container(2)])
    heartbeats: dict[str, set[int]] = {"busy": set(), "quiet": set()}
    for _ in range(4 * QUIET_EVERY):
        node.works(0)
        node.works(1)
        node.look()
        for uuid, seen in heartbeats.items():
            seen.add(node.page(uuid).heartbeat_ns)
    assert len(heartbeats["busy"]) > 3 * QUIET_EVERY
    assert 4 <= len(heartbeats["quiet"]) <= 5


def test_the_pages_of_one_round_have_one_time(node: Node) -> None:
    node.tell(one=[node.container(0), node.container(1)], two=[node.container(2), node.container(3)])
    for _ in range(4):
        for slot in range(4):
            node.works(slot)
        node.look()
        assert node.page("one").heartbeat_ns == node.page("two").heartbeat_ns == node.now_ns


def test_a_contended_page_is_written_each_10_to_20_ms_and_a_quiet_one_within_100() -> None:
    assert 0.01 <= CONTENDED_SECONDS <= 0.02
    assert QUIET_EVERY * CONTENDED_SECONDS <= 0.1


@pytest.mark.parametrize("work_seconds", [0.0, 0.003, 0.019])
def test_a_rounds_work_delays_no_later_round(work_seconds: float) -> None:
    now, pace, began = 100.0, Pace(100.0), []
    for _ in range(50):
        now += pace.left(now)
        began.append(now)
        now += work_seconds
    assert began[-1] - 100.0 == pytest.approx(50 * CONTENDED_SECONDS)


def test_a_round_that_was_late_makes_no_later_one_come_sooner() -> None:
    pace = Pace(100.0)
    assert pace.left(105.0) == 0
    assert pace.left(105.0) == pytest.approx(CONTENDED_SECONDS)


def test_a_quiet_page_never_grows_stale(node: Node) -> None:
    node.tell(quiet=[node.container(0)])
    for _ in range(100):
        node.look()
        assert node.now_ns - node.page("quiet").heartbeat_ns < schedule_page.STALE_AFTER_NS / 5


def test_a_container_that_left_is_off_the_page_and_its_ledger_is_closed(node: Node) -> None:
    for slot in range(2):
        node.works(slot)
    node.tell(one=[node.container(0), node.container(1)])
    node.look()
    assert open_below(node.root, "ledger") == ["ledger-0", "ledger-1"]
    (node.root / "ledger-0").unlink()  # the file's memory is free once no descriptor is left
    node.tell(one=[node.container(1)])
    node.look(QUIET_EVERY)
    assert [slot.slot for slot in node.page("one").slots] == [1]
    assert open_below(node.root, "ledger") == ["ledger-1"]


def test_a_container_that_starts_again_leaves_no_ledger_of_its_last_start_open(node: Node) -> None:
    for start in range(5):
        node.works(start)
        node.tell(one=[node.container(0, ledger=str(node.root / f"ledger-{start}"))])
        node.look(QUIET_EVERY)
        assert open_below(node.root, "ledger") == [f"ledger-{start}"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"gpus": [{"containers": []}]}'],
    ids=["empty", "no object", "no uuid"],
)
def test_a_schedule_that_cannot_be_read_is_not_taken_up(node: Node, content: str) -> None:
    node.tell(one=[node.container(0)])
    node.look()
    (node.root / SCHEDULE).write_text(content)
    node.look(QUIET_EVERY)
    assert [(slot.slot, slot.core_percent) for slot in node.page("one").slots] == [(0, 30)]
    assert node.now_ns - node.page("one").heartbeat_ns < QUIET_EVERY * ROUND_NS
    with pytest.raises(ValueError, match=r".+"):
        read_gpus(node.root / SCHEDULE)


IMPOSSIBLE = {
    "a container without a key": [{"slot": 0}],
    "more than a GPU has": [{"core": 60}, {"slot": 1, "core": 60}],
    "two in one slot": [{}, {"key": 8}],
    "a slot that no page has": [{"slot": 64}],
    "a slot below all": [{"slot": -1}],
    "a device that no ledger has": [{"device": 16}],
    "a share that no field holds": [{"core": -1}],
    "a key without an end": [{"key": float("inf")}],
}


@pytest.mark.parametrize("fields", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_gpu_with_containers_that_cannot_be_is_refused_by_name_and_all_pages_go_on(
    node: Node, fields: list[dict[str, Any]]
) -> None:
    node.tell(bad=[node.container(0)], good=[node.container(1)])
    node.look()
    containers = [node.container(**{"slot": 0} | each) for each in fields]
    if fields == [{"slot": 0}]:
        del containers[0]["key"]
    node.tell(bad=containers, good=[node.container(2)])
    with capture_logs() as logs:
        node.look(QUIET_EVERY)
    assert [(event["event"], event["uuid"]) for event in logs] == [("schedule refused", "bad")]
    assert [(slot.slot, slot.core_percent) for slot in node.page("bad").slots] == [(0, 30)]
    assert [slot.slot for slot in node.page("good").slots] == [2]
    assert node.now_ns - node.page("bad").heartbeat_ns < QUIET_EVERY * ROUND_NS


def test_a_writer_that_begins_with_a_gpu_that_it_refuses_writes_the_pages_of_the_others(node: Node) -> None:
    node.tell(bad=[node.container(0, core=101)], good=[node.container(1)])
    node.look()
    assert [slot.slot for slot in node.page("good").slots] == [1]
    assert written_ns(node.root, "bad") is None
    node.tell(bad=[node.container(0)], good=[node.container(1)])
    node.look(QUIET_EVERY)
    assert [slot.slot for slot in node.page("bad").slots] == [0]


def test_a_writer_that_comes_back_goes_on_with_the_same_page(node: Node) -> None:
    node.tell(one=[node.container(0)])
    node.look()
    path = node.root / "gpus" / "one" / "schedule"
    inode, generation = path.stat().st_ino, path.read_bytes()[16:24]
    again = Node(node.root)
    again.look()
    assert path.stat().st_ino == inode
    assert int.from_bytes(path.read_bytes()[16:24], "little") == int.from_bytes(generation, "little") + 2
    again.writer.close()


def test_the_drivers_figures_reach_the_page_of_the_start_that_they_are_of(node: Node) -> None:
    node.tell(**{"GPU-0": [node.container(0), node.container(1)]})
    figures = {(0, 7): Figure(4096, 99, trim_permille=900, dead_gone_ns=98), (1, 1): Figure(5, 99)}
    (node.root / figures_file.NAME).write_bytes(figures_file.encode({"GPU-0": figures}))
    node.look(QUIET_EVERY)
    first, second = node.page("GPU-0").slots
    assert (first.driver_bytes, first.driver_sampled_ns, first.trim_permille) == (4096, 99, 900)
    assert first.dead_gone_ns == 98
    assert (second.driver_bytes, second.driver_sampled_ns) == (0, 0)


def test_figures_that_cannot_be_read_leave_those_of_before(node: Node) -> None:
    node.tell(**{"GPU-0": [node.container(0)]})
    path = node.root / figures_file.NAME
    path.write_bytes(figures_file.encode({"GPU-0": {(0, 7): Figure(4096, 99)}}))
    node.look()
    path.write_bytes(b"{")
    node.look(QUIET_EVERY)
    assert node.page("GPU-0").slots[0].driver_bytes == 4096


def test_a_figure_that_changes_within_a_period_is_on_the_page_within_two_rounds(node: Node) -> None:
    node.tell(**{"GPU-0": [node.container(0), node.container(1)]})
    beside = node.root / "beside"
    for held in range(1, 10):
        node.works(0)
        node.works(1)
        beside.write_bytes(figures_file.encode({"GPU-0": {(0, 7): Figure(held, 99)}}))
        beside.replace(node.root / figures_file.NAME)  # as the agent does: a file made anew may be given the same inode
        node.look(QUIET_EVERY)
        assert node.page("GPU-0").slots[0].driver_bytes == held


def test_a_container_that_wakes_beside_others_is_active_on_the_page_at_the_next_round(node: Node) -> None:
    node.tell(one=[node.container(0), node.container(1), node.container(2)])
    for _ in range(6):
        node.works(0)
        node.works(1)
        node.look()
    node.now_ns += PERIOD_NS - node.now_ns % PERIOD_NS - ROUND_NS  # the next round is a period's first
    node.look()
    for slot in range(3):
        node.works(slot)
    node.look()
    assert [slot.active for slot in node.page("one").slots] == [True] * 3


def test_a_round_within_a_period_reads_the_ledgers_of_idle_containers_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = Ledgers.activity

    def noted(ledgers: Ledgers, ledger: str, device: int) -> Activity:
        read.append(Path(ledger).name)
        return plain(ledgers, ledger, device)

    node.tell(one=[node.container(0), node.container(1), node.container(2)])
    node.now_ns -= node.now_ns % PERIOD_NS + ROUND_NS
    node.works(0)
    node.works(1)
    node.look()  # a period's first round
    monkeypatch.setattr(Ledgers, "activity", noted)
    node.look(2)
    assert read == ["ledger-2"] * 2
    read.clear()
    node.look()
    assert read == ["ledger-0", "ledger-1", "ledger-2"]


def test_a_writer_that_is_stopped_while_it_reads_ledgers_lets_all_that_was_overrun_be_paid_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Ledgers.activity

    def stopped(ledgers: Ledgers, ledger: str, device: int) -> Activity:
        monkeypatch.setattr(Ledgers, "activity", plain)
        node.now_ns += 25 * MS
        node.works(0, used_ns=1 + 45 * MS, overrun_ns=35 * MS)
        node.works(1, used_ns=1)
        return plain(ledgers, ledger, device)

    both = [node.container(0, core=30), node.container(1, core=70)]
    node.tell(one=both)
    node.works(0)
    node.works(1)
    node.look()
    node.now_ns += PERIOD_NS - node.now_ns % PERIOD_NS - ROUND_NS
    node.works(0, used_ns=1)
    node.works(1, used_ns=1)
    node.look()  # a period's first round
    node.tell(one=both)  # a schedule that is read anew has every ledger read
    monkeypatch.setattr(Ledgers, "activity", stopped)
    node.look()
    paid_back_ns = 0
    for _ in range(20):
        node.now_ns += PERIOD_NS - node.now_ns % PERIOD_NS - ROUND_NS
        node.works(0)
        node.works(1)
        node.look()
        granted_permille = node.page("one").slots[1].effective_permille
        paid_back_ns += (granted_permille - 700) * PERIOD_NS // 1000
    assert paid_back_ns == 35 * MS


def test_a_page_that_cannot_be_made_leaves_the_others_written(node: Node) -> None:
    (node.root / "gpus").mkdir()
    (node.root / "gpus" / "broken").write_text("no folder")
    node.tell(broken=[node.container(0)], whole=[node.container(1)])
    node.look()
    assert [slot.slot for slot in node.page("whole").slots] == [1]
    (node.root / "gpus" / "broken").unlink()
    node.tell(broken=[node.container(0)], whole=[node.container(1)])
    node.look(QUIET_EVERY)
    assert [slot.slot for slot in node.page("broken").slots] == [0]


def test_the_last_write_is_that_of_the_newest_page_and_unknown_where_there_is_none(node: Node) -> None:
    assert last_write_ns(node.root, ["one", "two"]) is None
    node.tell(one=[node.container(0)], two=[node.container(1)])
    node.look()
    node.tell(two=[node.container(1)])
    node.look(QUIET_EVERY)
    assert last_write_ns(node.root, ["one"]) == node.page("one").heartbeat_ns
    assert last_write_ns(node.root, ["one", "two"]) == node.page("two").heartbeat_ns > node.page("one").heartbeat_ns
    (node.root / "gpus" / "one" / "schedule").write_bytes(b"")
    assert last_write_ns(node.root, ["one"]) is None
