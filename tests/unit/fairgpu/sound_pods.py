"""Pods that are sound more often than not, in every dialect and in several at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from fairgpu.permissions import Permission

GPUS = st.integers(1, 4)
PERCENT = st.integers(1, 100)
MEMORY = st.sampled_from((12, 120, 1200, 12_000))


def limits(
    required: Mapping[str, st.SearchStrategy[int]], optional: Mapping[str, st.SearchStrategy[int]]
) -> st.SearchStrategy[dict[str, str]]:
    amounts = st.fixed_dictionaries(dict(required), optional=dict(optional))
    return amounts.map(lambda chosen: {key: str(amount) for key, amount in chosen.items()})


CONTAINER_LIMITS = {
    "native": st.builds(
        lambda gpus, core, memory: {
            "fairgpu.io/gpu": str(gpus),
            "fairgpu.io/gpu-core": str(core * gpus),
            "fairgpu.io/gpu-memory": str(memory * gpus),
        },
        GPUS,
        PERCENT,
        MEMORY,
    ),
    "tencent": limits({"tencent.com/vcuda-core": PERCENT, "tencent.com/vcuda-memory": MEMORY}, {})
    | limits({"tencent.com/vcuda-core": GPUS.map(lambda gpus: gpus * 100)}, {"tencent.com/vcuda-memory": MEMORY}),
    "hami": limits(
        {},
        {
            "nvidia.com/gpu": GPUS,
            "nvidia.com/gpumem": MEMORY,
            "nvidia.com/gpumem-percentage": PERCENT,
            "nvidia.com/gpucores": PERCENT,
            "nvidia.com/priority": st.integers(0, 1),
        },
    ),
    "aliyun": limits({"aliyun.com/gpu-mem": MEMORY}, {"aliyun.com/gpu-count": GPUS})
    | limits({"aliyun.com/gpu-mem": MEMORY}, {"aliyun.com/gpu-core.percentage": PERCENT}),
    "volcano": limits(
        {"volcano.sh/vgpu-number": GPUS},
        {
            "volcano.sh/vgpu-memory": MEMORY,
            "volcano.sh/vgpu-memory-percentage": PERCENT,
            "volcano.sh/vgpu-cores": PERCENT,
        },
    ),
    "none": st.just({"cpu": "1"}),
}
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "fairgpu.io/core-policy": st.sampled_from(("hard", "elastic")),
        "fairgpu.io/task-priority": st.sampled_from(("0", "1")),
        "fairgpu.io/gang": st.sampled_from(("training/8", "a/1", "x.y-z/512")),
        "fairgpu.io/use-gpu-model": st.just("H100"),
        "fairgpu.io/placement": st.sampled_from(("pack", "spread", "topology")),
        "tencent.com/vcuda-core-limit": st.sampled_from(("1", "50", "100")),
        "nvidia.com/use-gputype": st.sampled_from(("A100", "A100,V100", "")),
        "nvidia.com/nouse-gpuuuid": st.just("GPU-1"),
        "hami.io/gpu-scheduler-policy": st.sampled_from(("binpack", "spread", "mutex")),
        "nvidia-gpu-scheduler/gpu.model": st.just("NVIDIA A100-PCIE-40GB"),
        "example.com/other": st.just("kept"),
    },
)
KAI = st.fixed_dictionaries(
    {},
    optional={
        "gpu-fraction": st.sampled_from(("0.5", "0.333", "1")),
        "gpu-fraction-num-devices": st.sampled_from(("1", "2")),
    },
)
CONTAINERS = st.lists(
    st.one_of(list(CONTAINER_LIMITS.values())).flatmap(
        lambda amounts: st.fixed_dictionaries(
            {"resources": st.sampled_from(({"limits": amounts}, {"limits": amounts, "requests": amounts}))},
            optional={"restartPolicy": st.just("Always")},
        )
    ),
    max_size=3,
)


def _named(containers: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{index}", **container} for index, container in enumerate(containers)]


SOUND_PODS = st.builds(
    lambda annotations, kai, containers, init: {
        "metadata": {"annotations": annotations | kai},
        "spec": {"containers": _named(containers, "main"), "initContainers": _named(init, "init")},
    },
    ANNOTATIONS,
    st.just({}) | KAI,
    CONTAINERS,
    CONTAINERS,
)
PERMISSIONS = st.frozensets(st.sampled_from(Permission))
