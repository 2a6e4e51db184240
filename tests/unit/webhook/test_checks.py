"""The checks that every GPU pod must pass, whatever it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.admission import Pod, container, gpu_container, gpu_pod, mutate, pod, validate
from webhook.settings import Dialects, Webhook

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
def test_a_common_pod_is_admitted(fields: dict[str, Any]) -> None:
    assert mutate(gpu_pod(**fields)).allowed


def test_a_mount_below_ours_is_admitted() -> None:
    mounts = [{"name": "data", "mountPath": "/run/fairgpu-data"}, {"name": "data", "mountPath": "/run"}]
    assert mutate(pod(gpu_container(volumeMounts=mounts))).allowed


def test_a_pod_with_a_gpu_of_fairgpu_and_one_of_another_plugin_is_refused_as_no_node_offers_both() -> None:
    settings = Webhook(dialects=Dialects(hami_plain_gpu="leave"))
    shared = container("shared", limits={"nvidia.com/gpumem": "3000"})
    for amounts in ({"limits": {"nvidia.com/gpu": "1"}}, {"limits": {"nvidia.com/gpu": 1}}):
        refused = mutate(pod(shared, container("whole", resources=amounts)), settings=settings)
        assert not refused.allowed
        assert "spec.containers[1].resources.limits[nvidia.com/gpu]: given" in refused.message
        assert "a pod of its own for this container" in refused.message
    item = pod(shared, initContainers=[container("first", limits={"nvidia.com/gpu": "1"})])
    assert "spec.initContainers[0].resources" in mutate(item, settings=settings).message
    assert mutate(pod(shared, container("none", limits={"nvidia.com/gpu": "0"})), settings=settings).allowed
    assert mutate(pod(container("whole", limits={"nvidia.com/gpu": "1"})), settings=settings).patch == []
    none_of_ours = pod(container("none", limits={"fairgpu.io/gpu": "0"}), container("whole", {"nvidia.com/gpu": "1"}))
    assert validate(none_of_ours, settings=settings).allowed
    assert mutate(pod(shared, container("whole", limits={"nvidia.com/gpu": "1"}))).allowed


def test_a_runtime_that_the_admin_names_may_run_pieces_of_gpus() -> None:
    settings = Webhook(runtime_classes=("nvidia", "crun-gpu"))
    assert mutate(gpu_pod(runtimeClassName="crun-gpu"), settings=settings).allowed
    refused = mutate(gpu_pod(runtimeClassName="gvisor"), settings=settings)
    assert 'spec.runtimeClassName: given "gvisor"; allowed: none, or one of nvidia, crun-gpu' in refused.message


def test_one_piece_among_whole_gpus_is_refused_in_a_runtime_with_a_kernel_of_its_own() -> None:
    whole = container("trainer", {"nvidia.com/gpu": "1"})
    assert not mutate(pod(whole, gpu_container("helper"), runtimeClassName="kata")).allowed
    assert mutate(pod(whole, container("helper"), runtimeClassName="kata")).allowed


def test_a_template_of_such_a_pod_is_warned_of() -> None:
    template = {"metadata": {}, "spec": gpu_pod(runtimeClassName="kata")["spec"]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    kind = {"group": "batch", "version": "v1", "kind": "Job"}
    (warning,) = validate(job, kind=kind, resource={**kind, "resource": "jobs"}).warnings
    assert "spec.template.spec.runtimeClassName" in warning
