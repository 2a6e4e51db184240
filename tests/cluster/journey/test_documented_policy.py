"""The policies that docs/guards.md offers against ways that FairGPU itself does not close."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.installation import apply
from tests.cluster.journey.manifests import Manifest, pod
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("services")

GUARDS = Path(__file__).parents[3] / "docs" / "guards.md"
CLAIMS = [{"name": "gpu", "resourceClaimName": "mine"}]
UNKNOWN = {
    "a slice of a GPU": pod("other", {"nvidia.com/mig-1g.5gb": "1"}),
    "a shared GPU": pod("other", {"nvidia.com/gpu.shared": "1"}),
    "a GPU of another maker": pod("other", {"amd.com/gpu": "1"}),
    "a class of devices": pod("other", {"deviceclass.resource.kubernetes.io/gpu": "1"}),
    "a claim": pod("other", {"cpu": "1"}, resourceClaims=CLAIMS),
}


@pytest.fixture
def policy(control_plane: ControlPlane, user: Identity, namespace: str) -> Iterator[None]:
    """In force for the length of a test."""
    found = re.search(r"## Refuse GPUs that.*?```yaml\n(.*?)```", GUARDS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    manifests: list[Manifest] = list(yaml.safe_load_all(found[1]))
    apply(control_plane, manifests)
    wait_until(lambda: "unmetered-gpus" in refusal(user, namespace, UNKNOWN["a slice of a GPU"]), "it is in force")
    yield
    control_plane.admin.kubectl("delete", "-f", "-", stdin=manifests)


def refusal(user: Identity, namespace: str, manifest: Manifest) -> str:
    try:
        user.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest, query={"dryRun": "All"})
    except ApiError as error:
        return error.message
    return ""


def test_a_resource_that_the_policy_lists_is_refused_and_one_that_fairgpu_reads_comes_in(
    user: Identity, namespace: str, policy: None
) -> None:
    assert policy is None
    for what, manifest in UNKNOWN.items():
        assert "a GPU that FairGPU does not meter" in refusal(user, namespace, manifest), what
    for known in ({"nvidia.com/gpu": "1"}, {"fairgpu.io/gpu-core": "30"}, {"cpu": "1"}):
        assert refusal(user, namespace, pod("known", known)) == ""


def test_the_quota_that_it_names_lets_no_disruption_budget_in(
    control_plane: ControlPlane, user: Identity, namespace: str
) -> None:
    counted = "count/poddisruptionbudgets.policy"
    assert f"`{counted}: 0`" in GUARDS.read_text(encoding="utf-8")
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {counted: "0"}}}
    control_plane.admin.api.create(path, quota)
    keep = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": "100%", "selector": {}},
    }
    disruptions = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"

    def tried() -> str:
        try:
            user.api.create(disruptions, keep, query={"dryRun": "All"})
        except ApiError as error:
            return error.message
        return ""

    wait_until(lambda: "exceeded quota: q" in tried(), "admission knows the quota")
    with pytest.raises(ApiError, match="exceeded quota: q"):
        user.api.create(disruptions, keep)
