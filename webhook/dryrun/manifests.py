"""Reads manifests as people write them: YAML or JSON, several in a file, lists of them, lists of lists."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairgpu.faults import field_path, show
from fairgpu.json_values import mapping
from webhook.dryrun.documents import Document, read_documents

STANDARD_INPUT = "-"
SUFFIXES = (".yaml", ".yml", ".json")
MAX_LIST_DEPTH = 10
"""The deepest nesting of lists in lists that is read."""
LIST = "List"

Place = tuple[str | int, ...]


class ManifestError(ValueError):
    """A file of manifests, or a part of one, cannot be read as a manifest; the message names the file and the part."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object in a file of manifests.

    Attributes:
        source: the file's path; `-` for the standard input.
        item: the object, as JSON.
        repeated: sentences about keys that are written twice in the object.
    """

    source: str
    item: dict[str, Any]
    repeated: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The object's kind; empty if the manifest names none."""
        return str(self.item.get("kind") or "")

    @property
    def api_version(self) -> str:
        """The API group and version of the object's kind, such as `apps/v1`; empty if the manifest names none."""
        return str(self.item.get("apiVersion") or "")

    @property
    def group(self) -> str:
        """The API group of the object's kind; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The object's name for people: its generateName and `*` if it has no name yet, `(no name)` without either."""
        metadata = mapping(self.item.get("metadata"))
        generated = metadata.get("generateName")
        return str(metadata.get("name") or (f"{generated}*" if generated else "(no name)"))

    @property
    def pod_prefix(self) -> str:
        """The text with which the names of the object's pods begin: the object's name, and a hyphen.

        Without a name it has the generateName; without either, `pod`.
        """
        metadata = mapping(self.item.get("metadata"))
        return f"{metadata.get('name') or str(metadata.get('generateName') or 'pod').rstrip('-')}-"

    @property
    def namespace(self) -> str:
        """The namespace that the manifest names; empty if it names none."""
        return str(mapping(self.item.get("metadata")).get("namespace") or "")


@dataclass(frozen=True, slots=True)
class Manifests:
    """The result of reading files of manifests.

    Attributes:
        objects: the objects that could be read.
        errors: an error for each file or part of a file that could not be read.
    """

    objects: tuple[Manifest, ...]
    errors: tuple[ManifestError, ...]


def read_manifests(paths: list[str]) -> Manifests:
    """Reads the objects in files, in folders, and in the standard input for `-`.

    Of a folder, the files directly in it that have one of SUFFIXES are read.

    A file, or a part of a file, that cannot be read gives an error; the other objects are returned all the same. No
    manifest at all is an error, too.
    """
    parts = [part for path in paths for part in _read_all(path)]
    objects = tuple(part for part in parts if isinstance(part, Manifest))
    errors = tuple(part for part in parts if isinstance(part, ManifestError))
    if not parts:
        errors = (ManifestError(f"{', '.join(paths)}: no manifests in there"),)
    return Manifests(objects, errors)


def _read_all(path: str) -> Iterator[Manifest | ManifestError]:
    try:
        files = _files(path)
    except OSError as error:
        yield ManifestError(f"{path}: {error.strerror}")
        return
    for file in files:
        yield from _read(file)


def _files(path: str) -> list[str]:
    folder = Path(path)
    if path == STANDARD_INPUT or not folder.is_dir():
        return [path]
    return sorted(str(file) for file in folder.iterdir() if file.suffix in SUFFIXES and not file.is_dir())


def _read(file: str) -> Iterator[Manifest | ManifestError]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else Path(file).read_text()
        documents = [Document(_as_json(document.value), document.repeated) for document in read_documents(text)]
    except OSError as error:
        yield ManifestError(f"{file}: {error.strerror}")
        return
    except RecursionError:
        yield ManifestError(f"{file}: nested too deep")
        return
    except (ValueError, TypeError, yaml.YAMLError) as error:
        yield ManifestError(f"{file}: {error}")
        return
    for document in documents:
        if document.value is not None:
            yield from _parts(file, document.value, document, (), ("", ""))


