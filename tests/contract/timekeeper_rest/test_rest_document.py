"""The requests in docs/reference/rest.md are taken as they are typed, and answered with the fields that stand there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.servers.rest_server import Answer, RestServer

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "rest.md"
SERVER = "$FAIRGPU_SERVER"
_EXAMPLE = re.compile(r"^\$ (curl (?:[^\n]*\\\n)*[^\n]*)\n(\{[^\n]*\})$", re.MULTILINE)
EXAMPLES = [(match[1].replace("\\\n", " "), match[2]) for match in _EXAMPLE.finditer(DOCUMENT.read_text())]


def typed(rest: RestServer, command: str) -> Answer:
    """Returns the answer that curl would get, for an admin."""
    words = shlex.split(command)
    headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    headers.pop("Authorization")
    (url,) = [word for word in words if word.startswith(SERVER)]
    token = rest.signer.person("admin")
    if "-d" not in words:
        return rest.ask("GET", url.removeprefix(SERVER), token, None, headers)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return rest.ask("POST", url.removeprefix(SERVER), token, words[words.index("-d") + 1].encode(), {**headers, **form})


def differences(shown: Any, found: Any, path: str = "") -> list[str]:
    """The fields that only one of two answers has; what is empty in one of them is not compared below."""
    if isinstance(shown, list) and isinstance(found, list):
        return differences(shown[0], found[0], f"{path}[0]") if shown and found else []
    if not (isinstance(shown, dict) and isinstance(found, dict) and shown and found):
        return []
    apart = [f"{path}.{key}" for key in shown.keys() ^ found.keys()]
    return apart + [each for key in shown.keys() & found.keys() for each in differences(shown[key], found[key], key)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[command.partition(SERVER)[2] for command, _ in EXAMPLES])
def test_an_example_is_answered_as_it_stands_there(rest: RestServer, example: tuple[str, str]) -> None:
    command, text = example
    shown, answer = json.loads(text), typed(rest, command)
    if "type" in shown:
        assert answer.document == shown
    else:
        assert answer.status in {200, 201}, answer.body
        assert differences(shown, answer.document) == []


def test_the_document_has_examples() -> None:
    assert len(EXAMPLES) >= 6
