"""Admits a new GPU pod: reads, checks and rewrites it, and adds its priority class and its sidecar."""

from __future__ import annotations

import re
from typing import Any, Final

from fairgpu import names
from fairgpu.dialects import registry
from fairgpu.faults import field_path
from fairgpu.json_values import mapping
from fairgpu.permissions import Granted
from fairgpu.pod import PodReading, read_pod
from fairgpu.pod_faults import oversized_pod
from fairgpu.request import NO_CHOICES
from webhook.admission.budget import BudgetRequest, BudgetVerdict, evaluate_budget
from webhook.admission.checks import check_pod
from webhook.admission.collectives import collective_warnings
from webhook.admission.containers import change_containers
from webhook.admission.cost import deadline_seconds
from webhook.admission.exposure import exposures
from webhook.admission.json_patch import Operation, add, change_map, remove_elements, set_field
from webhook.admission.knowledge import Knowledge
from webhook.admission.priority import earned_class, keeps_own, set_class
from webhook.admission.sidecar import (
    place_sidecar,
    place_volumes,
    pod_level_resources,
    sidecar_parts,
    strange_volumes,
)
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict, indexes_named, objects
from webhook.settings import Toleration, Webhook

NATIVE_NAMES: Final = frozenset(dialect.name for dialect in registry.NATIVE.dialects)
LABELS: Final = {names.POD_LABEL: names.POD_LABEL_VALUE}
ALL_NAMES: Final = frozenset(dialect.name for dialect in registry.DIALECTS.dialects)

_SYSTEM_PREFIX: Final = "system:"
_ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_TEMPLATE_HASH: Final = "pod-template-hash"
_OWNER_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_OWNER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,252}")
"""The form of an owner's name that may go into bills; the API server only asks that it is not empty."""


