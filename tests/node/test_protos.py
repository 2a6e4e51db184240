"""Our protos against Kubernetes' own, of the versions that the tests run: the same names, numbers and types."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.control_plane.build import built
from tests.node.binaries import NODE

OURS = sorted((Path(__file__).parents[2] / "nodeagent").glob("*/*.proto"))


def declared(text: str) -> set[tuple[str, str]]:
    """(message or service, field or method) of a proto, with type and number, written in one way."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    found = set()
    for name, body in re.findall(r"(?:message|service)\s+(\w+)\s*\{((?:[^{}]|\{\s*\})*)\}", plain):
        for entry in re.findall(r"[^;{}]+", body):
            words = " ".join(entry.replace("(", " ( ").replace(")", " ) ").split())
            if words:
                found.add((name, words))
    return found


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_part_of_the_protos_is_what_kubernetes_has(path: Path) -> None:
    ours = declared(path.read_text())
    theirs = declared((built(NODE, os.environ) / path.name).read_text())
    messages = set(re.findall(r"^(?:message|service) (\w+) \{\n", path.read_text(), re.MULTILINE))
    assert {name for name, _ in ours} == messages, "each message with a field, and each service"
    assert ours - theirs == set()
