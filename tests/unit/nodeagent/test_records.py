"""Containers of a node together get no more of a GPU than there is, in whichever order they come and go."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from fairgpu.allocation import ContainerAllocation, DeviceShare
from fairgpu.inventory import Device, Health
from fairgpu.request import NO_CHOICES, CorePolicy, PodChoices
from nodeagent.containers.records import Record, RecordError, decode, encode, ended, given, superseded
from nodeagent.containers.refusal import Cause, PlacementRefusedError
from nodeagent.containers.resolving import Claim
from nodeagent.turns import Policy

NEXT = frozenset({"slot-2"})
OFFERED = {f"GPU-{number}": Device(f"GPU-{number}", "A100", 1000, None, f"0:{number}") for number in range(2)}


def asks(
    core: int = 30,
    memory: int = 100,
    uid: str = "u1",
    container: str = "main",
    slots: frozenset[str] = frozenset({"slot-1"}),
    uuids: tuple[str, ...] = ("GPU-0",),
    *,
    total: int = 1000,
) -> Claim:
    shares = tuple(DeviceShare(uuid, "A100", total, core, memory) for uuid in uuids)
    return Claim("team", f"pod-{uid}", uid, container, slots, ContainerAllocation(container, shares))


def start(claim: Claim, *records: Record, choices: PodChoices = NO_CHOICES, first_key: int = 7) -> Record:
    return given(claim, choices, records, OFFERED, itertools.count(first_key).__next__)


def test_a_container_gets_the_first_free_place_on_each_page() -> None:
    first = start(asks())
    second = start(asks(uid="u2", slots=frozenset({"slot-2", "slot-3"}), uuids=("GPU-0", "GPU-1")), first)
    assert [(device.slot, device.key) for device in second.devices] == [(1, 7), (0, 8)]


def test_a_container_that_starts_again_keeps_its_place_and_has_a_new_key() -> None:
    before = start(asks())
    again = start(asks(), before, first_key=9)
    assert (again.start, again.devices[0].slot, again.devices[0].key) == (2, 0, 9)
    assert superseded(again, [before]) == [before]


def test_the_slots_of_an_init_container_pass_on_with_its_share() -> None:
    init = start(asks(core=80, memory=900, container="init"))
    main = start(asks(core=90, memory=950), init)
    assert superseded(main, [init]) == [init]


@pytest.mark.parametrize(
    ("claim", "cause", "text"),
    [
        (asks(core=71, uid="u2", slots=NEXT), Cause.OVERLAP, "70 percent of its time left, not 71"),
        (asks(core=1, memory=901, uid="u2", slots=NEXT), Cause.OVERLAP, "900 MiB left, not 901"),
        (asks(core=1, memory=1, uid="u2"), Cause.OVERLAP, "slots of container main of pod team/pod-u1, which has not"),
        (asks(uuids=("GPU-9",)), Cause.UNUSABLE_DEVICE, "not offered"),
        (asks(memory=1001), Cause.UNUSABLE_DEVICE, "offers 1000 MiB, not 1001"),
        (asks(total=2000), Cause.UNUSABLE_DEVICE, "offers 1000 MiB, not 2000"),
    ],
)
def test_a_request_that_the_node_cannot_give_is_refused_with_what_is_left(
    claim: Claim, cause: Cause, text: str
) -> None:
    with pytest.raises(PlacementRefusedError, match=text) as refused:
        start(claim, start(asks()))
    assert refused.value.cause is cause


def test_a_fenced_gpu_takes_nobody_in() -> None:
    fenced = {"GPU-0": replace(OFFERED["GPU-0"], health=Health.FENCED, why="Xid 79")}
    with pytest.raises(PlacementRefusedError, match="Xid 79"):
        given(asks(), NO_CHOICES, [], fenced, lambda: 1)


def test_the_sixty_fifth_container_of_a_gpu_is_refused() -> None:
    records: list[Record] = []
    for number in range(64):
        slots = frozenset({f"slot-{number}"})
        records.append(start(asks(core=1, memory=1, uid=f"u{number}", slots=slots), *records))
    with pytest.raises(PlacementRefusedError, match="no place left: 64 containers"):
        start(asks(core=1, memory=1, uid="u64", slots=frozenset({"slot-64"})), *records)


@pytest.mark.parametrize(
    ("core", "choices", "policy"),
    [
        (30, NO_CHOICES, Policy.HARD),
        (30, PodChoices(core_policy=CorePolicy.ELASTIC), Policy.ELASTIC),
        (0, PodChoices(core_policy=CorePolicy.ELASTIC), Policy.BEST_EFFORT),
    ],
)
def test_the_policy_follows_from_the_share_and_the_pods_choice(core: int, choices: PodChoices, policy: Policy) -> None:
    assert start(asks(core=core), choices=choices).policy is policy


@pytest.mark.parametrize(("core", "memory", "whole"), [(100, 1000, True), (100, 999, False), (99, 1000, False)])
def test_only_a_container_with_all_of_its_gpus_is_whole(core: int, memory: int, whole: bool) -> None:  # noqa: FBT001
    assert start(asks(core=core, memory=memory)).whole is whole


def test_records_of_pods_that_are_gone_or_ended_are_over() -> None:
    records = [start(asks(uid=uid)) for uid in ("gone", "ended", "lives")]
    pods = [
        {"metadata": {"uid": "ended"}, "status": {"phase": "Succeeded"}},
        {"metadata": {"uid": "lives"}, "status": {"phase": "Running"}},
    ]
    assert [record.uid for record in ended(records, pods)] == ["gone", "ended"]


def test_a_record_is_read_as_it_was_written() -> None:
    record = start(asks(uuids=("GPU-0", "GPU-1"), slots=frozenset({"slot-1", "slot-2"})))
    assert decode(encode(record)) == record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":2}', '{"v":1}', '{"v":1,"slots":3}'])
def test_a_file_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        decode(text)


@pytest.mark.parametrize("field", ["slots", "devices"])
def test_a_record_without_slots_or_devices_is_refused(field: str) -> None:
    """The agent would end at its start: a container's CDI device is named after its slots."""
    with pytest.raises(RecordError, match="without slots or devices"):
        decode(json.dumps({**json.loads(encode(start(asks()))), field: []}))


