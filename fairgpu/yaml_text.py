"""Reads YAML that a person wrote: a key that appears twice in a map is an error; PyYAML alone takes the last one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, for which two equal keys of a map are an error (YAML 1.2.2, section 3.2.1.3)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Returns the node of a map, after a check that no key is written twice in it.

        The check comes before `<<` adds the keys of other maps, which may repeat a key.

        Raises:
            yaml.constructor.ConstructorError: a key appears twice.
        """
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in first:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"{key.value} stands twice, first on line {first[key.value]}: write all that belongs to it under "
                    "one of the two",
                    key.start_mark,
                )
            first[key.value] = key.start_mark.line + 1
        return node


def load(text: str | bytes) -> Any:
    """Returns the one document of a text in YAML; None if the text has no document.

    Raises:
        yaml.YAMLError: the text is no YAML, holds two documents, or has a key twice in one map.
        ValueError: a value does not exist, such as the date `2026-02-30`.
        RecursionError: the document is nested too deeply.
    """
    with _faults_of_pyyaml():
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader


def load_all(text: str | bytes) -> list[Any]:
    """Returns all documents of a text in YAML, in order; an empty document is None.

    Raises:
        yaml.YAMLError: the text is no YAML, or has a key twice in one map.
        ValueError: a value does not exist, such as the date `2026-02-30`.
        RecursionError: a document is nested too deeply.
    """
    with _faults_of_pyyaml():
        return list(yaml.load_all(text, _Loader))


@contextmanager
def _faults_of_pyyaml() -> Iterator[None]:
    """Raises a YAMLError for the errors that PyYAML's own readers of `!!bool`, `!!timestamp` and `!!int` let out."""
    try:
        yield
    except (LookupError, AttributeError, TypeError) as error:
        raise yaml.YAMLError(f"a value is not of the type that its tag states: {error!r}") from error
