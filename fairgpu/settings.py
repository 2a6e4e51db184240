"""Reads settings from a YAML file and the environment; the first invalid value stops the start with a message.

A service declares its settings as sections of typed fields with the unit in each name. The field `stale_after_seconds`
in the group `states` of the section `webhook` is written in the file as

    webhook:
      states:
        stale_after_seconds: 300

and in the environment as `FAIRGPU_WEBHOOK_STATES_STALE_AFTER_SECONDS`. One file may serve all services: a service
reads its own sections and ignores the others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fairgpu.commands import CommandError

USUAL_FILE = Path("/etc/fairgpu/settings.yaml")
"""The file of a service that is not given another one."""
ENVIRONMENT_PREFIX = "FAIRGPU"
MAX_FILE_BYTES = 1 << 20

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)")
"""Variables that the kubelet sets for each Service of the namespace; `FAIRGPU_WEBHOOK_PORT` is one of these."""

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
"""The advice for faults that pydantic states in Python's terms, by type (https://docs.pydantic.dev/latest/errors/)."""


class SettingsError(CommandError):
    """A setting of a service is invalid; the message names its key, the given value and the allowed ones."""


class Section(BaseModel):
    """The base of a group of settings: unknown keys are errors, and values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


SectionType = TypeVar("SectionType", bound=Section)


def load_settings(
    model: type[SectionType], environ: Mapping[str, str], file: Path | None = None, usual: Path | None = None
) -> SectionType:
    """Reads a service's settings from a YAML file and the environment.

    Args:
        model: the type of the settings; each of its fields is a section of the file.
        environ: the environment; its values win over the file's.
        file: the YAML file that the caller names; None if it names none.
        usual: the file that is read if `file` is None and this one exists; None for none.

    Raises:
        SettingsError: a value is of the wrong type or out of range, a key is unknown, or a section is misspelt.
    """
    read = file or (usual if usual is not None and usual.exists() else None)
    document = _read_file(read) if read else {}
    values: dict[str, Any] = {key: value for key, value in document.items() if key in model.model_fields}
    _refuse_misspelt(document, model.model_fields)
    for path, text in _environment(model, environ):
        _place(values, path, text)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error, list(fields(model)))) from error


def environment_name(path: tuple[str, ...]) -> str:
    """Returns the name of the environment variable that sets a setting.

    Args:
        path: the setting's keys in the file, such as `("webhook", "states", "stale_after_seconds")`.
    """
    return "_".join((ENVIRONMENT_PREFIX, *path)).upper()


def fields(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of each setting of a service, as its keys in the file; settings in groups are included.

    Args:
        model: the type of the settings, or of a group of them.
        path: the keys of that group in the file; empty for all settings.
    """
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, (*path, name))
        else:
            yield (*path, name)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
    try:
        document = yaml.safe_load(data) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{file}: given a {type(document).__name__}; allowed: a map of sections")
    return document


def _refuse_misspelt(sections: Iterable[Any], known: Iterable[str]) -> None:
    """Refuses a section whose name is nearly one of this service's; other services' sections are ignored."""
    own = set(known)
    for section in sections:
        close = difflib.get_close_matches(str(section), own, n=1, cutoff=0.8)
        if close and section not in own:
            raise SettingsError(f"{section}: there is no such section; write {close[0]}")


def _environment(model: type[BaseModel], environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    known = {environment_name(path): path for path in fields(model)}
    sections = tuple(f"{environment_name((section,))}_" for section in model.model_fields)
    for name in sorted(environ):
        if name in known:
            yield known[name], _value(environ[name])
        elif name.startswith(sections) and not _SERVICE_LINK.search(name):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; write {close[0]}" if close else ""
            raise SettingsError(f"{name}: there is no such setting{hint}")


def _value(text: str) -> Any:
    """Parses a variable: lists and maps in YAML's flow style (`[a, b]`, `{a: 1}`), anything else as text."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            return text
    return text


def _place(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *groups, name = path
    for group in groups:
        inner = values.get(group)
        values[group] = dict(inner) if isinstance(inner, dict) else {}
        values = values[group]
    values[name] = value


def _explain(error: ValidationError, known: Sequence[tuple[str, ...]]) -> str:
    """Returns one line for each fault: the key, the given value, the allowed ones, and the setting to use instead."""
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
    """Returns a value for people; of a group only its keys, since its values may be secrets."""
    return f"a group with {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, dict) else repr(value)


def _unknown(path: tuple[str, ...], known: Sequence[tuple[str, ...]]) -> str:
    """Returns the setting that may be meant: of the same group if one is close, else of the same name elsewhere."""
    beside = {one[: len(path)][-1] for one in known if one[: len(path) - 1] == path[:-1]}
    close = difflib.get_close_matches(path[-1], beside, n=1)
    elsewhere = [one for one in known if one[-1] == path[-1]]
    meant = (*path[:-1], close[0]) if close else next(iter(elsewhere), None)
    hint = f"; write {'.'.join(meant)}" if meant else f"; allowed there: {', '.join(sorted(beside))}" if beside else ""
    return f"{'.'.join(path)}: there is no such setting{hint}"
