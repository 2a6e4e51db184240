from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from timekeeper.api.pods import ANSWER_SECONDS, MOST_PODS, EndedPods, FolderPods, others_have_ended
from timekeeper.auth.signed_tokens import PodIdentity

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 1}}
WAITING: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}


def pod(phase: str = "Running", **states: dict[str, Any]) -> dict[str, Any]:
    names = [name.replace("_", "-") for name in states]
    statuses = [{"name": name, "state": state} for name, state in zip(names, states.values(), strict=True)]
    return {
        "metadata": {"uid": "u1"},
        "spec": {"containers": [{"name": name} for name in names]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        (None, True),
        (pod(phase="Succeeded", main=RUNNING), True),
        (pod(phase="Failed", main=RUNNING), True),
        (pod(main=RUNNING, meter=RUNNING), False),
        (pod(main=ENDED, meter=RUNNING), True),
        (pod(main=WAITING, meter=RUNNING), False),
        (pod(one=ENDED, two=RUNNING, meter=RUNNING), False),
        (pod(one=ENDED, two=ENDED, meter=RUNNING), True),
        (pod(main=RUNNING), False),
        (pod(main=ENDED, meter=RUNNING, fairgpu_sidecar=RUNNING), True),
        ({"metadata": {"uid": "u1"}}, False),
        ({"spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}}, False),
    ],
)
def test_an_ancestors_sidecar_ends_once_the_other_containers_have(found: Any, ended: bool) -> None:  # noqa: FBT001
    assert others_have_ended(found) is ended


def test_a_folders_pod_is_found_by_its_uid_and_no_uid_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods" / "u1.json").write_text(json.dumps(pod(main=RUNNING)))
    (tmp_path / "secret.json").write_text("{}")
    pods = FolderPods(tmp_path)
    assert pods.read(PodIdentity("team-a", "train", "u1", 0)) == pod(main=RUNNING)
    for uid in ("u2", "../secret", "..", "."):
        assert pods.read(PodIdentity("team-a", "train", uid, 0)) is None


class CountedPods:
    """Pods that run until the test says otherwise; counts how often each is read."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.reads = 0
        self.during: Callable[[], object] = lambda: None

    def read(self, identity: PodIdentity) -> Any:
        self.reads += 1
        self.during()
        return self.found.get(identity.uid, pod(main=RUNNING, meter=RUNNING))


def of(uid: str) -> PodIdentity:
    return PodIdentity("team-a", uid, uid, 0)


def test_a_pod_that_asks_on_and_on_is_read_once_in_a_few_seconds_and_reported_the_end_within_ten() -> None:
    clock, pods = [0.0], CountedPods()
    known = EndedPods(pods, lambda: clock[0])
    for _ in range(1000):
        assert known.ended(of("u1")) is False
    assert pods.reads == 1
    pods.found["u1"] = pod(main=ENDED, meter=RUNNING)
    clock[0] = ANSWER_SECONDS
    assert ANSWER_SECONDS < 10
    assert known.ended(of("u1")) is True
    clock[0] = 1000.0
    assert known.ended(of("u1")) is True
    assert pods.reads == 2


def test_a_pod_is_read_by_one_thread_at_a_time() -> None:
    pods = CountedPods()
    known = EndedPods(pods, lambda: 0.0)
    meanwhile = []
    pods.during = lambda: meanwhile.append(known.ended(of("u1")))
    assert known.ended(of("u1")) is False
    assert (pods.reads, meanwhile) == (1, [False])


def test_a_pod_that_could_not_be_read_is_read_again() -> None:
    pods = CountedPods()
    known = EndedPods(pods, lambda: 0.0)

    def fail() -> None:
        raise ApiError(0, "Unanswered", "no answer")

    pods.during = fail
    with pytest.raises(ApiError):
        known.ended(of("u1"))
    pods.during = lambda: None
    assert known.ended(of("u1")) is False
    assert pods.reads == 2


def test_a_bounded_number_of_answers_is_remembered() -> None:
    pods = CountedPods()
    known = EndedPods(pods, lambda: 0.0)
    for number in range(MOST_PODS + 1):
        known.ended(of(f"u{number}"))
    assert pods.reads == MOST_PODS + 1
    known.ended(of(f"u{MOST_PODS}"))
    assert pods.reads == MOST_PODS + 1
    known.ended(of("u0"))
    assert pods.reads == MOST_PODS + 2
