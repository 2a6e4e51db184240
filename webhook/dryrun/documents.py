"""Reads YAML documents as Kubernetes' tools do, with limits on aliases, and finds repeated keys.

`kubectl` reads YAML 1.1 as Go does: `1:30` and dates are text (https://github.com/kubernetes-sigs/yaml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from fairgpu.faults import field_path

MAX_EXPANDED: Final = 100_000
"""The most nodes of a document with its aliases expanded."""
MAX_GROWTH: Final = 10
"""The most expanded nodes of a longer document for each node as written."""
MAX_REPEATED_NAMED: Final = 16

_BASE_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?(?:0b[0-1_]+|0[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)


class DocumentError(ValueError):
    """A YAML document whose aliases make it too large, or that contains itself."""


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a text.

    Attributes:
        value: the content of the document.
        repeated: for each key that is repeated in one map, a pair of its field path and a sentence about it.
    """

    value: Any
    repeated: tuple[tuple[tuple[str | int, ...], str], ...]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without its numbers to the base of 60 and its dates."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag not in (f"{_BASE_TAG}int", f"{_BASE_TAG}float", f"{_BASE_TAG}timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_BASE_TAG}float", _FLOAT, list("-+0123456789."))
_Loader.add_implicit_resolver(f"{_BASE_TAG}int", _INTEGER, list("-+0123456789"))


def read_documents(text: str) -> Iterator[Document]:
    """Yields the YAML documents of a text.

    Raises:
        DocumentError: a document contains itself, or aliases make it too large.
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
    """Returns the number of nodes of a node with all its aliases expanded."""
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
    """Yields each key that a map of a YAML document repeats; an alias counts at its first place."""
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