@pytest.mark.parametrize("field", ["start", "taskPriority", "core", "memoryMiB", "slot", "key"])
@pytest.mark.parametrize("number", ["1e999", "NaN", "null", "[]"])
def test_a_record_with_a_number_that_is_none_is_refused(field: str, number: str) -> None:
    text = re.sub(f'"{field}":[0-9]+', f'"{field}":{number}', encode(start(asks())))
    assert number in text
    with pytest.raises(RecordError):
        decode(text)


STARTS = st.tuples(
    st.sampled_from(["start", "end"]),
    st.integers(0, 5),
    st.integers(0, 100),
    st.integers(0, 1000),
    st.sampled_from([("GPU-0",), ("GPU-1",), ("GPU-0", "GPU-1")]),
)


@drawn(st.lists(STARTS, max_size=30))
def test_no_gpu_is_ever_given_beyond_what_it_has(steps: list[tuple[str, int, int, int, tuple[str, ...]]]) -> None:
    records: list[Record] = []
    for action, number, core, memory, uuids in steps:
        uid = f"u{number}"
        slots = frozenset(f"slot-{number}-{index}" for index, _ in enumerate(uuids))
        if action == "end":
            records = [each for each in records if each.uid != uid]
            continue
        try:
            record = start(asks(core, memory, uid, slots=slots, uuids=uuids), *records)
        except PlacementRefusedError:
            continue
        records = [each for each in records if each not in superseded(record, records)] + [record]
        for uuid in OFFERED:
            held = [device for each in records for device in each.devices if device.uuid == uuid]
            assert sum(device.core_percent for device in held) <= 100
            assert sum(device.memory_mib for device in held) <= 1000
            assert len({device.slot for device in held}) == len(held)
