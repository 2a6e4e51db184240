"""The requests of pods to other stacks, before a scheduler has chosen devices."""

from __future__ import annotations

import pytest

from fairgpu.asks import StackNames, read_asked
from fairgpu.charging import UnplacedShare
from fairgpu.dialects.reading import DialectSettings


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"gpu.intel.com/i915": "1"}, UnplacedShare(1, 100)),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "500"}, UnplacedShare(1, 100)),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/tiles": "2"}, UnplacedShare(1, 100)),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/memory.max": "4294967296"}, UnplacedShare(1, 100)),
        ({"huawei.com/Ascend910A": "2", "huawei.com/Ascend910A-memory": "16384"}, UnplacedShare(2, 200)),
        ({"huawei.com/Ascend910A": "1", "huawei.com/Ascend910A-core": "80"}, UnplacedShare(1, 100)),
        ({"huawei.com/Ascend910A-memory": "16384"}, UnplacedShare(1, 100)),
        ({"amd.com/gpu": "2", "example.com/accelerator": "3"}, UnplacedShare(5, 500)),
    ],
)
def test_units_of_devices_count_as_whole_gpus_and_sizes_do_not(limits: dict[str, str], share: UnplacedShare) -> None:
    pod = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}

    asked = read_asked(pod, StackNames(frozenset(limits), (), frozenset()), DialectSettings())

    assert asked is not None
    assert asked.containers == (share,)


@pytest.mark.parametrize(
    ("annotations", "share"),
    [
        ({"request": "40Gi"}, UnplacedShare(1, 0, 40960)),
        ({"request": "1"}, UnplacedShare(1, 0, 1)),
        ({"request": "40Gi", "limit": "80Gi"}, UnplacedShare(1, 0, 40960)),
        ({"request": "much"}, UnplacedShare(1, 100)),
        ({"request": "-1Gi"}, UnplacedShare(1, 100)),
        ({"limit": "80Gi"}, UnplacedShare(1, 0, 81920)),
    ],
)
def test_the_memory_of_a_container_by_kai_is_asked_for_by_that_container_alone(
    annotations: dict[str, str], share: UnplacedShare
) -> None:
    given = {f"nvidia.com/container.main.gpu-memory.{end}": text for end, text in annotations.items()}
    pod = {
        "metadata": {"annotations": given},
        "spec": {"containers": [{"name": "other"}, {"name": "main"}], "initContainers": [{"name": "load"}]},
    }

    asked = read_asked(pod, StackNames(frozenset(), (), frozenset()), DialectSettings())

    assert asked is not None
    assert asked.containers == (None, share)
    assert asked.init == ((None, False),)


def test_the_memory_of_a_container_is_asked_for_on_each_of_the_pods_devices() -> None:
    annotations = {"nvidia.com/container.main.gpu-memory.request": "1Gi", "gpu-fraction-num-devices": "2"}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}

    asked = read_asked(pod, StackNames(frozenset(), (), frozenset()), DialectSettings())

    assert asked is not None
    assert asked.containers == (UnplacedShare(2, 0, 2048),)


def test_a_container_that_asks_in_two_ways_asks_for_both() -> None:
    pod = {
        "metadata": {"annotations": {"nvidia.com/container.main.gpu-memory.request": "1Gi"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"amd.com/gpu": "1"}}}]},
    }

    asked = read_asked(pod, StackNames(frozenset({"amd.com/gpu"}), (), frozenset()), DialectSettings())

    assert asked is not None
    assert asked.containers == (UnplacedShare(2, 100, 1024),)
