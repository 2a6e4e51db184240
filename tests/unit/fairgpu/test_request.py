"""The canonical request as resources."""

from __future__ import annotations

from fairgpu.request import GPURequest


def test_a_request_is_written_as_the_canonical_resources() -> None:
    assert GPURequest(2, 60, memory_mib=8192).resources() == {
        "fairgpu.io/gpu": "2",
        "fairgpu.io/gpu-core": "60",
        "fairgpu.io/gpu-memory": "8192",
    }
    assert GPURequest(1, 0, memory_percentage=25).resources() == {
        "fairgpu.io/gpu": "1",
        "fairgpu.io/gpu-core": "0",
        "fairgpu.io/gpu-memory-percentage": "25",
    }


def test_only_core_0_is_best_effort() -> None:
    assert GPURequest(1, 0, memory_mib=1024).best_effort
    assert not GPURequest(1, 1, memory_mib=1024).best_effort
