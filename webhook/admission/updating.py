"""What happens to a GPU pod that is updated: a manifest that is applied again brings back what was rewritten.

`kubectl apply` compares the manifest with the stored pod, finds the dialect's keys gone, and puts them back into fields
that cannot change. Where they still say what the pod was made from, they are taken out again; else they are refused.
"""

from __future__ import annotations

from typing import Any

from fairgpu import names
from fairgpu.choices import merge_choices
from fairgpu.dialects import registry
from fairgpu.faults import Fault, field_path, show
from fairgpu.pod import ContainerReading, PodReading, read_pod
from fairgpu.request import NO_CHOICES, GPURequest
from webhook.admission.containers import change_containers
from webhook.admission.json_patch import Operation, change_map, remove, set_field
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict, mapping
from webhook.settings import Webhook

REWRITTEN_FIELDS = ("schedulerName", "priorityClassName", "priority", "preemptionPolicy")
"""Fields that admission set when the pod was made, that a manifest may name otherwise, and that never change."""

NEEDING_PERMISSION = (names.CORE_POLICY, names.TASK_PRIORITY)
"""Choices that may have fallen back to the default when the pod was made."""

Requests = dict[tuple[str, str], GPURequest]


def admit_update(subject: Subject, settings: Webhook) -> Verdict:
    """The verdict on a changed pod; one that FairGPU did not admit is left as it is."""
    dialects = settings.dialects.reading
    stored = read_pod(subject.old_item, dialects, dialects=registry.NATIVE)
    if not stored.asks or mapping(subject.old_item.get("spec")).get("schedulerName") != settings.scheduler:
        return UNTOUCHED
    returning = read_pod(subject.item, dialects, dialects=registry.FOREIGN)
    faults = (*returning.faults, *_faults_of_requests(returning, requests(stored)))
    if faults:
        return Verdict(faults=faults)
    return Verdict(
        operations=tuple(_restore(subject, returning)), warnings=_warnings_of_choices(returning, subject.old_item)
    )


def requests(reading: PodReading) -> Requests:
    """What each container asks for, by its list and name."""
    return {key(container): container.request for container in reading.all_containers if container.request is not None}


def key(container: ContainerReading) -> tuple[str, str]:
    """What stays the same of a container while its pod lives."""
    return str(container.path[-2]), container.name


def _faults_of_requests(returning: PodReading, stored: Requests) -> list[Fault]:
    faults = []
    for container in returning.all_containers:
        present = stored.get(key(container))
        if container.reading.faults or container.request in (None, present):
            continue
        assert container.request is not None  # noqa: S101 - told apart from None above
        faults.append(changed_request(container, present))
    return faults


def changed_request(container: ContainerReading, present: GPURequest | None) -> Fault:
    """What is said of a request that is not the one the pod was made with."""
    return Fault(
        path=field_path(*container.path, "resources"),
        given=f"{_describe(container.request)} (in the terms of {container.dialect})",
        allowed=f"{_describe(present)}, with which the pod was made",
        instead="that, or delete the pod and create it anew",
    )


def _describe(request: GPURequest | None) -> str:
    if request is None:
        return "no GPU"
    resources = request.resources()
    return " ".join(f"{name}={amount}" for name, amount in resources.items())


def _warnings_of_choices(returning: PodReading, stored: dict[str, Any]) -> tuple[str, ...]:
    """What the dialects' annotations choose now and the pod was not made with; its author may have said both."""
    annotations = mapping(mapping(stored.get("metadata")).get("annotations"))
    chosen = NO_CHOICES
    for container in returning.all_containers:
        chosen = merge_choices(chosen, container.reading.choices)
    return tuple(
        f"{field_path('metadata', 'annotations', name)}: stays {show(annotations[name])}, with which the pod was made; "
        f"for {show(value)}, delete the pod and create it anew"
        for name, value in chosen.annotations().items()
        if name in annotations and annotations[name] != value and name not in NEEDING_PERMISSION
    )


def _restore(subject: Subject, returning: PodReading) -> list[Operation]:
    spec = mapping(subject.item.get("spec"))
    metadata = mapping(subject.item.get("metadata"))
    operations = change_map(metadata, "/metadata", "annotations", {}, returning.strip_annotations)
    for field, readings in (("containers", returning.containers), ("initContainers", returning.init)):
        # The canonical keys are there, stored; only what came back goes.
        operations += [
            operation
            for operation in change_containers(spec, field, readings, mounts=False)
            if operation["op"] == "remove"
        ]
    stored = mapping(subject.old_item.get("spec"))
    for name in REWRITTEN_FIELDS:
        if name in stored:
            operations += set_field(spec, "/spec", name, stored[name])
        elif name in spec:
            operations.append(remove(f"/spec/{name}"))
    return operations
