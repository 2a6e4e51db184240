"""What the API server refuses before any webhook is asked: names that cannot be, parts of another type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairgpu.faults import Fault, field_path, show
from webhook.admission.templates import pod_template
from webhook.rehearsal.manifests import Manifest

Path = tuple[str | int, ...]

NAMESPACE_ALLOWED = 'the name of a namespace: at most 63 lower-case letters, digits and "-", the first and last no "-"'
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (RFC 1123), as names of namespaces and containers are."""
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS subdomain (RFC 1123), as names of pods and workloads are."""
_MISSING = object()


def is_namespace(name: str) -> bool:
    """Whether a namespace can have this name."""
    return _LABEL.fullmatch(name) is not None


def misshapen(manifest: Manifest) -> list[Fault]:
    """What is wrong with the shape of a pod, or of what makes pods, as far as admission reads it."""
    item = manifest.item
    found = pod_template(manifest.kind, item)
    if found is None:
        return [*_metadata(item), *_pod_spec(item, ())]
    path, template = found
    return [*_metadata(item), *(list(_above(item, path)) or _pod_spec(template, path))]


def _metadata(item: dict[str, Any]) -> Iterator[Fault]:
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        yield _no_object(("metadata",), item.get("metadata", _MISSING), "a map with the object's name")
        return
    name, prefix, namespace = (metadata.get(key) for key in ("name", "generateName", "namespace"))
    if name is None and prefix is None:
        yield _fault(("metadata", "name"), _MISSING, "a name", 'one such as "train"')
    for key, given, whole in (("name", name, name), ("generateName", prefix, f"{prefix}x")):
        if given is not None and not (isinstance(given, str) and _SUBDOMAIN.fullmatch(str(whole))):
            allowed = 'at most 253 lower-case letters, digits, "-" and ".", the first and last a letter or a digit'
            yield _fault(("metadata", key), given, allowed, 'one such as "train-7"')
    if namespace is not None and not (isinstance(namespace, str) and is_namespace(namespace)):
        yield _fault(("metadata", "namespace"), namespace, NAMESPACE_ALLOWED, 'one such as "team-a"')


def _above(item: dict[str, Any], path: tuple[str, ...]) -> Iterator[Fault]:
    """The first part on the way to the template that is no object."""
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
    for key in ("containers", "initContainers"):
        given = spec.get(key)
        if given is None:
            if key == "containers":
                yield _fault((*root, "spec", key), _MISSING, "a list with at least one container", "its containers")
        elif not isinstance(given, list):
            yield _fault((*root, "spec", key), given, "a list of containers", 'each below the other, after a "-"')
        else:
            for index, container in enumerate(given):
                yield from _container(container, (*root, "spec", key, index))


def _container(container: Any, path: Path) -> Iterator[Fault]:
    if not isinstance(container, dict):
        yield _no_object(path, container, "a map with a container's name and image")
        return
    name = container.get("name", _MISSING)
    if not (isinstance(name, str) and _LABEL.fullmatch(name)):
        allowed = 'at most 63 lower-case letters, digits and "-", the first and last no "-"'
        yield _fault((*path, "name"), name, allowed, 'one such as "main"')
    resources = container.get("resources")
    if resources is not None and not isinstance(resources, dict):
        yield _no_object((*path, "resources"), resources, "a map with limits and requests")
        return
    for key in ("limits", "requests"):
        amounts = (resources or {}).get(key)
        if amounts is not None and not isinstance(amounts, dict):
            yield _no_object((*path, "resources", key), amounts, "a map from resources to amounts")


def _no_object(path: Path, given: Any, allowed: str) -> Fault:
    return _fault(path, given, allowed, 'its fields below it, one on a line, such as "name: train"')


def _fault(path: Path, given: Any, allowed: str, instead: str) -> Fault:
    return Fault(field_path(*path), "nothing" if given is _MISSING else show(given), allowed, instead)
