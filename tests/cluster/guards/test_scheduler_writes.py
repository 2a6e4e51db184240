"""The scheduler's account writes conditions and its own annotations of GPU pods, and ends no bill."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import canonical_pod

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def scheduler(control_plane: ControlPlane) -> Identity:
    return control_plane.service_account("fairgpu-system", "fairgpu-scheduler")


@pytest.fixture
def pod(control_plane: ControlPlane, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.admin.api.create(path, canonical_pod())
    return f"{path}/gpu"


def condition(kind: str, status: str = "False") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status, "reason": "Test", "message": "a text"}]}}


def noted(**values: str) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {f"fairgpu.io/{key.replace('_', '-')}": value for key, value in values.items()}}
    }


ITS_OWN = [
    condition("PodScheduled"),
    condition("fairgpu.io/Placeable", "True"),
    condition("DisruptionTarget"),
    {"status": {"nominatedNodeName": "n1"}},
    noted(reclaim_at="2026-01-01T00:00:00Z"),
    noted(earmark="{}"),
]
NOT_ITS_OWN = [
    {"status": {"phase": "Succeeded"}},
    condition("Ready", "True"),
    {
        "status": {
            "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 3}]
        }
    },
    noted(allocation="{}"),
    noted(budget_state="open now"),
    noted(eviction_at="2026-01-01T00:00:00Z"),
    {"metadata": {"annotations": {"example.org/theirs": "changed"}}},
    {"metadata": {"labels": {"example.org/theirs": "changed"}}},
    {"metadata": {"finalizers": ["example.org/theirs"]}},
]


@pytest.mark.parametrize("patch", ITS_OWN, ids=str)
def test_it_writes_what_a_scheduler_writes(scheduler: Identity, pod: str, patch: dict[str, Any]) -> None:
    assert scheduler.api.patch(f"{pod}/status", patch, STRATEGIC_MERGE_PATCH)


@pytest.mark.parametrize("patch", NOT_ITS_OWN, ids=str)
def test_it_writes_nothing_else_of_a_gpu_pod(scheduler: Identity, pod: str, patch: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="fairgpu-metadata") as refused:
        scheduler.api.patch(f"{pod}/status", patch, STRATEGIC_MERGE_PATCH)
    assert "PodScheduled, DisruptionTarget, fairgpu.io/Placeable" in refused.value.message


def test_the_spec_is_out_of_its_reach(scheduler: Identity, pod: str) -> None:
    with pytest.raises(ApiError) as refused:
        scheduler.api.patch(pod, {"spec": {"activeDeadlineSeconds": 1}}, STRATEGIC_MERGE_PATCH)
    assert refused.value.status == 403
