"""What a GPU pod must not be, whatever it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.admission import Pod, gpu_container, gpu_pod, mutate, pod

MOUNT = {"name": "data", "mountPath": "/run/fairgpu"}


@pytest.mark.parametrize(
    ("item", "path", "instead"),
    [
        (gpu_pod(os={"name": "windows"}), "spec.os.name", "linux"),
        (gpu_pod(nodeSelector={"kubernetes.io/os": "Windows"}), "spec.nodeSelector[kubernetes.io/os]", "linux"),
        (gpu_pod(nodeName="n1"), "spec.nodeName", "spec.nodeSelector"),
        (pod(gpu_container(), gpu_container("fairgpu-sidecar")), "spec.containers[1]", "name"),
        (pod(gpu_container(volumeMounts=[MOUNT])), "spec.containers[0].volumeMounts[0].mountPath", "another path"),
        (
            pod(gpu_container(volumeMounts=[{**MOUNT, "mountPath": "/run//fairgpu/"}])),
            "spec.containers[0].volumeMounts[0].mountPath",
            "another path",
        ),
    ],
)
def test_it_is_refused_with_the_field_and_what_to_write(item: Pod, path: str, instead: str) -> None:
    refused = mutate(item)
    assert not refused.allowed
    assert path in refused.message
    assert instead in refused.message


@pytest.mark.parametrize(
    "fields",
    [
        {"os": {"name": "linux"}},
        {"nodeSelector": {"kubernetes.io/os": "linux"}},
        {"nodeName": ""},
        {"volumes": [{"name": "data", "emptyDir": {}}]},
    ],
)
def test_what_is_common_is_let_in(fields: dict[str, Any]) -> None:
    assert mutate(gpu_pod(**fields)).allowed


def test_a_mount_below_ours_is_let_in() -> None:
    mounts = [{"name": "data", "mountPath": "/run/fairgpu-data"}, {"name": "data", "mountPath": "/run"}]
    assert mutate(pod(gpu_container(volumeMounts=mounts))).allowed
