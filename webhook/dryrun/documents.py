"""Reads YAML documents as Kubernetes' tools do, with limits on aliases, and finds repeated keys.

`kubectl` reads YAML with the library sigs.k8s.io/yaml v1.6.0, which uses go.yaml.in/yaml/v2 v2.4.2. It takes `089`,
`1e3` and `0o17` for numbers, `y` for true, and `1:30` and dates for text
(https://github.com/yaml/go-yaml/blob/v2.4.2/resolve.go).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import yaml

from fairgpu.faults import field_path

MAX_EXPANDED: Final = 100_000
"""The most nodes of a document with its aliases expanded."""
MAX_GROWTH: Final = 10
"""The most nodes of a longer document with its aliases expanded, for each node as written."""
MAX_REPEATED_NAMED: Final = 16

_BASE_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+)")
_FRACTION = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LEADING_POINT = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
"""A number that begins with its decimal point; each underscore in it is between two digits."""
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_NO_NUMBER: Final = {
    **{f"{sign}{name}": float(f"{sign}inf") for sign in ("", "+", "-") for name in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGERS: Final = range(-(2**63), 2**64)
"""The whole numbers that Go reads as integers; it reads larger ones as floating-point numbers."""
_LONGEST: Final = 256
"""The most characters of a whole number that is read as an integer; a longer one is out of range, unless it has leading
zeros."""


class DocumentError(ValueError):
    """A YAML document contains itself, or its aliases make it too large."""


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a text.

    Attributes:
        value: the content of the document.
        repeated: for each key that is repeated in one map, a pair of its field path and a sentence about it.
    """

    value: Any
    repeated: tuple[tuple[tuple[str | int, ...], str], ...]


def _read_number(text: str) -> int | float | None:
    """Returns the number that kubectl takes an unquoted YAML value for; None if it takes the value for no number."""
    if text in _NO_NUMBER:
        return _NO_NUMBER[text]
    if not (_LEADING_POINT.fullmatch(text) or text[:1] in {*"+-0123456789"}):
        return None
    plain = text.replace("_", "")
    if len(plain) <= _LONGEST and _INTEGER.fullmatch(plain):
        whole = int(plain, 8 if _OCTAL.fullmatch(plain) else 0)
        if whole in _INTEGERS:
            return whole
    fraction = float(plain) if _FRACTION.fullmatch(plain) else math.inf
    return fraction if math.isfinite(fraction) else None


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads unquoted values as kubectl does."""

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Returns the tag of a node, which names its type.

        An unquoted value is a number, a bool or null where kubectl reads one, and otherwise a text, as dates are.
        """
        if kind is yaml.ScalarNode and implicit[0] and (number := _read_number(value)) is not None:
            return f"{_BASE_TAG}{'int' if isinstance(number, int) else 'float'}"
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call] # it ships none

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        r"""Returns the node of a scalar, whose text has no half of a surrogate pair.

        Escapes such as `\ud83d\ude00` become the character of the pair. Half a pair becomes U+FFFD, as Go reads it in
        JSON.
        """
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if not node.value.isascii():
            node.value = node.value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        number = _read_number(str(node.value))
        if number is None or (node.tag == f"{_BASE_TAG}int" and not isinstance(number, int)):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value[:20]!r} is no number", node.start_mark)
        return number

    def construct_choice(self, node: yaml.ScalarNode) -> bool:
        found = self.bool_values.get(str(node.value).lower())
        if found is None:
            raise yaml.constructor.ConstructorError(None, None, f"{node.value[:20]!r} is no bool", node.start_mark)
        return found

    def construct_text(self, node: yaml.ScalarNode) -> str:
        return str(node.value)


_KEPT = {f"{_BASE_TAG}{name}" for name in ("bool", "merge", "null")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_BASE_TAG}bool", re.compile("[yYnN]$"), list("yYnN"))
_Loader.add_constructor(f"{_BASE_TAG}int", _Loader.construct_number)
_Loader.add_constructor(f"{_BASE_TAG}float", _Loader.construct_number)
_Loader.add_constructor(f"{_BASE_TAG}bool", _Loader.construct_choice)
for _text in ("merge", "timestamp"):
    _Loader.add_constructor(f"{_BASE_TAG}{_text}", _Loader.construct_text)


def read_documents(text: str) -> Iterator[Document]:
    """Yields the YAML documents of a text.

    Raises:
        DocumentError: a document contains itself, or aliases make it larger than MAX_EXPANDED and MAX_GROWTH allow.
        yaml.YAMLError, ValueError, TypeError, RecursionError: the text is not YAML, or nests too deep.
    """
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101 - check_node said that there is one
            _check_size(node)
            yield Document(loader.construct_document(node), tuple(_repeated(node)))
    finally:
        loader.dispose()


def _check_size(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}
    size = _expanded(root, sizes, set())
    if size > max(MAX_EXPANDED, MAX_GROWTH * len(sizes)):
        line = root.start_mark.line + 1
        raise DocumentError(
            f"the document at line {line} comes to {size} values by its aliases; allowed: {MAX_EXPANDED}; "
            f"write them out, or in fewer levels"
        )


def _expanded(node: yaml.Node, sizes: dict[int, int], open_nodes: set[int]) -> int:
    """Returns the number of YAML nodes in a node, itself included, once its aliases are expanded.

    Args:
        node: the node. An alias in it is the same object as the node that it repeats.
        sizes: the results for other nodes so far, keyed by the node's `id`; this function adds its own.
        open_nodes: the `id` of each node that contains this node.

    Raises:
        DocumentError: the node contains itself.
    """
    known = sizes.get(id(node))
    if known is not None:
        return known
    if id(node) in open_nodes:
        raise DocumentError(f"the value at line {node.start_mark.line + 1} contains itself")
    open_nodes.add(id(node))
    size = 1
    for child in _children(node):
        size += _expanded(child, sizes, open_nodes)
    open_nodes.remove(id(node))
    sizes[id(node)] = size
    return size


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _repeated(root: yaml.Node) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields a pair for each key that is written twice in one map of a YAML document, at most MAX_REPEATED_NAMED.

    A pair has the key's field path and a sentence for the author. If aliases use a map several times, the path is that
    of the map's first use.
    """
    seen: set[int] = set()
    waiting: list[tuple[tuple[str | int, ...], yaml.Node]] = [((), root)]
    named = 0
    while waiting and named < MAX_REPEATED_NAMED:
        path, node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        inside: list[tuple[tuple[str | int, ...], yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            inside = [((*path, index), item) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            lines: dict[str, int] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                here = (*path, str(key.value))
                line = key.start_mark.line + 1
                if key.value in lines and key.tag != f"{_BASE_TAG}merge":
                    named += 1
                    first = lines[key.value]
                    yield here, f"{field_path(*here)}: written twice, in lines {first} and {line}; the last one counts"
                lines[key.value] = line
                inside.append((here, value))
        waiting += reversed(inside)
