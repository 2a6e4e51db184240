"""Says for a person what is wrong with a setting: its key, the given value, the allowed values, and what to write."""

from __future__ import annotations

import difflib
import enum
import typing
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Keys = tuple[str, ...]
"""The path of a setting: its keys in the file, from the section on."""

TIME = "a time with its offset, such as 2026-01-01T00:00:00Z"
"""The times that a setting may have, as a message names them."""
_BOUNDS = ((Ge, "ge", "from"), (Gt, "gt", "above"), (Le, "le", "to"))
"""The kinds of bounds of a number, with their attribute and their word."""

_MAX_SHOWN = 80
_NUMBERS = {int: "a whole number", float: "a number", Decimal: "a number"}
_OF_NUMBERS = ("greater_than", "less_than", "int_", "float_", "decimal_")
_ALLOWED = {
    "tuple_type": "a list, such as [a, b]",
    "list_type": "a list, such as [a, b]",
    "dict_type": "a map, such as {a: 1}",
    "string_type": "text; write a number in quotes",
    "bool_type": "true, false",
    "bool_parsing": "true, false",
    "path_type": "a path in quotes",
    "ip_any_network": "a network without bits behind its prefix, such as 10.0.0.0/24",
    "timezone_aware": TIME,
    "datetime_type": TIME,
    "datetime_parsing": TIME,
    "datetime_from_date_parsing": TIME,
    "finite_number": "a finite number",
    "too_short": "a list of at least one item, such as [a]",
    "string_too_short": "text that is not empty",
}
"""The advice for faults that pydantic states in Python's terms, by type (https://docs.pydantic.dev/latest/errors/)."""


def explain(error: ValidationError, model: type[BaseModel], variables: Mapping[Keys, str]) -> str:
    """Returns one line for each fault: the key, the given value, the allowed values, and what to write.

    A list that is too short only because its one item is invalid has the line of the item alone.

    Args:
        error: the faults that pydantic has found in the settings.
        model: the type of the settings that were read.
        variables: the names of the environment variables, keyed by the path of the setting that each sets.
    """
    faults = error.errors(include_url=False)
    paths = [fault["loc"] for fault in faults]
    lines = []
    for fault, path in zip(faults, paths, strict=True):
        # A list whose one item is wrong is "too short" as well, for it is empty without the item.
        if fault["type"] == "too_short" and any(other[: len(path)] == path != other for other in paths):
            continue
        lines.append(_line(fault, tuple(str(part) for part in path), model, variables))
    return "\n".join(lines)


