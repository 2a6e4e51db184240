"""Whatever pod an admin of one namespace writes: a GPU in it is metered, or it does not come in."""

from __future__ import annotations

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.journey.evasions import METERED, REFUSED
from tests.cluster.journey.manifests import Manifest
from tests.cluster.pods import SIDECAR_IMAGE

pytestmark = pytest.mark.usefixtures("services")


@pytest.fixture(scope="module")
def user(control_plane: ControlPlane, common_namespace: str) -> Identity:
    return control_plane.namespace_admin(common_namespace)


@pytest.fixture
def pods(common_namespace: str) -> str:
    return f"/api/v1/namespaces/{common_namespace}/pods"


def assert_metered(stored: Manifest, author: str) -> None:
    """It asks in FairGPU's terms alone, and carries all by which it is held, seen and paid for."""
    metadata, spec = stored["metadata"], stored["spec"]
    sidecar, *_ = spec["initContainers"]
    containers = [*spec["containers"], *spec["initContainers"]]
    asked = {key for container in containers for key in container.get("resources", {}).get("limits", {})}
    assert {names.GPU, names.GPU_CORE} <= asked
    assert "nvidia.com/gpu" not in asked
    assert not {"gpu-fraction", "fairgpu.io/allocation"} & metadata["annotations"].keys()
    assert (sidecar["name"], sidecar["image"]) == ("fairgpu-sidecar", SIDECAR_IMAGE)
    assert not any(key.startswith("fairgpu.io/") for key in sidecar["resources"]["limits"])
    kinds = {volume["name"]: set(volume) - {"name"} for volume in spec["volumes"]}
    assert (kinds["fairgpu-usage"], kinds["fairgpu-token"]) == ({"emptyDir"}, {"projected"})
    assert (spec["schedulerName"], spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "fairgpu-scheduler",
        "gpu-in-budget",
        1000,
        "Never",
    )
    assert "nodeName" not in spec
    assert metadata["annotations"]["fairgpu.io/created-by"] == author
    assert (stored["status"]["phase"], stored["status"].get("conditions")) == ("Pending", None)


@pytest.mark.parametrize("way", METERED)
def test_a_gpu_is_metered_though_it_is_asked_for(user: Identity, pods: str, way: str) -> None:
    metadata = {**METERED[way]["metadata"], "generateName": "evading-"}
    del metadata["name"]
    assert_metered(user.api.create(pods, {**METERED[way], "metadata": metadata}), user.name)


@pytest.mark.parametrize("way", REFUSED)
def test_no_gpu_is_had(user: Identity, pods: str, way: str) -> None:
    manifest, said = REFUSED[way]
    with pytest.raises(ApiError) as refusal:
        user.api.create(pods, manifest)
    assert refusal.value.status in (400, 403, 422)
    assert said in refusal.value.message
