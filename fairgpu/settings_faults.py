"""What is said of settings that cannot be used: the key, what was given, what is allowed, what may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

Path = tuple[str, ...]
"""A setting's section, groups and name."""

_SECRETS = ("password", "secret", "token")
_MAX_SHOWN = 80
_ALLOWED = {
    "tuple_type": "a list, such as [a, b]",
    "list_type": "a list, such as [a, b]",
    "dict_type": "a map, such as {a: 1}",
    "model_type": "a group of settings",
    "model_attributes_type": "a group of settings",
    "string_type": "text; write a number in quotes",
}
"""What pydantic says in terms of Python, by the type of its fault (https://docs.pydantic.dev/latest/errors/)."""


def explain(error: ValidationError, known: Sequence[Path], environment_name: Callable[[Path], str]) -> str:
    """One line for each fault.

    Args:
        error: what the model says.
        known: the paths of all settings that there are.
        environment_name: the variable that sets the field at a path.
    """
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        path = tuple(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            lines.append(_unknown(path, known))
            continue
        secret = any(word in path[-1] for word in _SECRETS) if path else False
        shown = "a value that is not shown" if secret else _given(fault["input"])[:_MAX_SHOWN]
        allowed = _ALLOWED.get(fault["type"])
        reason = f"allowed: {allowed}" if allowed else fault["msg"].removeprefix("Value error, ")
        lines.append(f"{'.'.join(path)} ({environment_name(path)}): given {shown}; {reason}")
    return "\n".join(lines)


def _given(value: Any) -> str:
    """A value for people; of a group its keys alone, as a secret may stand among its values."""
    return f"a group with {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, dict) else repr(value)


def _unknown(path: Path, known: Sequence[Path]) -> str:
    """Names the setting that may be meant: of the same group if one is close, else of the same name elsewhere."""
    beside = {one[: len(path)][-1] for one in known if one[: len(path) - 1] == path[:-1]}
    close = difflib.get_close_matches(path[-1], beside, n=1)
    elsewhere = [one for one in known if one[-1] == path[-1]]
    meant = (*path[:-1], close[0]) if close else next(iter(elsewhere), None)
    hint = f"; write {'.'.join(meant)}" if meant else f"; allowed there: {', '.join(sorted(beside))}" if beside else ""
    return f"{'.'.join(path)}: there is no such setting{hint}"
