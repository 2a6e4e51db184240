"""The schedule of a node's containers that the writer of the pages gets."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.containers.folders import Folders
from nodeagent.containers.records import GivenDevice, Record
from nodeagent.publishing import LATEST_NS, NOTICE_STEP_NS, notices, schedule, to_show
from nodeagent.rounds import describe, first_state, step
from nodeagent.schedule import containers_of
from nodeagent.schedule_page import pack, shown
from nodeagent.turns import Policy

FOLDERS = Folders(Path("/run/agent"), Path("/lib/agent"), Path("/var/run/cdi"))
NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
EVICTION, RECLAIM = "fairgpu.io/eviction-at", "fairgpu.io/reclaim-at"


def record(uid: str, *uuids: str, core: int = 30, whole: bool = False) -> Record:
    devices = tuple(GivenDevice(uuid, core, 100, index, 7 + index) for index, uuid in enumerate(uuids))
    return Record("team", "pod", uid, "main", frozenset({uid}), 2, whole, Policy.HARD, 1, devices)


def published_pages(*records: Record, **times: int) -> dict[str, list[dict[str, Any]]]:
    document = json.loads(schedule(records, times, FOLDERS))
    return {gpu["uuid"]: gpu["containers"] for gpu in document["gpus"]}


def test_a_container_stands_on_the_page_of_each_of_its_gpus_at_the_same_place_in_the_period() -> None:
    pages = published_pages(record("u1", "GPU-a", "GPU-b"), record("u2", "GPU-b"))
    assert [each["device"] for uuid in ("GPU-a", "GPU-b") for each in pages[uuid] if each["key"] < 9] == [0, 1, 0]
    first = pages["GPU-a"][0]
    assert first["ledger"] == "/run/agent/containers/u1/main/2/ledger"
    assert (first["slot"], first["key"], first["corePercent"], first["policy"]) == (0, 7, 30, "hard")
    assert first["startNs"] == pages["GPU-b"][0]["startNs"]
    assert "startNs" not in pages["GPU-b"][1]


def test_a_container_has_the_same_name_at_each_start_and_no_other_one_has_it() -> None:
    first, again = record("u1", "GPU-a"), replace(record("u1", "GPU-a"), start=3)
    others = record("u2", "GPU-a"), replace(record("u1", "GPU-a"), container="beside")
    names = [published_pages(each)["GPU-a"][0]["name"] for each in (first, again, *others)]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_container_with_whole_gpus_stands_on_no_page() -> None:
    assert published_pages(record("u1", "GPU-a", whole=True)) == {}


def test_a_notice_is_on_the_page_of_the_pod_that_has_it() -> None:
    pages = published_pages(record("u1", "GPU-a"), record("u2", "GPU-a"), u2=99)
    assert [each["noticeNs"] for each in pages["GPU-a"]] == [0, 99]


def test_a_page_that_shows_what_it_is_to_show_is_that_of_the_schedule() -> None:
    records = record("u1", "GPU-a", "GPU-b"), record("u2", "GPU-c", whole=True)
    notified = {"u1": LATEST_NS}
    (gpu, _) = json.loads(schedule(records, notified, FOLDERS))["gpus"]
    uuid, containers = containers_of(gpu)
    state, made = step(first_state(0), containers, {}, 0)
    page = pack(describe(uuid, containers, state, made, 0), 2)
    assert to_show(records, notified) == {
        "GPU-a": frozenset({(0, 7, 30, LATEST_NS)}),
        "GPU-b": frozenset({(1, 8, 30, LATEST_NS)}),
    }
    assert shown(page) == to_show(records, notified)["GPU-a"]


def test_a_clock_that_is_set_back_moves_a_notice_away_by_as_much_and_one_that_is_put_right_moves_it_back() -> None:
    pod = {"metadata": {"uid": "u1", "annotations": {EVICTION: "2026-01-01T12:00:10Z"}}}
    hour = dt.timedelta(hours=1)
    start = 4000 * 10**9
    assert notices([pod], NOW - hour, start) == {"u1": start + 3610 * 10**9}
    assert notices([pod], NOW, start) == {"u1": start + 10 * 10**9}
    assert notices([pod], NOW + hour, start) == {"u1": start - 3590 * 10**9}


def test_a_notice_has_the_same_value_in_each_round_also_once_it_has_passed() -> None:
    pod = {"metadata": {"uid": "u1", "annotations": {EVICTION: "2026-01-01T12:00:10Z"}}}
    rounds = [(dt.timedelta(seconds=at, microseconds=7 * at), 10**12 + at * 10**9 + 900 * at) for at in range(20)]
    assert len({notices([pod], NOW + passed, monotonic_ns)["u1"] for passed, monotonic_ns in rounds}) == 1


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, {}),
        ({EVICTION: "2026-01-01T12:00:10Z"}, {"u1": 10 * 10**9}),
        ({EVICTION: "2026-01-01T12:00:10Z", RECLAIM: "2026-01-01T12:00:05+00:00"}, {"u1": 5 * 10**9}),
        ({RECLAIM: "2026-01-01T11:00:00Z"}, {"u1": NOTICE_STEP_NS}),
        ({RECLAIM: "soon", EVICTION: "2026-01-01T12:00:10"}, {}),
        ({EVICTION: "9999-12-31T23:59:59Z"}, {"u1": LATEST_NS}),
    ],
    ids=["none", "the timekeeper's", "the sooner", "passed", "no times", "centuries away"],
)
def test_the_sooner_notice_counts_on_the_clock_of_the_pages(
    annotations: dict[str, str], expected: dict[str, int]
) -> None:
    pod = {"metadata": {"uid": "u1", "annotations": annotations}}
    assert notices([pod], NOW, 1000) == expected
