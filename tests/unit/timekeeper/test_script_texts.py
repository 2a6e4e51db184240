"""The text of a script that Redis runs: its own code behind the shared functions that it calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from timekeeper.ledger import scripts
from timekeeper.ledger.scripts import SHARED, script

FOLDER = Path(scripts.__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.lua") if file.name not in SHARED)
DEFINED = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_no_shared_function_that_its_code_does_not_use(name: str) -> None:
    text, own = script(name).text, (FOLDER / f"{name}.lua").read_text()
    code = re.sub(r"--.*|'[^'\n]*'", "", text)
    shared = DEFINED.findall(text.removesuffix(own))
    assert [each for each in shared if len(re.findall(rf"\b{each}\b", code)) < 2] == []
