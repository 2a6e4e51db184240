"""Manifests as people write them: YAML or JSON, several in a file, lists, and templates of pods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from webhook.admission.templates import TEMPLATE_PATHS, pod_template
from webhook.admission.verdict import mapping, objects

STANDARD_INPUT = "-"
SUFFIXES = (".yaml", ".yml", ".json")


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
    def concerned(self) -> bool:
        """Whether it is a pod, or makes pods."""
        return self.kind == "Pod" or self.kind in TEMPLATE_PATHS

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
        ManifestError: a file cannot be read, or is no YAML.
    """
    return [manifest for path in paths for file in _files(path) for manifest in _read(file)]


def _files(path: str) -> list[str]:
    folder = Path(path)
    if path == STANDARD_INPUT or not folder.is_dir():
        return [path]
    return sorted(str(file) for file in folder.iterdir() if file.suffix in SUFFIXES)


def _read(file: str) -> Iterator[Manifest]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text()
        documents = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ManifestError(f"{file}: {error}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ManifestError(f"{file}: a document is no object but a {type(document).__name__}")
        if str(document.get("kind", "")).endswith("List"):
            for _, item in objects(document.get("items")):
                yield Manifest(file, item)
        else:
            yield Manifest(file, document)
