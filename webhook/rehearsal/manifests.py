"""Manifests as people write them: YAML or JSON, several in a file, lists, and templates of pods."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairgpu.faults import show
from webhook.admission.templates import pod_template
from webhook.admission.verdict import mapping

STANDARD_INPUT = "-"
SUFFIXES = (".yaml", ".yml", ".json")
GROUPS = {
    **dict.fromkeys(("Pod", "PodTemplate", "ReplicationController"), ""),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), "apps"),
    **dict.fromkeys(("Job", "CronJob"), "batch"),
}
"""The API groups of the kinds that are pods or have a template of them: Volcano, for one, has a Job of its own."""


class ManifestError(ValueError):
    """A file that holds no manifests; the message names it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file."""

    source: str
    item: dict[str, Any]

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.item.get("kind") or "")

    @property
    def name(self) -> str:
        """Its name, or what a name will be made from."""
        metadata = mapping(self.item.get("metadata"))
        generated = metadata.get("generateName")
        return str(metadata.get("name") or (f"{generated}*" if generated else "(no name)"))

    @property
    def namespace(self) -> str:
        """The namespace that it names; empty where it leaves that to the one who applies it."""
        return str(mapping(self.item.get("metadata")).get("namespace") or "")

    @property
    def group(self) -> str:
        """The API group of its kind; empty for the core's."""
        return str(self.item.get("apiVersion") or "").rpartition("/")[0]

    @property
    def concerned(self) -> bool:
        """Whether it is a pod, or makes pods as Kubernetes' own workloads do."""
        return GROUPS.get(self.kind) == self.group

    @property
    def custom(self) -> bool:
        """Whether it is of a kind that is not Kubernetes' own, and may make pods in ways of its own."""
        if self.kind in GROUPS:
            return not self.concerned
        return "." in self.group and not self.group.endswith(".k8s.io")

    def pod(self) -> dict[str, Any]:
        """The pod that it is, or that is made from its template."""
        found = pod_template(self.kind, self.item)
        if found is None:
            return self.item
        template = found[1]
        metadata = {"generateName": f"{self.name}-", **mapping(template.get("metadata"))}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")}


def read_manifests(paths: list[str]) -> list[Manifest]:
    """The objects in files, in folders (not below), and in the standard input for `-`.

    Raises:
        ManifestError: a file cannot be read, is no YAML, or holds something else than objects; or there is none.
    """
    found = [manifest for path in paths for file in _files(path) for manifest in _read(file)]
    if not found:
        raise ManifestError(f"{', '.join(paths)}: no manifests in there")
    return found


def _files(path: str) -> list[str]:
    folder = Path(path)
    if path == STANDARD_INPUT or not folder.is_dir():
        return [path]
    return sorted(str(file) for file in folder.iterdir() if file.suffix in SUFFIXES)


def _read(file: str) -> Iterator[Manifest]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text()
        documents = [_as_json(document) for document in yaml.safe_load_all(text)]
    except OSError as error:
        raise ManifestError(f"{file}: {error.strerror}") from error
    except (ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        raise ManifestError(f"{file}: {error}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ManifestError(f"{file}: a document is no object but a {type(document).__name__}")
        if str(document.get("kind", "")).endswith("List") and "items" in document:
            yield from _listed(file, document["items"])
        else:
            yield _object(file, document)


def _listed(file: str, items: Any) -> Iterator[Manifest]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ManifestError(f"{file}: items: given {json.dumps(items)[:80]}; allowed: a list of objects")
    for item in items:
        yield _object(file, item)


def _object(file: str, item: dict[str, Any]) -> Manifest:
    for field, example in (("apiVersion", "v1"), ("kind", "Pod")):
        given = item.get(field)
        if not isinstance(given, str) or not given:
            shown = "nothing" if given is None else show(given)
            raise ManifestError(f"{file}: {field}: given {shown}; allowed: text, as in every object; write {example}")
    return Manifest(file, item)


def _as_json(document: Any) -> Any:
    """What a YAML document is once it is JSON, as everything is that reaches an API server.

    Raises:
        TypeError, ValueError: it has what JSON has not.
    """
    text = json.dumps(document, default=str)
    return json.loads(text, parse_int=_number, parse_constant=_no_number)


def _number(text: str) -> int | float:
    """A whole number that fits into 64 bits as itself, any other as the nearest double (RFC 8259 section 6)."""
    value = int(text)
    if value.bit_length() < 64:
        return value
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text[:20]} is no number that JSON can carry")
