"""Our protos against those of the kubelet that the tests run: the same names, the same numbers, the same types."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.control_plane.build import built
from tests.node.binaries import NODE

OURS = Path(__file__).parents[2] / "nodeagent" / "kubelet"


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


@pytest.mark.parametrize("name", ["deviceplugin.proto", "podresources.proto"])
def test_what_we_use_is_what_the_kubelet_has(name: str) -> None:
    ours = declared((OURS / name).read_text())
    theirs = declared((built(NODE, os.environ) / name).read_text())
    assert len(ours) > 5
    assert ours - theirs == set()
