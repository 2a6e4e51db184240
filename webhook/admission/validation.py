"""The validating webhook, which runs after all mutations: it refuses faulty pods and subresources of pods.

It also warns of faulty pod templates, or refuses them, as the setting `templates` says.
"""

from __future__ import annotations

from fairgpu.faults import MAX_EXPLAINED, Fault, field_path
from fairgpu.json_values import mapping
from fairgpu.pod import PodReading, read_pod
from fairgpu.pod_faults import oversized_debuggers
from webhook.admission.checks import check_pod
from webhook.admission.collectives import Sign, collective_warnings
from webhook.admission.creation import NATIVE_NAMES
from webhook.admission.exposure import exposures
from webhook.admission.knowledge import Knowledge
from webhook.admission.templates import PodTemplate, pod_templates
from webhook.admission.updating import changed_request, key, requests
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict
from webhook.settings import Webhook


def validate(subject: Subject, knowledge: Knowledge, settings: Webhook) -> Verdict:
    """Returns the validating webhook's verdict on an object as it would be stored.

    Args:
        subject: the request of the admission review: a pod, a subresource of a pod, or a workload.
        knowledge: the permissions of namespaces and the priority classes, as last observed.
        settings: the webhook's settings.
    """
    if subject.kind == "Pod":
        if subject.sub_resource == "ephemeralcontainers":
            return _validate_ephemeral(subject, settings)
        if subject.operation == "CREATE" and not subject.sub_resource:
            return _validate_new(subject, knowledge, settings)
        if subject.operation == "UPDATE" and subject.sub_resource in ("", "resize"):
            return _validate_update(subject, settings)
        return UNTOUCHED
    if subject.sub_resource or subject.operation not in ("CREATE", "UPDATE"):
        return UNTOUCHED
    return _validate_templates(subject, knowledge, settings)


def _validate_new(subject: Subject, knowledge: Knowledge, settings: Webhook) -> Verdict:
    reading = read_pod(subject.item, settings.dialects.reading)
    if not (reading.has_gpu_keys or reading.faults):
        return UNTOUCHED
    permissions = knowledge.permissions_of(subject.namespace)
    faults, _ = check_pod(subject.item, reading, permissions, knowledge, settings)
    return Verdict(faults=(*faults, *_added_later(reading)))


def _added_later(reading: PodReading) -> list[Fault]:
    return [
        Fault(
            path=field_path(*container.path, "resources"),
            given=f"keys of {container.dialect} that were not there when FairGPU read the pod",
            allowed="FairGPU's own resources",
            instead="the GPU in the manifest itself; the webhook that adds it has to run before FairGPU's",
        )
        for container in reading.all_containers
        if container.dialect not in NATIVE_NAMES and not container.reading.faults
    ]


def _validate_update(subject: Subject, settings: Webhook) -> Verdict:
    """Returns the verdict on an updated pod: the faults of the containers whose GPU keys the update changes.

    Other faults do not count, so that a pod that was admitted under other settings stays updatable. A pod that
    requested no GPU before the update has no faults.
    """
    dialects = settings.dialects.reading
    before = read_pod(subject.old_item, dialects)
    after = read_pod(subject.item, dialects)
    stored = requests(before)
    if not stored:
        return UNTOUCHED
    known = {key(container): container.reading for container in before.all_containers}
    faults: list[Fault] = []
    for container in after.all_containers:
        before_it = known.get(key(container))
        if before_it is not None and before_it.says_the_same(container.reading):
            continue
        faults += container.reading.faults or ()
        if container.request is not None and container.request != stored.get(key(container)):
            faults.append(changed_request(container, stored.get(key(container))))
    return Verdict(faults=tuple(faults))


def _validate_ephemeral(subject: Subject, settings: Webhook) -> Verdict:
    spec = mapping(subject.item.get("spec"))
    reading = read_pod({"spec": {"ephemeralContainers": spec.get("ephemeralContainers")}}, settings.dialects.reading)
    return Verdict(faults=(*reading.faults, *oversized_debuggers(spec)))


def _validate_templates(subject: Subject, knowledge: Knowledge, settings: Webhook) -> Verdict:
    if settings.templates == "ignore":
        return UNTOUCHED
    dialects = settings.dialects.reading
    read_templates = [
        (each, read_pod(each.template, dialects, root=each.path)) for each in pod_templates(subject.kind, subject.item)
    ]
    together = sum(each.together for each, reading in read_templates if reading.requests_gpu)
    permissions = knowledge.permissions_of(subject.namespace)
    faults: list[Fault] = []
    warnings: list[str] = []
    for each, reading in read_templates:
        if not (reading.has_gpu_keys or reading.faults):
            continue
        its_faults, granted = check_pod(each.template, reading, permissions, knowledge, settings, each.path)
        faults += its_faults
        warnings += (*reading.warnings, *granted.warnings, *exposures(each.template, reading, each.path))
        sign = _one_of_several(subject.kind, each, together)
        warnings += collective_warnings(each.template, reading, sign)
    if settings.templates == "refuse":
        return Verdict(faults=tuple(faults), warnings=tuple(warnings))
    refusals = (f"its pods will be refused: {fault}" for fault in faults[:MAX_EXPLAINED])
    return Verdict(warnings=(*refusals, *warnings))


def _one_of_several(kind: str, template: PodTemplate, together: int) -> Sign | None:
    """Returns the sign, for warnings, that a template's pods work together with other pods; None if they do not.

    Args:
        kind: the workload's kind.
        template: the pod template, whose field path the sign names.
        together: the number of pods of the workload that have GPUs and work together. There is no sign for 0 or 1.
    """
    if together <= 1:
        return None
    return Sign(field_path(*template.path), f"the {kind} makes {together} pods with GPUs that work together")
