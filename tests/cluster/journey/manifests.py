"""Pods as users of each project write them."""

from __future__ import annotations

from typing import Any

from fairgpu.quantity import parse_count

Manifest = dict[str, Any]


def pod(name: str, limits: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A pod of one container."""
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": limits}}
    metadata: Manifest = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def limits_of(item: Manifest) -> dict[str, int]:
    """The limits of a pod's first container, without the prefix of FairGPU's resources.

    The API server writes quantities in its own way: 3000 comes back as 3k.
    """
    limits = item["spec"]["containers"][0]["resources"]["limits"]
    return {key.removeprefix("fairgpu.io/"): parse_count(value) for key, value in limits.items()}


EACH_DIALECT = {
    "native": (
        pod("native", {"fairgpu.io/gpu": 2, "fairgpu.io/gpu-core": 60, "fairgpu.io/gpu-memory": 8192}),
        {"gpu": 2, "gpu-core": 60, "gpu-memory": 8192},
    ),
    "tencent": (
        pod("tencent", {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 16}),
        {"gpu": 1, "gpu-core": 30, "gpu-memory": 4096},
    ),
    "hami": (
        pod("hami", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}),
        {"gpu": 2, "gpu-core": 60, "gpu-memory": 6000},
    ),
    "aliyun": (
        pod("aliyun", {"aliyun.com/gpu-mem": 3}),
        {"gpu": 1, "gpu-core": 0, "gpu-memory": 3072},
    ),
    "kai": (
        pod("kai", {}, {"gpu-fraction": "0.5"}),
        {"gpu": 1, "gpu-core": 50, "gpu-memory-percentage": 50},
    ),
    "volcano": (
        pod("volcano", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50}),
        {"gpu": 1, "gpu-core": 50, "gpu-memory": 3000},
    ),
    "model": (
        pod("model", {"nvidia.com/gpu": 1}, {"nvidia-gpu-scheduler/gpu.model": "A100"}),
        {"gpu": 1, "gpu-core": 100, "gpu-memory-percentage": 100},
    ),
}
"""A pod in each dialect, and the resources that it gets."""
