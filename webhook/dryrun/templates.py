"""Finds the pods that an object is or creates: in Kubernetes' own workloads, and in custom resources.

Each project has the templates at field paths of its own. Most have whole templates, `metadata` and
`spec` with containers, as JobSet, LeaderWorkerSet, Kubeflow's jobs, RayCluster and Volcano's Job do; some have a bare
pod spec. Argo's Workflow has single containers (https://argo-workflows.readthedocs.io/en/latest/fields/#template).
KServe's InferenceService has components; each is a pod spec with a model beside its containers
(https://kserve.github.io/website/docs/reference/crd-api#predictorspec).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fairgpu.dialects.registry import DIALECTS
from fairgpu.faults import field_path
from fairgpu.json_values import mapping
from webhook.admission.templates import pod_template
from webhook.dryrun.manifests import Manifest

API_VERSIONS: Final = {
    **dict.fromkeys(("Pod", "PodTemplate", "ReplicationController"), "v1"),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps/v1"),
    **dict.fromkeys(("Job", "CronJob"), "batch/v1"),
}
"""The API version of each built-in kind that is a pod or has a pod template, keyed by kind; each kind has one
version."""
MAX_TEMPLATES: Final = 1000
"""The most templates of one object that are reviewed."""

_PATTERNS = ("kyverno.io", "policies.kyverno.io", "mutations.gatekeeper.sh")
"""The API groups whose objects contain patterns of pods, with placeholders, and create none."""
_ARGO = "argoproj.io"
_KSERVE = "serving.kserve.io"
_ARGO_POD_FIELDS = ("initContainers", "volumes", "nodeSelector", "priorityClassName")
_AMOUNTS = ("limits", "requests")

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A pod that an object is or creates, with the field paths of its parts in the object.

    Attributes:
        at: the keys and indexes on the path to the pod's template in the object; none for a Pod itself.
        pod: the pod that is made from the template, as JSON.
        parts: pairs of a field path in the pod and the same field's path in the object, the longest first.
    """

    at: Place
    pod: dict[str, Any]
    parts: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        """The template's field path in the object; empty for a Pod itself."""
        return field_path(*self.at)


def is_workload(manifest: Manifest) -> bool:
    """Returns whether an object is a Pod, or is of one of Kubernetes' built-in kinds with a pod template."""
    return API_VERSIONS.get(manifest.kind) == manifest.api_version


def is_custom(manifest: Manifest) -> bool:
    """Returns whether an object's API group has a dot and is not below `k8s.io`: it may create pods in its own way."""
    return "." in manifest.group and not manifest.group.endswith(".k8s.io")


def is_searched(manifest: Manifest) -> bool:
    """Returns whether a dry run searches an object for pods.

    A dry run searches the object if its API group has a dot, unless the group's objects contain patterns of pods, as
    Kyverno's policies do.
    """
    return "." in manifest.group and manifest.group not in _PATTERNS


def templates_of(manifest: Manifest) -> list[Template]:
    """Returns the pods that a manifest's object is or creates, one for each pod template, at most MAX_TEMPLATES.

    The list is empty for an object that is no Pod and has no pod templates that a dry run finds.
    """
    if not is_workload(manifest):
        return _custom(manifest) if is_searched(manifest) else []
    path_and_template = pod_template(manifest.kind, manifest.item)
    if path_and_template is None:
        return [Template((), manifest.item)]
    path, template = path_and_template
    return [_whole(manifest, path, template)]


def gpus_elsewhere(manifest: Manifest, templates: list[Template]) -> tuple[str, str] | None:
    """Returns a GPU resource that a custom resource names outside its pod templates; None for none.

    The second text is the field path of the `limits` or `requests` that have the resource. The result is also None for
    an object that a dry run does not search (`is_searched`).

    Args:
        manifest: the manifest of the custom resource.
        templates: the templates that were found in it, which are not searched.
    """
    if not is_searched(manifest):
        return None
    judged = {template.at for template in templates}
    waiting: list[tuple[Place, Any]] = [((), manifest.item)]
    while waiting:
        place, value = waiting.pop()
        if place in judged:
            continue
        inside = _inside(value)
        waiting += [((*place, key), item) for key, item in reversed(inside)]
        if isinstance(value, dict) and place and place[-1] in _AMOUNTS:
            for key in value:
                if key in DIALECTS.resources:
                    return key, field_path(*place)
    return None


def _whole(manifest: Manifest, path: Place, template: dict[str, Any]) -> Template:
    """Returns the pod that is made from a template with `metadata` and `spec`.

    Args:
        manifest: the manifest of the object that has the template.
        path: the template's field path in the object.
        template: the template, as JSON.
    """
    metadata = {"generateName": manifest.pod_prefix, **mapping(template.get("metadata"))}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")}
    moved = (("spec", field_path(*path, "spec")), ("metadata", field_path(*path, "metadata")))
    return Template(tuple(path), pod, moved)


