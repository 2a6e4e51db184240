"""What happens to a GPU pod that is created: read, checked, rewritten, given its class and its reporter."""

from __future__ import annotations

from typing import Any, Final

from fairgpu import names
from fairgpu.dialects import registry
from fairgpu.permissions import Granted
from fairgpu.pod import PodReading, read_pod
from fairgpu.pod_faults import oversized_pod
from fairgpu.request import NO_CHOICES
from webhook.admission.budget import Asked, Standing, stand
from webhook.admission.checks import check_pod
from webhook.admission.containers import change_containers
from webhook.admission.cost import deadline_seconds
from webhook.admission.creator import creator
from webhook.admission.exposure import exposures
from webhook.admission.json_patch import Operation, add, change_map, remove_elements, set_field
from webhook.admission.knowledge import Knowledge
from webhook.admission.priority import earned_class, keeps_own, set_class
from webhook.admission.sidecar import place_sidecar, place_volumes, reporter, strange_volumes
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict, indexes_named, mapping
from webhook.settings import Webhook

NATIVE_NAMES: Final = frozenset(dialect.name for dialect in registry.NATIVE.dialects)
LABELS: Final = {names.POD_LABEL: names.POD_LABEL_VALUE}
ALL_NAMES: Final = frozenset(dialect.name for dialect in registry.DIALECTS.dialects)


def admit_new(subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """The verdict on a pod that is created; one without a GPU is left as it is.

    Args:
        subject: the request.
        knowledge: what is known of budgets, namespaces and classes.
        settings: the admin's.
        now: monotonic seconds.
    """
    pod = subject.item
    reading = read_pod(pod, settings.dialects.reading)
    if not (reading.speaks or reading.faults):
        return UNTOUCHED
    if not reading.asks and not reading.faults:
        return Verdict(operations=tuple(_strip(pod, reading)), warnings=reading.warnings)
    faults, granted = check_pod(pod, reading, knowledge.permissions_of(subject.namespace), knowledge, settings)
    states = settings.states
    asked = Asked(reading, deadline_seconds(mapping(pod.get("spec"))))
    standing = stand(subject.namespace, knowledge.states, asked, states.when_unknown, states.stale_after_seconds, now)
    faults = (*oversized_pod(subject.size), *faults, *standing.faults)
    if faults:
        return Verdict(faults=faults)
    return Verdict(
        operations=tuple(_rewrite(subject, reading, granted, standing, knowledge, settings)),
        warnings=(
            *reading.warnings,
            *granted.warnings,
            *_replacements(pod, settings),
            *exposures(pod, reading),
            *standing.warnings,
        ),
        audit=_audit(standing),
    )


def _rewrite(
    subject: Subject,
    reading: PodReading,
    granted: Granted,
    standing: Standing,
    knowledge: Knowledge,
    settings: Webhook,
) -> list[Operation]:
    pod = subject.item
    spec = mapping(pod.get("spec"))
    priorities = settings.priorities
    operations = _annotate(subject, reading, granted, standing)
    operations += _label(pod)
    operations += _hold(pod, holds=settings.end_proof == "finalizer")
    operations += change_containers(spec, "containers", reading.containers)
    operations += change_containers(spec, "initContainers", reading.init)
    ours = reporter(settings.sidecar, knowledge.timekeeper_ca)
    operations += place_sidecar(spec, ours.container)
    operations += place_volumes(spec, ours.volumes)
    operations += set_field(spec, "/spec", "schedulerName", settings.scheduler)
    if not keeps_own(spec, priorities, knowledge):
        operations += set_class(spec, earned_class(priorities, knowledge, over=standing.over))
    operations += _gate(spec, held=standing.held)
    return operations


def _annotate(subject: Subject, reading: PodReading, granted: Granted, standing: Standing) -> list[Operation]:
    pod = subject.item
    metadata = pod.get("metadata")
    given = mapping(mapping(metadata).get("annotations"))
    wanted = {
        names.SOURCE_DIALECT: _source(reading, given.get(names.SOURCE_DIALECT)),
        names.BUDGET_STATE: standing.state,
        names.CREATED_BY: creator(subject),
    }
    if granted.choices is not NO_CHOICES:
        # What the author wrote in our own terms stays as it was written, so that applying it again changes nothing.
        wanted |= {key: value for key, value in granted.choices.annotations().items() if key not in given}
    if not isinstance(metadata, dict):
        return [add("/metadata", {"annotations": wanted, "labels": LABELS})]
    return change_map(
        metadata, "/metadata", "annotations", wanted, (*reading.strip_annotations, names.ALLOCATION, names.EVICTION_AT)
    )


def _label(pod: dict[str, Any]) -> list[Operation]:
    """The mark by which rules for pods that exist select GPU pods."""
    metadata = pod.get("metadata")
    return change_map(metadata, "/metadata", "labels", LABELS, ()) if isinstance(metadata, dict) else []


def _hold(pod: dict[str, Any], *, holds: bool) -> list[Operation]:
    """The finalizer that keeps the pod until its end is in the ledger: once where it holds, else not at all."""
    given = mapping(pod.get("metadata")).get("finalizers")
    if not isinstance(given, list):
        return [add("/metadata/finalizers", [names.METER_FINALIZER])] if holds else []
    ours = [index for index, name in enumerate(given) if name == names.METER_FINALIZER]
    if holds and not ours:
        return [add("/metadata/finalizers/-", names.METER_FINALIZER)]
    return remove_elements("/metadata/finalizers", ours[1:] if holds else ours)


def _source(reading: PodReading, given: Any) -> str:
    """The dialects that the pod came in; one that has been through here before speaks natively and keeps its mark."""
    spoken = ",".join(reading.dialects)
    if NATIVE_NAMES.issuperset(reading.dialects) and isinstance(given, str) and ALL_NAMES.issuperset(given.split(",")):
        return given
    return spoken


def _gate(spec: dict[str, Any], *, held: bool) -> list[Operation]:
    given = spec.get("schedulingGates")
    path = "/spec/schedulingGates"
    gate = {"name": names.BUDGET_GATE}
    if not isinstance(given, list):
        return [add(path, [gate])] if held else []
    ours = indexes_named(given, (names.BUDGET_GATE,))
    if held:
        return [] if ours else [add(f"{path}/-", gate)]
    return remove_elements(path, ours)


def _strip(pod: dict[str, Any], reading: PodReading) -> list[Operation]:
    """Takes out keys that amount to nothing, such as `nvidia.com/gpu: 0`."""
    spec = mapping(pod.get("spec"))
    metadata = mapping(pod.get("metadata"))
    return [
        *change_map(metadata, "/metadata", "annotations", {}, reading.strip_annotations),
        *change_containers(spec, "containers", reading.containers, mounts=False),
        *change_containers(spec, "initContainers", reading.init, mounts=False),
    ]


def _replacements(pod: dict[str, Any], settings: Webhook) -> tuple[str, ...]:
    """What the author wrote and does not get."""
    spec = mapping(pod.get("spec"))
    lines = [
        f"spec.volumes[{index}]: the name is of a volume of FairGPU's own, which takes its place, mounts included"
        for index in strange_volumes(spec)
    ]
    scheduler = spec.get("schedulerName")
    if isinstance(scheduler, str) and scheduler not in ("", "default-scheduler", settings.scheduler):
        lines.append(f"spec.schedulerName: GPU pods are placed by {settings.scheduler}, not by {scheduler[:63]}")
    return tuple(lines)


def _audit(standing: Standing) -> dict[str, str]:
    if standing.stale_seconds is None:
        return {}
    return {"stale-budget-state": f"{standing.stale_seconds:.0f} seconds old"}
