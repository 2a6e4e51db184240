"""Admits an update of a GPU pod: a manifest that is applied again restores keys that admission had rewritten.

`kubectl apply` compares the manifest with the stored pod, finds that the dialect's keys are missing, and puts them back
into fields that cannot change. Admission removes the restored keys if they still state the pod's own request, and
refuses the update if they state another request. Admission puts back those of its own tolerations that the manifest's
list lacks, and the values of REWRITTEN_FIELDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairgpu import names
from fairgpu.choices import merge_choices
from fairgpu.dialects import registry
from fairgpu.faults import Fault, field_path, show
from fairgpu.json_values import list_of, mapping
from fairgpu.pod import ContainerReading, PodReading, read_pod
from fairgpu.request import NO_CHOICES, GPURequest
from webhook.admission.containers import change_containers
from webhook.admission.json_patch import Operation, add, change_map, remove, set_field
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict
from webhook.settings import Toleration, Webhook

REWRITTEN_FIELDS = ("schedulerName", "priorityClassName", "priority", "preemptionPolicy")
"""The fields that admission sets at creation and that never change; a manifest that is applied again may give other
values."""

NEEDING_PERMISSION = (names.CORE_POLICY, names.TASK_PRIORITY)
"""The annotations of choices that admission replaced with the default at creation, if the namespace lacked permission.
"""

Requests = dict[tuple[str, str], GPURequest]


def admit_update(subject: Subject, settings: Webhook) -> Verdict:
    """Returns the mutating webhook's verdict on an updated pod; a pod that FairGPU did not admit stays as it is.

    Args:
        subject: the request of the admission review, with the pod before and after the update.
        settings: the webhook's settings.
    """
    dialects = settings.dialects.reading
    stored = read_pod(subject.old_item, dialects, dialects=registry.NATIVE)
    if not stored.requests_gpu or mapping(subject.old_item.get("spec")).get("schedulerName") != settings.scheduler:
        return UNTOUCHED
    returning = read_pod(subject.item, dialects, dialects=registry.FOREIGN)
    faults = (*returning.faults, *_faults_of_requests(returning, requests(stored)))
    if faults:
        return Verdict(faults=faults)
    return Verdict(
        operations=tuple(_restore(subject, returning, settings.tolerations)),
        warnings=_warnings_of_choices(returning, subject.old_item),
    )


def requests(reading: PodReading) -> Requests:
    """Returns the GPU requests of a pod's containers, keyed by a container's list and name, as `key` returns them."""
    return {key(container): container.request for container in reading.all_containers if container.request is not None}


def key(container: ContainerReading) -> tuple[str, str]:
    """Returns the key of a container in its pod: its list and its name, such as `("initContainers", "prepare")`."""
    return str(container.path[-2]), container.name


def _faults_of_requests(returning: PodReading, stored: Requests) -> list[Fault]:
    faults = []
    for container in returning.all_containers:
        present = stored.get(key(container))
        if container.reading.faults or container.request in (None, present):
            continue
        assert container.request is not None  # noqa: S101 - None is excluded above
        faults.append(changed_request(container, present))
    return faults


def changed_request(container: ContainerReading, present: GPURequest | None) -> Fault:
    """Returns the fault of an updated container whose GPU request is not that of the pod's creation.

    Args:
        container: the container after the update.
        present: the container's request before the update; None if it had none.
    """
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
    """Returns a warning for each choice in a dialect's annotations that is not the choice at the pod's creation.

    Admission had removed these annotations, and a manifest that is applied again restores them. The choices of the
    stored pod stay. A choice in NEEDING_PERMISSION, or one that the stored pod lacks, gives no warning.

    Args:
        returning: the reading of the updated pod in the dialects of other projects.
        stored: the pod before the update, as JSON.
    """
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


def _restore(subject: Subject, returning: PodReading, tolerations: tuple[Toleration, ...]) -> list[Operation]:
    spec = mapping(subject.item.get("spec"))
    metadata = mapping(subject.item.get("metadata"))
    operations = change_map(metadata, "/metadata", "annotations", {}, returning.strip_annotations)
    for field, readings in (("containers", returning.containers), ("initContainers", returning.init)):
        # The canonical keys are stored already; only the keys that came back are removed.
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
    return operations + restore_tolerations(spec, stored, [each.written for each in tolerations])


def restore_tolerations(
    spec: dict[str, Any], stored: dict[str, Any], added: Sequence[dict[str, str]]
) -> list[Operation]:
    """Returns the JSON Patch operations that put back the tolerations which an update takes from a pod.

    A manifest with tolerations replaces the whole list of the pod when it is applied again, and the tolerations that
    admission had added are then missing. The API server refuses an update that removes a toleration.

    Args:
        spec: the pod's spec after the update, as JSON.
        stored: the spec before the update. A toleration gets its place in this list back.
        added: the tolerations that admission adds to new pods. No others are put back.
    """
    given, before = list_of(spec.get("tolerations")), list_of(stored.get("tolerations"))
    lost = sorted({before.index(each) for each in added if each in before and each not in given})
    if not lost:
        return []
    path = "/spec/tolerations"
    if not given:
        return [add(path, [before[index] for index in lost])]
    return [add(f"{path}/{min(index, len(given) + number)}", before[index]) for number, index in enumerate(lost)]
