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
        ({"huawei.com/Ascend910A-memory": "16384"}, UnplacedShare(1, 100)),
        ({"amd.com/gpu": "2", "example.com/accelerator": "3"}, UnplacedShare(5, 500)),
    ],
)
def test_units_of_devices_count_as_whole_gpus_and_sizes_do_not(limits: dict[str, str], share: UnplacedShare) -> None:
    pod = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}

    asked = read_asked(pod, StackNames(frozenset(limits), (), frozenset()), DialectSettings())

    assert asked is not None
    assert asked.containers == (share,)
