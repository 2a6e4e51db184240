"""Finds the faults for which the API server refuses a manifest before the webhook, or by a policy after the webhook.

The faults before the webhook are those of kinds, names and types of values. The faults after it are those of the
policy fairgpu-spec, `webhook/manifests/spec.yaml`, that a manifest alone can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from fairgpu import names
from fairgpu.container_parser import MAX_CONTAINERS
from fairgpu.faults import Fault, field_path, show
from fairgpu.json_values import list_of, mapping
from webhook.admission.templates import pod_template
from webhook.admission.verdict import indexes_named, objects
from webhook.dryrun.manifests import Manifest
from webhook.dryrun.templates import API_VERSIONS

Path = tuple[str | int, ...]

NAMESPACE_ALLOWED = 'the name of a namespace: at most 63 lower-case letters, digits and "-", the first and last no "-"'
LONGEST_NAMES: Final = {"Job": 63, "CronJob": 52}
"""The most characters of a workload's name, keyed by kind. A Job's name is a label of its pods; a CronJob's name is
followed by eleven characters in the names of its Jobs
(https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/)."""
POD_LEVEL_RESOURCES: Final = ("cpu", "memory")
"""The resources that a pod itself may request, besides huge pages
(https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/)."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1123), the form of names of namespaces and containers."""
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain (RFC 1123), the form of names of pods and workloads."""
MAX_GATES: Final = 64
LONGEST: Final = (
    ("containers", MAX_CONTAINERS),
    ("initContainers", MAX_CONTAINERS + 1),
    ("schedulingGates", MAX_GATES),
)
"""The most items of each list of any pod; one init container is FairGPU's sidecar."""
_WITHOUT_GPU: Final = "on a pod that asks for no GPU"
_MISSING = object()
_CONTAINERS = ("containers", "initContainers")


def is_namespace(name: str) -> bool:
    """Returns whether a text is a valid name of a namespace."""
    return _LABEL.fullmatch(name) is not None


def wrong_kind(manifest: Manifest) -> list[Fault]:
    """Returns the faults of a manifest that names a built-in workload by an API version or a spelling that is wrong.

    The list is empty for any other kind.
    """
    if "." in manifest.group:
        return []
    known = {kind.lower(): kind for kind in API_VERSIONS}.get(manifest.kind.lower())
    if known is None:
        return []
    faults = []
    if manifest.api_version != API_VERSIONS[known]:
        allowed = f"{API_VERSIONS[known]}, the only one that API servers have of {known}"
        faults.append(_fault(("apiVersion",), manifest.api_version, allowed, API_VERSIONS[known]))
    if manifest.kind != known:
        faults.append(_fault(("kind",), manifest.kind, f"{known}, as kinds are spelt with capitals", known))
    return faults


def misshapen(manifest: Manifest) -> list[Fault]:
    """Returns the faults of a pod or a built-in workload for which the API server refuses it before admission.

    The faults are missing or invalid names and values of wrong types, in the fields that admission reads.
    """
    item = manifest.item
    path_and_template = pod_template(manifest.kind, item)
    if path_and_template is None:
        return [*_metadata(manifest), *_pod_spec(item, ())]
    path, template = path_and_template
    return [*_metadata(manifest), *(list(_above(item, path)) or misshapen_pod(template, path))]


def misshapen_pod(pod: dict[str, Any], root: Path) -> list[Fault]:
    """Returns the faults of a pod template for which the API server refuses its pods before admission.

    The faults are missing or invalid names and values of wrong types, in the fields that admission reads.

    Args:
        pod: the template, as JSON.
        root: the template's field path in its object; empty for a pod.
    """
    return [*_texts(pod.get("metadata"), (*root, "metadata")), *_pod_spec(pod, root)]


def misshapen_spec(pod: dict[str, Any]) -> list[Fault]:
    """Returns the faults, as `misshapen_pod` finds them, of a pod that a custom resource's controller creates.

    Args:
        pod: the pod, as JSON.
    """
    return misshapen_pod(pod, ())


