"""The scripts that Redis runs, each atomic: it checks everything before its first write."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

SHARED = ("amounts.lua", "hours.lua", "segments.lua", "pace.lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the name under which Redis caches it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script NAME.lua, with the shared functions before it."""
    folder = files(__name__)
    text = "".join(folder.joinpath(file).read_text() for file in (*SHARED, f"{name}.lua"))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
