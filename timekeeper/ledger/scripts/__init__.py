"""The scripts that Redis runs, each without another command in between.

A script that changes an account checks everything before its first write, since Redis does not undo writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_DEFINITION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_NO_CODE = re.compile(r"--[^\n]*|'[^'\n]*'")
"""Matches a comment or a string: a word in them names no function."""

SHARED = ("amounts.lua", "hours.lua", "segments.lua", "pace.lua")


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a Lua script, and its SHA-1, under which Redis caches it."""

    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """Returns the Lua script NAME.lua, preceded by the shared functions that it calls.

    Redis creates each function in a script's text anew in every run, so the text has no function that is not called.

    Args:
        name: the script's file name without `.lua`.
    """
    own = files(__name__).joinpath(f"{name}.lua").read_text()
    needed, definitions, words = set[str](), _definitions(), _words(own)
    while missing := (words & definitions.keys()) - needed:
        needed |= missing
        words = {word for each in missing for word in _words(definitions[each])}
    text = "".join([definition for each, definition in definitions.items() if each in needed]) + own
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def _words(code: str) -> set[str]:
    return set(_WORD.findall(_NO_CODE.sub(" ", code)))


@cache
def _definitions() -> dict[str, str]:
    """Returns the text of each Lua function or constant that scripts share, keyed by name, in the order of SHARED."""
    shared = "".join(files(__name__).joinpath(file).read_text() for file in SHARED)
    begins = [(match[1], match.start()) for match in _DEFINITION.finditer(shared)]
    ends = [start for _, start in begins[1:]] + [len(shared)]
    return {each: shared[start:end] for (each, start), end in zip(begins, ends, strict=True)}
