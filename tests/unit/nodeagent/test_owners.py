"""The owner of a process on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.containers.records import GivenDevice, Record
from nodeagent.ledger_slots import Registered
from nodeagent.owners import Owned, ProcessState, container_names, owner, unheld_since
from nodeagent.pods import read
from nodeagent.processes import Process
from nodeagent.turns import Policy

GPU, OTHER = "GPU-0", "GPU-1"


def record(container: str, *, whole: bool = False, uid: str = "uid-1", gpu: str = GPU) -> Record:
    device = GivenDevice(gpu, 100 if whole else 30, 4096, 0, 7)
    return Record("team", "train", uid, container, frozenset({"slot-0"}), 1, whole, Policy.HARD, 1, (device,))


def process(uid: str = "uid-1", container: str = "id-main", own_pid: int = 7, began: int = 50) -> Process:
    return Process(300, own_pid, began, uid, container)


def owned(process: Process, *records: Record, is_full: bool = False) -> Owned | None:
    registered = Registered(frozenset({(7, 50)}), is_full)
    return owner(process, GPU, records, {"id-main": "main", "id-side": "side"}, lambda _: registered)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (owned(process(), record("main")), ProcessState.HELD),
        (owned(process(), record("main"), is_full=True), ProcessState.HELD),
        (owned(process(own_pid=8), record("main")), ProcessState.NOT_SHIMMED),
        (owned(process(began=51), record("main")), ProcessState.NOT_SHIMMED),
        (owned(process(own_pid=8), record("main"), is_full=True), ProcessState.WITHOUT_SLOT),
        (owned(process(own_pid=8), record("main", whole=True)), ProcessState.HELD),
        (owned(process(container="id-side"), record("main")), ProcessState.WITHOUT_SHARE),
        (owned(process(), record("main", gpu=OTHER)), ProcessState.WITHOUT_SHARE),
        (owned(process(uid="uid-2"), record("main")), ProcessState.WITHOUT_SHARE),
        (owned(process(uid="", container=""), record("main")), ProcessState.OUTSIDE_PODS),
    ],
    ids=["its shim knows it", "its shim knows it and no other", "another pid", "a pid of an earlier process",
         "a full ledger", "a whole GPU", "a container without GPU", "another GPU", "a pod without GPU",
         "the node's own"],
)  # fmt: skip
def test_a_process_has_the_state_that_its_container_and_the_containers_shim_give_it(
    found: Owned | None, state: ProcessState
) -> None:
    assert found is not None
    assert found.state is state
    assert (found.record is not None) == (
        state in (ProcessState.HELD, ProcessState.NOT_SHIMMED, ProcessState.WITHOUT_SLOT)
    )


@pytest.mark.parametrize(
    ("container", "unread", "state"),
    [
        ("id-main", ("uid-1", "main"), ProcessState.HELD),
        ("id-side", ("uid-1", "main"), ProcessState.WITHOUT_SHARE),
        ("id-main", ("uid-2", "main"), ProcessState.WITHOUT_SHARE),
        ("id-new", ("uid-1", "main"), None),
    ],
    ids=["of that container", "of another container", "of another pod", "of one that the status does not name yet"],
)
def test_a_process_of_a_container_whose_record_cannot_be_read_is_not_one_without_a_share(
    container: str, unread: tuple[str, str], state: ProcessState | None
) -> None:
    """A later version of the agent may have written the record: the process may be under the shim."""
    names = {"id-main": "main", "id-side": "side"}
    found = owner(process(container=container), GPU, [], names, lambda _: Registered(), [unread])
    assert (found.state if found is not None else None) is state


def test_a_container_that_the_status_does_not_name_yet_has_no_known_owner() -> None:
    assert owned(process(container="id-new"), record("main")) is None


def test_containers_are_known_by_the_ids_of_the_runtime() -> None:
    status = {"name": "main", "containerID": "containerd://id-main"}
    pods: list[dict[str, Any]] = [
        {"status": {"containerStatuses": [status], "initContainerStatuses": [{"name": "init"}]}},
        {"status": {"ephemeralContainerStatuses": [{"name": "debugger", "containerID": "containerd://id-debugger"}]}},
        {"status": {"phase": "Pending"}},
    ]
    assert container_names(pods) == {"id-main": "main", "id-debugger": "debugger"}
    assert container_names(map(read, ({"metadata": {}, **pod} for pod in pods))) == container_names(pods)


@pytest.mark.parametrize(
    ("found", "container"),
    [
        (owned(process(), record("main")), "main"),
        (owned(process(own_pid=8), record("main")), "main"),
        (owned(process(container="id-side"), record("main")), "side"),
        (owned(process(uid="uid-2", container="id-side"), record("main")), "side"),
        (owned(process(uid="uid-2", container="id-new"), record("main")), ""),
        (owned(process(uid="", container="")), ""),
    ],
)
def test_a_process_has_the_name_of_its_container_where_the_pods_status_states_it(
    found: Owned | None, container: str
) -> None:
    assert found is not None
    assert found.container == container


@pytest.mark.parametrize("is_full", [False, True])
def test_a_process_is_ended_alike_whether_the_ledger_has_room_or_its_container_has_filled_it(*, is_full: bool) -> None:
    stray = owned(process(own_pid=8), record("main"), is_full=is_full)
    assert stray is not None
    assert unheld_since({}, [stray], 100.0) == {(300, 50): 100.0}


def test_time_without_a_slot_counts_from_the_first_look_and_anew_for_another_process() -> None:
    stray = owned(process(own_pid=8), record("main"))
    assert stray is not None
    first = unheld_since({}, [stray], 100.0)
    assert unheld_since(first, [stray], 107.0) == {(300, 50): 100.0}
    again = owned(process(own_pid=8, began=60), record("main"))
    assert again is not None
    assert unheld_since(first, [again], 107.0) == {(300, 60): 107.0}
    assert unheld_since(first, [], 107.0) == {}


def test_a_process_outside_all_pods_is_never_counted_towards_its_end() -> None:
    own = owned(process(uid="", container=""))
    assert own is not None
    assert unheld_since({}, [own], 100.0) == {}