def admit_new(subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """Returns the verdict on a new pod in the mode `share`; a pod without GPU keys stays as it is.

    A pod whose GPU keys request no GPU, such as `nvidia.com/gpu: 0`, only loses these keys.

    Args:
        subject: the request of the admission review, with the pod.
        knowledge: budgets, permissions of namespaces and priority classes as last observed.
        settings: the webhook's settings.
        now: the present time, in seconds of the monotonic clock.
    """
    pod = subject.item
    reading = read_pod(pod, settings.dialects.reading)
    if not (reading.has_gpu_keys or reading.faults):
        return UNTOUCHED
    if not reading.requests_gpu and not reading.faults:
        warnings = (*reading.warnings, *_stripped_of_zeros(pod, reading))
        return Verdict(operations=tuple(_strip(pod, reading)), warnings=warnings)
    faults, granted = check_pod(pod, reading, knowledge.permissions_of(subject.namespace), knowledge, settings)
    states = settings.states
    request = BudgetRequest(reading, deadline_seconds(mapping(pod.get("spec"))))
    budget = evaluate_budget(
        subject.namespace, knowledge.states, request, states.when_unknown, states.stale_after_seconds, now
    )
    faults = (*oversized_pod(subject.size, mapping(pod.get("spec"))), *faults, *budget.faults)
    if faults:
        return Verdict(faults=faults)
    return Verdict(
        operations=tuple(_rewrite(subject, reading, granted, budget, knowledge, settings)),
        warnings=(
            *reading.warnings,
            *granted.warnings,
            *_replacements(pod, settings),
            *exposures(pod, reading),
            *collective_warnings(pod, reading),
            *budget.warnings,
        ),
        audit=audit_of(budget),
    )


def _rewrite(
    subject: Subject,
    reading: PodReading,
    granted: Granted,
    budget: BudgetVerdict,
    knowledge: Knowledge,
    settings: Webhook,
) -> list[Operation]:
    pod = subject.item
    spec = mapping(pod.get("spec"))
    priorities = settings.priorities
    operations = _annotate(subject, reading, granted, budget)
    operations += label(pod)
    operations += keep_until_metered(pod, holds=settings.end_proof == "finalizer")
    operations += change_containers(spec, "containers", reading.containers)
    operations += change_containers(spec, "initContainers", reading.init)
    parts = sidecar_parts(settings.sidecar, knowledge.timekeeper_ca, pod_level_resources(spec))
    operations += place_sidecar(spec, parts.container)
    operations += place_volumes(spec, parts.volumes)
    operations += set_field(spec, "/spec", "schedulerName", settings.scheduler)
    if not keeps_own(spec, priorities, knowledge):
        operations += set_class(spec, earned_class(priorities, knowledge, over=budget.over))
    operations += tolerate(spec, settings.tolerations)
    operations += gate(spec, held=budget.held)
    return operations


def tolerate(spec: dict[str, Any], wanted: tuple[Toleration, ...]) -> list[Operation]:
    """Returns the JSON Patch operations that add each wanted toleration that the pod does not have.

    The taints that keep other pods away from GPU nodes would keep GPU pods away, too. The API server's admission plugin
    for this, ExtendedResourceToleration, is off by default and tolerates the name of the resource alone
    (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration).
    """
    if not wanted:
        return []
    given = spec.get("tolerations")
    written = [each.written for each in wanted]
    if not isinstance(given, list):
        return [add("/spec/tolerations", written)]
    return [add("/spec/tolerations/-", each) for each in written if each not in given]


def _annotate(subject: Subject, reading: PodReading, granted: Granted, budget: BudgetVerdict) -> list[Operation]:
    pod = subject.item
    metadata = pod.get("metadata")
    given = mapping(mapping(metadata).get("annotations"))
    wanted = {
        names.SOURCE_DIALECT: _source(reading, given.get(names.SOURCE_DIALECT)),
        names.BUDGET_STATE: budget.state,
        names.CREATED_BY: creator(subject),
    }
    if granted.choices is not NO_CHOICES:
        # The author's own fairgpu.io annotations stay as written, so that a second `kubectl apply` changes nothing.
        wanted |= {key: value for key, value in granted.choices.annotations().items() if key not in given}
    if not isinstance(metadata, dict):
        return [add("/metadata", {"annotations": wanted, "labels": LABELS})]
    return change_map(metadata, "/metadata", "annotations", wanted, (*reading.strip_annotations, *names.NOTICES))


def label(pod: dict[str, Any]) -> list[Operation]:
    """Returns the JSON Patch operations that add to a pod the label by which policies and webhooks select GPU pods.

    A pod without metadata gets no operation.
    """
    metadata = pod.get("metadata")
    return change_map(metadata, "/metadata", "labels", LABELS, ()) if isinstance(metadata, dict) else []


def keep_until_metered(pod: dict[str, Any], *, holds: bool) -> list[Operation]:
    """Returns the JSON Patch operations that add the meter's finalizer to a pod, or remove it.

    The finalizer keeps the pod until the end of its session is in the ledger.

    Args:
        pod: the pod, as JSON.
        holds: whether the settings use the finalizer. If true, the operations add it; if false, they remove it.
    """
    given = mapping(pod.get("metadata")).get("finalizers")
    if not isinstance(given, list):
        return [add("/metadata/finalizers", [names.METER_FINALIZER])] if holds else []
    ours = [index for index, name in enumerate(given) if name == names.METER_FINALIZER]
    if holds and not ours:
        return [add("/metadata/finalizers/-", names.METER_FINALIZER)]
    return remove_elements("/metadata/finalizers", ours[1:] if holds else ours)


def _source(reading: PodReading, given: Any) -> str:
    """Returns the value of a pod's annotation `fairgpu.io/source-dialect`: its manifest's dialects, joined by commas.

    A copy of an admitted pod has only the canonical request, and the annotation of the admitted pod. The copy keeps
    that value.

    Args:
        reading: the GPU requests of the pod's containers.
        given: the annotation's value in the manifest, as JSON; None if the manifest lacks the annotation.
    """
    if isinstance(given, str) and NATIVE_NAMES.issuperset(reading.dialects) and ALL_NAMES.issuperset(given.split(",")):
        return given
    return ",".join(reading.dialects)


def gate(spec: dict[str, Any], *, held: bool) -> list[Operation]:
    """Returns the JSON Patch operations that add the budget's scheduling gate to a pod, or remove it.

    Args:
        spec: the pod's spec, as JSON.
        held: whether the pod must wait until its budget has money. If true, the operations add the gate; if false, they
            remove it.
    """
    given = spec.get("schedulingGates")
    path = "/spec/schedulingGates"
    wanted = {"name": names.BUDGET_GATE}
    if not isinstance(given, list):
        return [add(path, [wanted])] if held else []
    ours = indexes_named(given, (names.BUDGET_GATE,))
    if held:
        return [] if ours else [add(f"{path}/-", wanted)]
    return remove_elements(path, ours)


def _strip(pod: dict[str, Any], reading: PodReading) -> list[Operation]:
    """Returns the JSON Patch operations that remove the dialects' keys from a pod that requests no GPU by them.

    Such a key is `nvidia.com/gpu: 0`.
    """
    spec = mapping(pod.get("spec"))
    metadata = mapping(pod.get("metadata"))
    return [
        *change_map(metadata, "/metadata", "annotations", {}, reading.strip_annotations),
        *change_containers(spec, "containers", reading.containers, mounts=False),
        *change_containers(spec, "initContainers", reading.init, mounts=False),
    ]


def _stripped_of_zeros(pod: dict[str, Any], reading: PodReading) -> tuple[str, ...]:
    """Returns a warning for each container of a bare pod that loses keys such as `nvidia.com/gpu: 0`.

    The webhook is not asked about changes of a pod without a GPU. So a second `kubectl apply` puts the keys back, which
    the API server refuses. A pod with an owner, or with a generated name, is not applied.
    """
    metadata = mapping(pod.get("metadata"))
    if metadata.get("ownerReferences") or not metadata.get("name"):
        return ()
    spec, lines = mapping(pod.get("spec")), []
    for container in reading.all_containers:
        resources = mapping(spec[str(container.path[-2])][container.index].get("resources"))
        given = {*mapping(resources.get("limits")), *mapping(resources.get("requests"))}
        keys = ", ".join(key for key in container.reading.strip_resources if key in given)
        if keys:
            place = field_path(*container.path, "resources")
            lines.append(
                f"{place}: asks for no GPU, so {keys} is removed from the pod; remove it from the manifest, too, or "
                "the API server refuses to apply the manifest a second time"
            )
    return tuple(lines)


def _replacements(pod: dict[str, Any], settings: Webhook) -> tuple[str, ...]:
    spec = mapping(pod.get("spec"))
    lines = [
        f"spec.volumes[{index}]: the name is of a volume of FairGPU's own, which takes its place, mounts included"
        for index in strange_volumes(spec)
    ]
    scheduler = spec.get("schedulerName")
    if isinstance(scheduler, str) and scheduler not in ("", "default-scheduler", settings.scheduler):
        lines.append(f"spec.schedulerName: GPU pods are placed by {settings.scheduler}, not by {scheduler[:63]}")
    return tuple(lines)


def audit_of(budget: BudgetVerdict) -> dict[str, str]:
    """Returns the annotations of a pod's admission for the API server's audit log, keyed by name; empty for none.

    The only such annotation states the age of the budget's state, if that age is above `stale_after_seconds`.

    Args:
        budget: the effect of the budget on the pod.
    """
    if budget.stale_seconds is None:
        return {}
    return {"stale-budget-state": f"{budget.stale_seconds:.0f} seconds old"}


def creator(subject: Subject) -> str:
    """Returns the creator to whom a pod's use is attributed: a user's name, or `Kind/name` of a controller.

    If a person or a service account of the pod's own namespace sends the request, the creator is that user: they could
    name any controller in the pod's ownerReferences, and so attribute the use to somebody else. If another account of
    Kubernetes sends the request, such as a service account in kube-system or in an operator's namespace, the creator is
    the controller in the ownerReferences, or the Deployment that made the controller, a ReplicaSet. If they name none
    in the form that bills allow, it is the account.

    Args:
        subject: the request of the admission review, with the pod.
    """
    own_account = subject.user.startswith(f"{_ACCOUNT_PREFIX}{subject.namespace}:")
    if own_account or not subject.user.startswith(_SYSTEM_PREFIX):
        return subject.user
    metadata = mapping(subject.item.get("metadata"))
    for _, owner in objects(metadata.get("ownerReferences")):
        kind, name = owner.get("kind"), owner.get("name")
        if owner.get("controller") is not True or not isinstance(kind, str) or not isinstance(name, str):
            continue
        if _OWNER_KIND.fullmatch(kind) and _OWNER_NAME.fullmatch(name):
            return _controller(kind, name, metadata)
    return subject.user


def _controller(kind: str, name: str, metadata: dict[str, Any]) -> str:
    """Returns `Kind/name` of a pod's controller; a ReplicaSet that a Deployment made counts as the Deployment.

    A Deployment names its ReplicaSets after itself and a hash, which it also puts on their pods as a label.

    Args:
        kind, name: the controller's kind and name, from the pod's ownerReferences.
        metadata: the pod's metadata, as JSON.
    """
    template_hash = mapping(metadata.get("labels")).get(_TEMPLATE_HASH)
    if kind == "ReplicaSet" and isinstance(template_hash, str) and template_hash and name.endswith(f"-{template_hash}"):
        return f"Deployment/{name.removesuffix(f'-{template_hash}')}"
    return f"{kind}/{name}"
