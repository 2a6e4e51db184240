"""The validating webhook, after all mutations: it refuses pods, their subresources, and pod templates."""

from __future__ import annotations

from fairgpu.faults import MAX_EXPLAINED, Fault, field_path
from fairgpu.pod import PodReading, read_pod
from fairgpu.pod_faults import oversized_debuggers
from webhook.admission.checks import check_pod
from webhook.admission.creation import NATIVE_NAMES
from webhook.admission.exposure import exposures
from webhook.admission.knowledge import Knowledge
from webhook.admission.templates import pod_template
from webhook.admission.updating import changed_request, key, requests
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict
from webhook.settings import Webhook


def validate(subject: Subject, knowledge: Knowledge, settings: Webhook) -> Verdict:
    """Returns the verdict on an object as it would be stored."""
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
    return _validate_template(subject, knowledge, settings)


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
    """Checks only what an update changes: a pod that was admitted under other settings must stay updatable."""
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
    spec = subject.item.get("spec")
    debugged = spec.get("ephemeralContainers") if isinstance(spec, dict) else None
    reading = read_pod({"spec": {"ephemeralContainers": debugged}}, settings.dialects.reading)
    return Verdict(faults=(*reading.faults, *oversized_debuggers(debugged)))


def _validate_template(subject: Subject, knowledge: Knowledge, settings: Webhook) -> Verdict:
    found = pod_template(subject.kind, subject.item)
    if found is None or settings.templates == "ignore":
        return UNTOUCHED
    path, template = found
    reading = read_pod(template, settings.dialects.reading, root=path)
    if not (reading.has_gpu_keys or reading.faults):
        return UNTOUCHED
    permissions = knowledge.permissions_of(subject.namespace)
    faults, granted = check_pod(template, reading, permissions, knowledge, settings, path)
    warnings = (*reading.warnings, *granted.warnings, *exposures(template, reading, path))
    if settings.templates == "refuse":
        return Verdict(faults=faults, warnings=warnings)
    refusals = (f"its pods will be refused: {fault}" for fault in faults[:MAX_EXPLAINED])
    return Verdict(warnings=(*refusals, *warnings))
