"""Validation refuses or warns after every mutating webhook has changed the object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.admission import admitted, container, gpu_container, gpu_pod, pod, validate
from webhook.settings import Dialects, Webhook


def kind(name: str) -> dict[str, str]:
    return {"group": "", "version": "v1", "kind": name}


def test_a_pod_that_mutation_has_seen_is_valid() -> None:
    assert validate(admitted(gpu_pod())).allowed
    assert validate(admitted(pod(container(limits={"nvidia.com/gpu": "2"})))).allowed


def test_a_request_that_came_in_after_mutation_is_refused() -> None:
    stored = admitted(gpu_pod())
    stored["spec"]["containers"].append(container("late", {"nvidia.com/gpu": "1"}))
    refused = validate(stored)
    assert not refused.allowed
    assert "spec.containers[1].resources" in refused.message
    assert "hami" in refused.message


def test_all_faults_come_at_once_numbered() -> None:
    item = pod(gpu_container(core="150"), gpu_container("other", core="0.5"), priorityClassName="urgent", nodeName="n1")
    refused = validate(item)
    assert [line[:3] for line in refused.message.splitlines()] == ["1. ", "2. ", "3. ", "4. "]
    for path in ("spec.containers[0]", "spec.containers[1]", "spec.priorityClassName", "spec.nodeName"):
        assert path in refused.message


def test_a_gpu_in_an_ephemeral_container_is_refused() -> None:
    stored = admitted(gpu_pod())
    stored["spec"]["ephemeralContainers"] = [gpu_container("debug")]
    refused = validate(stored, operation="UPDATE", subResource="ephemeralcontainers", oldObject=admitted(gpu_pod()))
    assert not refused.allowed
    assert "spec.ephemeralContainers[0].resources" in refused.message


def test_an_ephemeral_container_without_a_gpu_is_admitted() -> None:
    stored = admitted(gpu_pod())
    stored["spec"]["ephemeralContainers"] = [container("debug")]
    assert validate(stored, operation="UPDATE", subResource="ephemeralcontainers", oldObject={}).allowed


def template(inner: Any) -> Any:
    return {"metadata": {"labels": {"app": "x"}}, "spec": inner["spec"]}


WORKLOADS = [
    ("Deployment", lambda inner: {"spec": {"template": template(inner)}}, "spec.template"),
    ("StatefulSet", lambda inner: {"spec": {"template": template(inner)}}, "spec.template"),
    ("DaemonSet", lambda inner: {"spec": {"template": template(inner)}}, "spec.template"),
    ("ReplicaSet", lambda inner: {"spec": {"template": template(inner)}}, "spec.template"),
    ("Job", lambda inner: {"spec": {"template": template(inner)}}, "spec.template"),
    (
        "CronJob",
        lambda inner: {"spec": {"jobTemplate": {"spec": {"template": template(inner)}}}},
        "spec.jobTemplate.spec.template",
    ),
]


@pytest.mark.parametrize(("name", "make", "path"), WORKLOADS)
def test_a_faulty_template_is_warned_of_with_the_field_in_the_workload(name: str, make: Any, path: str) -> None:
    answered = validate(make(pod(gpu_container(core="150"))), kind=kind(name))
    assert answered.allowed
    [warning] = answered.warnings
    assert f"{path}.spec.containers[0].resources.limits[fairgpu.io/gpu-core]" in warning


@pytest.mark.parametrize(("name", "make", "path"), WORKLOADS)
def test_a_sound_template_passes_in_silence(name: str, make: Any, path: str) -> None:
    answered = validate(make(gpu_pod()), kind=kind(name))
    assert answered.allowed
    assert answered.warnings == [], path


def test_faulty_templates_can_be_refused_or_ignored() -> None:
    item = {"spec": {"template": template(pod(gpu_container(core="150")))}}
    assert not validate(item, settings=Webhook(templates="refuse"), kind=kind("Job")).allowed
    ignored = validate(item, settings=Webhook(templates="ignore"), kind=kind("Job"))
    assert ignored.allowed
    assert ignored.warnings == []


def test_other_kinds_and_shapes_are_admitted() -> None:
    for item in ({}, {"spec": None}, {"spec": {"template": []}}):
        assert validate(item, kind=kind("Deployment")).allowed
        assert validate(item, kind=kind("Service")).allowed


def test_best_effort_is_allowed_unless_the_admin_forbids_it() -> None:
    item = pod(container(limits={"fairgpu.io/gpu-core": "0", "fairgpu.io/gpu-memory": "1024"}))
    assert validate(item).allowed
    refused = validate(item, settings=Webhook(dialects=Dialects(best_effort="refuse")))
    assert not refused.allowed
    assert "best effort" in refused.message
