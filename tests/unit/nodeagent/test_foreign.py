"""Other offers of a node's GPUs: other plugins' resources, and ResourceSlices of NVIDIA's driver."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.dialects import tencent, volcano
from nodeagent.foreign import RESOURCES, ForeignSlices, foreign_resources, slices_of


@pytest.mark.parametrize(
    ("capacity", "foreign"),
    [
        ({}, []),
        ({"nvidia.com/gpu": "0", "cpu": "8", "fairgpu.io/gpu": "64"}, []),
        ({"nvidia.com/gpu": "8", "nvidia.com/mig-1g.5gb": "7"}, ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]),
        *(({name: "10"}, [name]) for name in RESOURCES),
    ],
)
def test_resources_of_other_plugins_are_foreign(capacity: dict[str, str], foreign: list[str]) -> None:
    assert foreign_resources({"status": {"capacity": capacity}}) == foreign


def test_the_resources_by_which_a_dialect_asks_for_gpus_are_foreign() -> None:
    amounts = {volcano.COUNT, volcano.MEMORY, *volcano.OLDER_RESOURCES, "nvidia.com/gpu", "nvidia.com/gpu.shared"}
    amounts |= {tencent.CORE, tencent.MEMORY}
    assert amounts | {"aliyun.com/gpu-mem", "aliyun.com/gpu-count"} == set(RESOURCES)


def slice_of(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.nvidia.com", "devices": [{}]}}


def test_a_resource_slice_is_an_offer_until_the_last_one_is_deleted() -> None:
    woken: list[None] = []
    slices = ForeignSlices(lambda: woken.append(None), lambda _: None)
    assert (slices.offers, slices.known.is_set()) == ([], False)
    slices.replaced([slice_of("a")])
    assert (slices.offers, slices.known.is_set()) == (["ResourceSlices of gpu.nvidia.com"], True)
    slices.changed("ADDED", slice_of("b"))
    slices.changed("DELETED", slice_of("a"))
    assert slices.offers == ["ResourceSlices of gpu.nvidia.com"]
    slices.changed("DELETED", slice_of("b"))
    assert slices.offers == []
    assert len(woken) == 4


class Server:
    """An API server that knows Dynamic Resource Allocation, or does not, or does not answer."""

    def __init__(self, answer: dict[str, Any] | int) -> None:
        self._answer = answer

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/apis/resource.k8s.io"
        if isinstance(self._answer, int):
            raise ApiError(self._answer, "", "")
        return self._answer


def test_the_nodes_own_slices_are_watched_in_the_version_that_the_server_prefers() -> None:
    api: Any = Server({"preferredVersion": {"groupVersion": "resource.k8s.io/v1", "version": "v1"}})
    collection = slices_of(api, "n1")
    assert collection is not None
    assert collection.path == "/apis/resource.k8s.io/v1/resourceslices"
    assert collection.selectors == {"fieldSelector": "spec.nodeName=n1,spec.driver=gpu.nvidia.com"}
    assert collection.read(slice_of("a")) == {"metadata": {"name": "a"}}


def test_a_cluster_without_the_api_has_no_slices_and_one_that_does_not_answer_is_not_such() -> None:
    without: Any = Server(404)
    silent: Any = Server(503)
    assert slices_of(without, "n1") is None
    with pytest.raises(ApiError):
        slices_of(silent, "n1")