def faults_of_policy(pod: dict[str, Any]) -> list[Fault]:
    """Returns the faults for which the policy fairgpu-spec refuses a pod that the webhook has admitted.

    Args:
        pod: the pod after the webhook's changes, as JSON.
    """
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    faults = list(_too_long(spec))
    annotations = mapping(metadata.get("annotations"))
    if names.ALLOCATION in annotations:
        path = field_path("metadata", "annotations", names.ALLOCATION)
        allowed = "none, as FairGPU's scheduler writes it when it binds the pod"
        faults.append(_unwanted(path, annotations[names.ALLOCATION], allowed))
    # The webhook writes this annotation on each pod that asks for a GPU. A claim may be for a GPU as well.
    if names.CREATED_BY in annotations or spec.get("resourceClaims"):
        return faults
    labels = mapping(metadata.get("labels"))
    if names.POD_LABEL in labels:
        path = field_path("metadata", "labels", names.POD_LABEL)
        faults.append(_unwanted(path, labels[names.POD_LABEL], f"no such label {_WITHOUT_GPU}"))
    if names.METER_FINALIZER in list_of(metadata.get("finalizers")):
        path = field_path("metadata", "finalizers")
        faults.append(_unwanted(path, names.METER_FINALIZER, f"no such finalizer {_WITHOUT_GPU}"))
    if indexes_named(list_of(spec.get("schedulingGates")), {names.BUDGET_GATE}):
        path = field_path("spec", "schedulingGates")
        faults.append(_unwanted(path, names.BUDGET_GATE, f"no such gate {_WITHOUT_GPU}"))
    return faults


def _too_long(spec: dict[str, Any]) -> list[Fault]:
    faults = []
    for field, most in LONGEST:
        count = len(list_of(spec.get(field)))
        if count > most:
            allowed = f"at most {most} in any pod, as more cannot be looked through for GPUs"
            faults.append(Fault(field_path("spec", field), f"{count} items", allowed, "fewer in a pod, and more pods"))
    return faults


def _unwanted(path: str, given: object, allowed: str) -> Fault:
    return Fault(path, show(given), allowed, "nothing there")


def resources_of_others(pod: dict[str, Any]) -> list[str]:
    """Returns the resources of other projects that a pod names, as text for people.

    These are the extended resources of the pod's containers, and `spec.resourceClaims` if the pod has claims.

    Args:
        pod: a pod that asks for no GPU of FairGPU's, as JSON.
    """
    spec = mapping(pod.get("spec"))
    resources_and_claims: dict[str, None] = {}
    for field in _CONTAINERS:
        for _, container in objects(spec.get(field)):
            resources = mapping(container.get("resources"))
            for key in ("limits", "requests"):
                resources_and_claims |= dict.fromkeys(name for name in mapping(resources.get(key)) if "/" in name)
    if isinstance(spec.get("resourceClaims"), list) and spec["resourceClaims"]:
        resources_and_claims["spec.resourceClaims"] = None
    return list(resources_and_claims)


def _metadata(manifest: Manifest) -> Iterator[Fault]:
    """Yields the faults of an object's name, namespace, labels and annotations.

    An empty text counts as not given, as it does to the API server.
    """
    item = manifest.item
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        yield _no_object(("metadata",), item.get("metadata", _MISSING), "a map with the object's name")
        return
    name, prefix, namespace = (
        None if metadata.get(key) == "" else metadata.get(key) for key in ("name", "generateName", "namespace")
    )
    if name is None and prefix is None:
        yield _fault(("metadata", "name"), _MISSING, "a name", 'one such as "train"')
    longest = LONGEST_NAMES.get(manifest.kind, 253)
    for key, given, whole in (("name", name, name), ("generateName", prefix, f"{prefix}x")):
        if given is not None and not (
            isinstance(given, str) and _SUBDOMAIN.fullmatch(str(whole)) and len(given) <= longest
        ):
            allowed = (
                f'at most {longest} lower-case letters, digits, "-" and ".", the first and last a letter or a digit'
            )
            yield _fault(("metadata", key), given, allowed, _quoted(given, _SUBDOMAIN) or 'one such as "train-7"')
    if namespace is not None and not (isinstance(namespace, str) and is_namespace(namespace)):
        instead = _quoted(namespace, _LABEL) or 'one such as "team-a"'
        yield _fault(("metadata", "namespace"), namespace, NAMESPACE_ALLOWED, instead)
    yield from _texts(metadata, ("metadata",))


def _texts(metadata: Any, path: Path) -> Iterator[Fault]:
    """Yields the faults of an object's annotations and labels: values that are no texts, or no map of them at all.

    Args:
        metadata: the metadata of an object, as JSON.
        path: the metadata's field path.
    """
    for key in ("annotations", "labels"):
        given = mapping(metadata).get(key)
        if given is None:
            continue
        if not isinstance(given, dict):
            yield _no_object((*path, key), given, "a map from names to texts")
            continue
        for name, value in given.items():
            if value is not None and not isinstance(value, str):
                yield _fault((*path, key, name), value, "text", f'"{show(value)}", in quotes')


def _above(item: dict[str, Any], path: tuple[str, ...]) -> Iterator[Fault]:
    """Yields one fault if the path to a workload's pod template leads through a value that is no object; else none.

    Args:
        item: the workload, as JSON.
        path: the template's field path in the workload.
    """
    value: Any = item
    for depth, part in enumerate(path, start=1):
        value = value.get(part, _MISSING)
        if not isinstance(value, dict):
            yield _no_object(path[:depth], value, f"a map, down to {field_path(*path)}, the template of its pods")
            return