def _parts(
    file: str, value: Any, document: Document, place: Place, listed: tuple[str, str]
) -> Iterator[Manifest | ManifestError]:
    """Yields the objects in a part of a YAML document: the value itself, or its items if it is a list such as PodList.

    For a value or an item that is no object of Kubernetes, an error is yielded.

    Args:
        file: the file's path, for errors.
        value: the part.
        document: the document, with the keys that are repeated in it.
        place: the field path of the part in the document.
        listed: the apiVersion and kind that a list such as PodList gives its items; both empty for any other part.
    """
    where = f"{file}: {field_path(*place)}" if place else file
    if not isinstance(value, dict):
        what = "a document is" if not place else "the item is"
        yield ManifestError(f"{where}: {what} no object but {show(value)}")
        return
    item = value
    if listed[1]:
        item = {"apiVersion": listed[0], "kind": listed[1]} | {k: v for k, v in value.items() if v is not None}
    kind = item.get("kind")
    if isinstance(kind, str) and kind.endswith(LIST) and "items" in item:
        yield from _listed(file, item, document, place)
        return
    for field, example in (("apiVersion", "v1"), ("kind", "Pod")):
        given = item.get(field)
        if not isinstance(given, str) or not given:
            shown = "nothing" if given is None else show(given)
            yield ManifestError(f"{where}: {field}: given {shown}; allowed: text, as in every object; write {example}")
            return
    repeated = tuple(text for path, text in document.repeated if path[: len(place)] == place)
    yield Manifest(file, item, repeated)


def _listed(file: str, item: dict[str, Any], document: Document, place: Place) -> Iterator[Manifest | ManifestError]:
    items, kind = item["items"], str(item["kind"])
    where = f"{file}: {field_path(*place, 'items')}"
    if not isinstance(items, list):
        yield ManifestError(f"{where}: given {show(items)}; allowed: a list of objects")
    elif len(place) >= 2 * MAX_LIST_DEPTH:
        yield ManifestError(f"{where}: lists within more than {MAX_LIST_DEPTH} lists")
    else:
        listed = ("", "") if kind == LIST else (str(item.get("apiVersion") or ""), kind.removesuffix(LIST))
        for index, part in enumerate(items):
            yield from _parts(file, part, document, (*place, "items", index), listed)


def _as_json(document: Any) -> Any:
    """Converts a YAML document to JSON values, as kubectl does before it sends them to an API server.

    Raises:
        TypeError, ValueError: the document contains a value that JSON cannot express.
    """
    text = json.dumps(_with_text_keys(document), default=str)
    return json.loads(text, parse_int=_number, parse_float=_fraction, parse_constant=_no_number)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value


def _key(key: Any) -> Any:
    """Returns the key of a map in a YAML document as kubectl writes it into JSON.

    A key that is a fraction becomes the shortest text of the nearest 32-bit float. Any other key stays as it is
    (https://github.com/kubernetes-sigs/yaml/blob/v1.6.0/yaml.go, `convertToJSONableObject`).

    Raises:
        TypeError: the key is null.
    """
    if key is None:
        raise TypeError("null stands as a key of a map; allowed: text")
    if not isinstance(key, float):
        return key
    try:
        single = struct.pack("f", key)
    except OverflowError:
        single = struct.pack("f", math.copysign(math.inf, key))
    (value,) = struct.unpack("f", single)
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    digits = (f"{value:.{count}e}" for count in range(9))
    text = next(text for text in digits if struct.pack("f", float(text)) == single)
    return f"{float(text):.9g}" if -4 <= int(text.partition("e")[2]) < 6 else text


def _number(text: str) -> int | float:
    """Reads a whole number of JSON; a number beyond int64 becomes the nearest double (RFC 8259 section 6)."""
    value = int(text)
    if value.bit_length() < 64:
        return value
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _fraction(text: str) -> int | float:
    """Reads a number of JSON with a decimal point or an exponent.

    A whole number within int64, such as `1.0`, becomes an integer, as Go writes it.
    """
    value = float(text)
    return int(value) if value.is_integer() and int(value).bit_length() < 64 else value


def _no_number(text: str) -> float:
    raise ValueError(f"{text[:20]} is no number that JSON can carry")