def words(info: FieldInfo) -> tuple[str, ...]:
    """Returns the words that a setting may have as its value (Literal, Enum or bool); empty for any other type."""
    annotation = info.annotation
    if get_origin(annotation) is Literal:
        return tuple(str(word) for word in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return tuple(str(member.value) for member in annotation)
    return ("true", "false") if annotation is bool else ()


def bounds(info: FieldInfo) -> str:
    """Returns the bounds of a setting that is a number, such as `from 1 to 64`; an empty text if it has none."""
    found = [
        (word, getattr(bound, name))
        for bound in info.metadata
        for kind, name, word in _BOUNDS
        if isinstance(bound, kind)
    ]
    return " ".join(f"{word} {limit}" for word, limit in found)


def _line(fault: ErrorDetails, path: Keys, model: type[BaseModel], variables: Mapping[Keys, str]) -> str:
    if fault["type"] == "extra_forbidden":
        return f"{'.'.join(path)}: there is no such setting{_meant(path, model, tuple(variables))}"
    of_key = path[-1:] == ("[key]",)
    path = path[:-1] if of_key else path
    holder = next((variables[path[:end]] for end in range(len(path), 0, -1) if path[:end] in variables), None)
    name = f"{'.'.join(path)} ({holder})" if holder else ".".join(path)
    secret = _bare(_found(model, path)[0]) is SecretStr or "password" in "".join(path[-1:])
    missing = fault["type"] == "missing"
    shown = "a value that is not shown" if secret else "nothing" if missing else _given(fault["input"])[:_MAX_SHOWN]
    return f"{name}: given {shown}{' as a key' if of_key else ''}; {_reason(fault, path, model)}"


def _reason(fault: ErrorDetails, path: Keys, model: type[BaseModel]) -> str:
    if fault["type"] == "value_error":
        return fault["msg"].removeprefix("Value error, ")
    return f"allowed: {_allowed(fault, path, model)}"


def _allowed(fault: ErrorDetails, path: Keys, model: type[BaseModel]) -> str:
    annotation, info = _found(model, path)
    kind, context = fault["type"], fault.get("ctx", {})
    number, group = _number(annotation, info), _group(annotation)
    answers = {
        "missing": f"{number or 'a value'}; write it, since it has no default",
        "model_type": f"a group of settings: {', '.join(sorted(group.model_fields)) if group else ''}",
        "decimal_max_digits": f"{number} with at most {context.get('max_digits')} digits",
        "string_pattern_mismatch": f"text that matches {context.get('pattern')}{_such_as(model, path)}",
        "string_too_long": f"text of at most {context.get('max_length')} letters",
        "too_long": f"a list of at most {context.get('max_length')} items",
        **_ALLOWED,
    }
    if number and kind not in answers and kind.startswith(_OF_NUMBERS):
        return number
    if info is not None and kind in {"literal_error", "enum"}:
        return ", ".join(word or '""' for word in words(info))
    return answers.get(kind, fault["msg"])


def _number(annotation: Any, info: FieldInfo | None) -> str:
    """Returns which numbers a setting may have, such as `a whole number from 1 to 64`; empty if it is no number.

    Args:
        annotation: the type of the setting.
        info: the setting's field in the model, with the bounds; None for no bounds.
    """
    name = next((text for kind, text in _NUMBERS.items() if _bare(annotation) is kind), "")
    return f"{name} {bounds(info)}".rstrip() if name and info is not None else name


def _given(value: Any) -> str:
    """Returns a given value as text for a message; of a map only the keys, since its values are perhaps secrets."""
    if isinstance(value, dict):
        return f"a group with {', '.join(map(str, value)) or 'nothing'}"
    return "nothing" if value is None else repr(value)


def _meant(path: Keys, model: type[BaseModel], known: Sequence[Keys]) -> str:
    """Returns the end of a message about an unknown key: the setting that the key perhaps means, else its group's keys.

    The text is empty if neither is known.

    Args:
        path: the unknown key's path in the file.
        model: the type of the settings that were read.
        known: the paths of all settings.
    """
    group = _group(_found(model, path[:-1])[0])
    beside = sorted(group.model_fields) if group else []
    name = path[-1]
    close = difflib.get_close_matches(name, beside, n=1) or [one for one in beside if one.startswith(f"{name}_")]
    if close:
        return f"; write {'.'.join((*path[:-1], close[0]))}"
    # In the same section: a name such as `url` is one of several groups, and the first of them is a guess.
    elsewhere = [one for one in known if one[-1] == name]
    if len(elsewhere) == 1 or (elsewhere and len(path) <= 2):
        return f"; write {'.'.join(elsewhere[0])}"
    return f"; allowed there: {', '.join(beside)}" if beside else ""


def _found(model: type[BaseModel], path: Sequence[str]) -> tuple[Any, FieldInfo | None]:
    """Returns the type of the setting at a path, and its field in the model.

    The field is None if the path leads to an item of a list or a map. Both are None if the model has no such path.
    """
    annotation: Any = model
    info: FieldInfo | None = None
    for part in path:
        group = _group(annotation)
        if group is not None and part in group.model_fields:
            info = group.model_fields[part]
            annotation = info.annotation
        else:
            info = None
            annotation = next(_items(annotation), None)
    return annotation, info


def _items(annotation: Any) -> Iterator[Any]:
    """Yields one type: that of a list's items, or of a map's values; yields nothing for a type that is neither."""
    annotation = _bare(annotation)
    arguments = [one for one in get_args(annotation) if one is not Ellipsis]
    if get_origin(annotation) in {tuple, list, dict} and arguments:
        yield arguments[-1]


def _group(annotation: Any) -> type[BaseModel] | None:
    annotation = _bare(annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _bare(annotation: Any) -> Any:
    """Returns the type T of `Annotated[T, ...]` and of `T | None`; any other type unchanged."""
    if get_origin(annotation) is typing.Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {UnionType, typing.Union}:
        return _bare(next(one for one in get_args(annotation) if one is not type(None)))
    return annotation


def _such_as(model: type[BaseModel], path: Keys) -> str:
    """Returns `, such as VALUE` with a value that is valid for a setting: the setting's example, else its default.

    Returns an empty text for a setting that has neither, or whose value is no text.
    """
    for end in range(len(path), 0, -1):
        info = _found(model, path[:end])[1]
        if info is None:
            continue
        value = info.examples[0] if info.examples else info.get_default(call_default_factory=False)
        first = value[0] if isinstance(value, tuple | list) and value else value
        return f", such as {first}" if first and isinstance(first, str | Path) else ""
    return ""