def _pod_spec(pod: dict[str, Any], root: Path) -> Iterator[Fault]:
    spec = pod.get("spec", _MISSING)
    if not isinstance(spec, dict):
        yield _no_object((*root, "spec"), spec, "a map with the pod's containers")
        return
    names: set[str] = set()
    for key in _CONTAINERS:
        given = spec.get(key)
        if given is None:
            if key == "containers":
                yield _fault((*root, "spec", key), _MISSING, "a list with at least one container", "its containers")
        elif not isinstance(given, list):
            yield _fault((*root, "spec", key), given, "a list of containers", 'each below the other, after a "-"')
        else:
            for index, container in enumerate(given):
                yield from _container(container, (*root, "spec", key, index), names)
    yield from _maps(spec, "volumes", (*root, "spec"), "a list of volumes, each a map with a name")
    limits = mapping(spec.get("resources"))
    for key in ("limits", "requests"):
        for name in mapping(limits.get(key)):
            if name not in POD_LEVEL_RESOURCES and not name.startswith("hugepages-"):
                allowed = "cpu, memory and hugepages-* alone for the pod as a whole"
                where = (*root, "spec", "resources", key, name)
                yield _fault(where, limits[key][name], allowed, "it among the resources of a container")


def _container(container: Any, path: Path, names: set[str]) -> Iterator[Fault]:
    if not isinstance(container, dict):
        yield _no_object(path, container, "a map with a container's name and image")
        return
    name = container.get("name", _MISSING)
    if not (isinstance(name, str) and _LABEL.fullmatch(name)):
        allowed = 'at most 63 lower-case letters, digits and "-", the first and last no "-"'
        yield _fault((*path, "name"), name, allowed, _quoted(name, _LABEL) or 'one such as "main"')
    elif name in names:
        yield _fault((*path, "name"), name, "a name that no other container of the pod has", "another name")
    else:
        names.add(name)
    yield from _container_lists(container, path)
    resources = container.get("resources")
    if resources is not None and not isinstance(resources, dict):
        yield _no_object((*path, "resources"), resources, "a map with limits and requests")
        return
    for key in ("limits", "requests"):
        amounts = (resources or {}).get(key)
        if amounts is not None and not isinstance(amounts, dict):
            yield _no_object((*path, "resources", key), amounts, "a map from resources to amounts")


def _container_lists(container: dict[str, Any], path: Path) -> Iterator[Fault]:
    for key in ("command", "args"):
        given = container.get(key)
        if given is None:
            continue
        if not isinstance(given, list):
            yield _fault((*path, key), given, "a list of texts", f"[{show(given)}]")
            continue
        for index, part in enumerate(given):
            if part is not None and not isinstance(part, str):
                yield _fault((*path, key, index), part, "text", f'"{show(part)}", in quotes')
    yield from _maps(container, "volumeMounts", path, "a list of mounts, each a map with name and mountPath")
    yield from _maps(container, "env", path, "a list of variables, each a map with name and value")
    for index, variable in objects(container.get("env")):
        value = variable.get("value")
        if value is not None and not isinstance(value, str):
            yield _fault((*path, "env", index, "value"), value, "text", f'"{show(value)}", in quotes')


def _maps(parent: dict[str, Any], key: str, path: Path, allowed: str) -> Iterator[Fault]:
    """Yields the faults of a field that must be a list of maps; a missing field has no faults.

    Args:
        parent: the object that has the field, as JSON.
        key: the field's name.
        path: the object's field path.
        allowed: the fault's text for what is allowed, such as `a list of volumes, each a map with a name`.
    """
    given = parent.get(key)
    if given is None:
        return
    if not isinstance(given, list):
        yield _fault((*path, key), given, allowed, 'each below the other, after a "-"')
        return
    for index, part in enumerate(given):
        if not isinstance(part, dict):
            yield _no_object((*path, key, index), part, "a map")


def _quoted(given: Any, pattern: re.Pattern[str]) -> str | None:
    """Returns the advice to write a value in quotes, if the value in quotes would match a pattern; else None.

    For a value that is a text already, the result is None.
    """
    text = show(given)
    return f'"{text}", in quotes' if not isinstance(given, str) and pattern.fullmatch(text) else None


def _no_object(path: Path, given: Any, allowed: str) -> Fault:
    return _fault(path, given, allowed, 'its fields below it, one on a line, such as "name: train"')


def _fault(path: Path, given: Any, allowed: str, instead: str) -> Fault:
    return Fault(field_path(*path), "nothing" if given is _MISSING else show(given), allowed, instead)
