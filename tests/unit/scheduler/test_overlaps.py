"""Bound pods that hold more of a GPU than there is: who is named, how often, and what counts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from scheduler.cluster.earmarks import Earmark
from scheduler.cluster.objects import PodNote, read_note, read_waiting
from scheduler.cluster.watches import MAX_WARNED, AllocationFaults
from scheduler.placement.holding import Piece
from scheduler.placement.overlaps import overlaps
from tests.unit.scheduler.extended import ask, pod, state_of
from tests.unit.scheduler.fleets import node

ROOM = {"core": 100, "memory": 1000, "slots": 64}


class Faults:
    """A node with GPUs n0-0, n0-1 and so on, the pods there, and the warnings that pods have.

    Attributes:
        state: the state.
        said: name, reason and message of each warning.
    """

    def __init__(self, gpus: int = 2) -> None:
        self.state, self.said = state_of("n0", gpus=gpus), list[tuple[str, str, str]]()
        self._faults = AllocationFaults(self.state, self._warn)

    def _warn(self, note: PodNote, reason: str, message: str) -> None:
        self.said.append((note.name, reason, message))

    def bound(self, name: str, at: int, core: int = 60, gpus: tuple[int, ...] = (0,), memory_mib: int = 0) -> None:
        """The watch shows a pod that was bound at that second."""
        devices = [
            {"uuid": f"n0-{gpu}", "model": "A100", "totalMiB": 1000, "core": core, "memoryMiB": memory_mib}
            for gpu in gpus
        ]
        item = pod(name, nodeName="n0")
        held = {"v": 1, "node": "n0", "containers": [{"name": "main", "devices": devices}]}
        item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(held)
        stamp = f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"
        item["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}]}
        self.state.put_pod(read_note(item))

    def bound_with_containers(self, name: str, at: int, gpus: dict[str, int], *, init: tuple[str, ...] = ()) -> None:
        """The watch shows a pod that was bound at that second, whose containers have 60 percent of a GPU each.

        `gpus` has the GPU of each container by its name, `init` the names of those that are init containers.
        """
        item = pod(name, nodeName="n0")
        item["spec"]["containers"] = [{"name": container} for container in gpus if container not in init]
        item["spec"]["initContainers"] = [{"name": container} for container in init]
        shares = {
            container: {"uuid": f"n0-{gpu}", "model": "A100", "totalMiB": 1000, "core": 60, "memoryMiB": 0}
            for container, gpu in gpus.items()
        }
        containers = [{"name": container, "devices": [share]} for container, share in shares.items()]
        item["metadata"]["annotations"]["fairgpu.io/allocation"] = json.dumps(
            {"v": 1, "node": "n0", "containers": containers}
        )
        stamp = f"2026-01-01T00:{at // 60:02}:{at % 60:02}Z"
        item["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}]}
        self.state.put_pod(read_note(item))

    def named(self) -> list[str]:
        """The pods that have a warning after one more look."""
        self._faults.look_for_overlaps()
        return [name for name, _, _ in self.said]

    @property
    def gpus(self) -> int:
        """The figure of the metric."""
        return self.state.figures().overlapping


def test_the_later_bound_of_two_pods_that_were_given_the_same_part_of_a_gpu_has_an_event() -> None:
    faults = Faults()
    faults.bound("younger", at=2)
    faults.bound("older", at=1)
    faults.bound("beside", at=3, gpus=(1,))
    with capture_logs() as logged:
        assert faults.named() == ["younger"]
    [(_, reason, message)] = faults.said
    assert reason == "AllocationsOverlap"
    assert "the GPU n0-0: with this pod, bound after the others, 120 of 100 percent of its time" in message
    [line] = [line for line in logged if line["event"] == "allocations overlap"]
    assert (line["pod"], line["gpu"], line["log_level"]) == ("team/younger", "n0-0", "error")
    assert faults.gpus == 1


def test_an_overlap_is_named_once_while_it_lasts_and_again_when_it_comes_again() -> None:
    faults = Faults()
    for _ in range(2):
        faults.bound("older", at=1)
        faults.bound("younger", at=2)
        faults.named()
        faults.bound("younger", at=2)
        faults.named()
        faults.state.remove_pod("uid-older")
        faults.named()
        assert faults.gpus == 0
    assert faults.named() == ["younger", "younger"]


def test_a_pod_on_several_gpus_has_one_event_and_each_gpu_counts() -> None:
    faults = Faults()
    faults.bound("older", at=1, gpus=(0, 1))
    faults.bound("younger", at=2, gpus=(0, 1))
    assert faults.named() == ["younger"]
    assert faults.gpus == 2


def test_a_gpu_that_an_allocation_names_twice_for_a_container_counts_twice() -> None:
    faults = Faults()
    faults.bound("twice", at=1, gpus=(0, 0))
    assert faults.named() == ["twice"]
    assert faults.gpus == 1


def test_a_pod_that_fits_beside_those_whose_containers_may_start_is_not_named() -> None:
    faults = Faults()
    faults.bound("first", at=1, core=60)
    faults.bound("second", at=2, core=60)
    faults.bound("third", at=3, core=40)
    assert faults.named() == ["second"]


def test_a_container_that_is_refused_for_one_gpu_counts_on_no_other() -> None:
    faults = Faults()
    faults.bound("first", at=1, gpus=(0,))
    faults.bound("refused", at=2, gpus=(0, 1))
    faults.bound("on the other GPU", at=3, gpus=(1,))
    assert faults.named() == ["refused"]
    assert faults.gpus == 1


def test_another_container_of_a_pod_counts_beside_one_that_is_refused() -> None:
    faults = Faults()
    faults.bound("first", at=1, gpus=(0,))
    faults.bound_with_containers("half", at=2, gpus={"refused": 0, "runs": 1})
    faults.bound("late", at=3, gpus=(1,))
    assert sorted(faults.named()) == ["half", "late"]
    assert faults.gpus == 2


def test_no_container_of_a_pod_starts_while_its_init_container_is_refused() -> None:
    faults = Faults()
    faults.bound("first", at=1, gpus=(0,))
    faults.bound_with_containers("waits", at=2, gpus={"prepares": 0, "main": 1}, init=("prepares",))
    faults.bound("on the other GPU", at=3, gpus=(1,))
    assert faults.named() == ["waits"]


def test_a_gpu_that_comes_to_offer_less_memory_than_pods_hold_of_it_is_named() -> None:
    faults = Faults(gpus=1)
    faults.bound("older", at=1, core=10, memory_mib=500)
    faults.bound("younger", at=2, core=10, memory_mib=500)
    assert faults.named() == []
    faults.state.put_node(node("n0", 1, memory_mib=900))
    assert faults.named() == ["younger"]
    assert "1000 of 900 MiB" in faults.said[0][2]
    assert "If the pod does not run, delete it" in faults.said[0][2], "both may run on"


def test_pods_that_hold_all_of_a_gpu_and_no_more_do_not_overlap() -> None:
    faults = Faults()
    faults.bound("a", at=1, core=50, memory_mib=500)
    faults.bound("b", at=1, core=50, memory_mib=500)
    assert (faults.named(), faults.gpus) == ([], 0)


def test_devices_that_are_kept_for_a_waiting_pod_while_its_victim_runs_are_no_overlap() -> None:
    faults = Faults(gpus=1)
    faults.bound("victim", at=1, core=100)
    kept = Earmark("n0", (Piece("n0-0", 100, 1000, 1),), ("uid-victim",), 2**40)
    faults.state.earmark(read_waiting(pod("waits", core=100)), kept)
    assert faults.state.fleet.core[faults.state.fleet.rows["n0"], 0] < 0
    assert (faults.named(), faults.gpus) == ([], 0)


def test_a_pod_bound_past_the_scheduler_where_devices_are_reserved_is_named_once_both_are_bound() -> None:
    faults = Faults(gpus=1)
    assert ask(faults.state, pod("ours", core=60)).node_names == ["n0"]
    faults.bound("forged", at=1)
    assert faults.named() == []
    faults.bound("ours", at=2)
    assert faults.named() == ["ours"]


def test_overlaps_beyond_a_hundred_are_named_in_the_log_alone() -> None:
    faults = Faults()
    for number in range(MAX_WARNED + 6):
        faults.bound(f"p{number:03}", at=number)
    with capture_logs() as logged:
        assert len(faults.named()) == MAX_WARNED
    assert len([line for line in logged if line["event"] == "allocations overlap"]) == MAX_WARNED + 5


def test_nothing_overlaps_on_a_node_that_is_gone() -> None:
    faults = Faults()
    faults.bound("older", at=1)
    faults.bound("younger", at=2)
    faults.state.remove_node("n0")
    assert (faults.named(), faults.gpus) == ([], 0)


pieces = st.builds(Piece, st.just("n0-0"), st.integers(0, 100), st.integers(0, 1000), st.integers(1, 40))


@given(st.lists(pieces, max_size=6))
def test_there_is_an_overlap_exactly_where_the_pods_together_hold_more_than_there_is(held: list[Piece]) -> None:
    found = overlaps(node("n0", 1), [(str(at), ((piece,),)) for at, piece in enumerate(held)])
    sums = [sum(piece.core_percent for piece in held), sum(piece.memory_mib for piece in held)]
    sums.append(sum(piece.slots for piece in held))
    assert bool(found) == any(total > room for total, room in zip(sums, ROOM.values(), strict=True))
    late = {int(overlap.uid) for overlap in found}
    kept = [piece for at, piece in enumerate(held) if at not in late]
    assert sum(piece.core_percent for piece in kept) <= ROOM["core"]
    assert sum(piece.memory_mib for piece in kept) <= ROOM["memory"]
    assert sum(piece.slots for piece in kept) <= ROOM["slots"]