def _custom(manifest: Manifest) -> list[Template]:
    results: list[Template] = []
    waiting: list[tuple[Place, Any]] = [((), manifest.item)]
    while waiting and len(results) < MAX_TEMPLATES:
        place, value = waiting.pop()
        templates = _at(manifest, place, value) if isinstance(value, dict) else []
        results += templates
        if not templates:
            waiting += [((*place, key), item) for key, item in reversed(_inside(value))]
    return results


def _inside(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _at(manifest: Manifest, place: Place, value: dict[str, Any]) -> list[Template]:
    """Returns the pods that one part of a custom resource describes; empty if the part is no template of pods.

    Args:
        manifest: the manifest of the custom resource.
        place: the part's field path.
        value: the part, as JSON.
    """
    if place and _has_containers(value.get("spec")):
        return [_whole(manifest, place, value)]
    if manifest.group == _KSERVE and manifest.kind == "InferenceService" and place[:1] == ("spec",) and len(place) == 2:
        return list(_kserve(manifest, place, value))
    if manifest.group == _ARGO and isinstance(value.get("container", value.get("script")), dict):
        return [_argo(manifest, place, value)]
    return [_bare(manifest, place, value, {})] if _has_containers(value) else []


def _has_containers(spec: Any) -> bool:
    containers = mapping(spec).get("containers")
    return isinstance(containers, list) and any(isinstance(item, dict) for item in containers)


def _bare(manifest: Manifest, place: Place, spec: dict[str, Any], annotations: dict[str, Any]) -> Template:
    """Returns the pod that is made from a pod spec without metadata.

    Args:
        manifest: the manifest of the object that has the spec.
        place: the spec's field path in the object.
        spec: the spec, as JSON.
        annotations: the annotations that the pod gets; empty for none.
    """
    metadata = {"generateName": manifest.pod_prefix, **({"annotations": annotations} if annotations else {})}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return Template(place, pod, (("spec", field_path(*place)),))


def _kserve(manifest: Manifest, place: Place, component: dict[str, Any]) -> Iterator[Template]:
    """Yields the pods of a component of KServe's InferenceService, and of its workers if it has any.

    It yields nothing for a component that states no model's resources and no containers.

    The model becomes a container beside the component's own containers. The pods get the service's annotations.

    Args:
        manifest: the manifest of the InferenceService.
        place: the component's field path.
        component: the component, as JSON.
    """
    models = [
        key for key, part in component.items() if isinstance(part, dict) and isinstance(part.get("resources"), dict)
    ]
    if not models and not _has_containers(component):
        return
    annotations = {
        **mapping(mapping(manifest.item.get("metadata")).get("annotations")),
        **mapping(component.get("annotations")),
    }
    given = component.get("containers")
    containers = list(given) if isinstance(given, list) else []
    moved = []
    for key in models:
        moved.append((f"spec.containers[{len(containers)}]", field_path(*place, key)))
        containers.append({"name": "kserve-container", "resources": component[key]["resources"]})
    template = _bare(manifest, place, {**component, "containers": containers}, annotations)
    yield Template(place, template.pod, _moved(*moved, *template.parts))
    worker = component.get("workerSpec")
    if _has_containers(worker):
        yield _bare(manifest, (*place, "workerSpec"), mapping(worker), annotations)


def _argo(manifest: Manifest, place: Place, template: dict[str, Any]) -> Template:
    """Returns the pod that is made from a template of Argo's Workflow.

    Args:
        manifest: the manifest of the Workflow.
        place: the template's field path.
        template: the template, as JSON: a container or a script, and perhaps sidecars and init containers.
    """
    main = "container" if isinstance(template.get("container"), dict) else "script"
    sidecars = [part for part in template.get("sidecars") or [] if isinstance(part, dict)]
    spec: dict[str, Any] = {"containers": [{"name": "main", **template[main]}, *sidecars]}
    spec |= {key: template[key] for key in _ARGO_POD_FIELDS if key in template}
    metadata = {"generateName": manifest.pod_prefix, **mapping(template.get("metadata"))}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    where = field_path(*place)
    moved = [(f"spec.containers[{index + 1}]", f"{where}.sidecars[{index}]") for index in range(len(sidecars))]
    moved += [("spec.containers[0]", f"{where}.{main}"), ("spec", where), ("metadata", f"{where}.metadata")]
    return Template(place, pod, _moved(*moved))


def _moved(*parts: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(parts, key=lambda part: -len(part[0])))
