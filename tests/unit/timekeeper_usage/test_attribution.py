from __future__ import annotations

from typing import Any

import pytest

from fairgpu.allocation import DeviceShare
from fairgpu.charging import ChargeRules, UnplacedShare
from timekeeper.domain.attribution import Origin, attribution, read_origin
from timekeeper.domain.reservations import Reservation

BY = "fairgpu.io/created-by"
CREATED = "2026-11-18T10:20:30Z"
MINUTE_OF_IT = 29916620


def pod(kind: str = "", name: str = "", by: str | None = None, **metadata: Any) -> dict[str, Any]:
    owners = [{"kind": kind, "name": name, "controller": True}] if kind else []
    annotations = {} if by is None else {BY: by}
    return {"name": "p1", "ownerReferences": owners, "annotations": annotations, **metadata}


@pytest.mark.parametrize(
    ("metadata", "owner", "user"),
    [
        (pod(by="alice"), "Pod/p1", "alice"),
        (pod("Job", "train", by="Job/train"), "Job/train", "Job/train"),
        (pod("Job", "train"), "Job/train", ""),
        (pod("Job", "train", by="mallory"), "Pod/p1", "mallory"),
        (pod("ReplicaSet", "serve-5d4", labels={"pod-template-hash": "5d4"}), "Deployment/serve", ""),
        (pod("ReplicaSet", "serve-5d4"), "ReplicaSet/serve-5d4", ""),
        (pod("Job", f"nightly-{MINUTE_OF_IT}", creationTimestamp=CREATED), "CronJob/nightly", ""),
        (pod("Job", "nightly-12345", creationTimestamp=CREATED), "Job/nightly-12345", ""),
        (pod("Job", f"nightly-{MINUTE_OF_IT}"), f"Job/nightly-{MINUTE_OF_IT}", ""),
        ({"ownerReferences": "x", "labels": 3, "annotations": [], "name": "p1"}, "Pod/p1", ""),
    ],
)
def test_a_pod_is_put_down_to_what_made_it_and_not_to_what_it_claims(
    metadata: dict[str, Any], owner: str, user: str
) -> None:
    origin = read_origin(metadata)
    assert (origin.owner, origin.user) == (owner, user)


def test_core_and_memory_are_apart_and_have_no_price() -> None:
    share = DeviceShare("GPU-1", "A100", 1000, 30, 250)
    other = DeviceShare("GPU-2", "A100", 1000, 0, 500)
    found = attribution(Origin(), Reservation(((share, other),)), (), ChargeRules())
    assert (found.model, found.core_rate, found.memory_rate) == ("A100", 300_000, 750_000)


def test_a_pod_that_no_scheduler_placed_counts_as_it_asked() -> None:
    asked = UnplacedShare(gpus=2, core_percent=50, memory_mib=16384)
    found = attribution(Origin(), Reservation((asked,), placed=False), (), ChargeRules(unknown_device_mib=16384))
    assert (found.model, found.core_rate, found.memory_rate) == ("", 500_000, 1_000_000)


def test_only_labels_that_the_admin_keeps_are_kept() -> None:
    origin = Origin(labels={"team": "vision", "pod-template-hash": "5d4", "odd": 3})
    assert attribution(origin, Reservation(()), ("team", "odd", "none"), ChargeRules()).labels == (("team", "vision"),)
