"""Settings: a YAML file, the environment over it, and a start that stops at the first bad value, saying which.

A service declares its settings as sections of typed fields with the unit in each name. The field `stale_after_seconds`
in the group `states` of the section `webhook` stands in the file as

    webhook:
      states:
        stale_after_seconds: 300

and in the environment as `FAIRGPU_WEBHOOK_STATES_STALE_AFTER_SECONDS`. One file may serve all services: a service
reads its own sections and leaves the others alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

ENVIRONMENT_PREFIX = "FAIRGPU"
MAX_FILE_BYTES = 1 << 20

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)")
"""What the kubelet sets for each Service of the namespace; `FAIRGPU_WEBHOOK_PORT` is one of these."""


class SettingsError(ValueError):
    """A setting that cannot be used; the message names its key, what was given and what is allowed."""


class Section(BaseModel):
    """A group of settings: unknown keys are errors, values do not change once read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


SectionType = TypeVar("SectionType", bound=Section)


def load_settings(model: type[SectionType], environ: Mapping[str, str], file: Path | None = None) -> SectionType:
    """Reads a service's settings; each top-level field of the model is a section of the file.

    Args:
        model: the sections that the service reads.
        environ: the environment; its values win over the file's.
        file: the YAML file, where there is one.

    Raises:
        SettingsError: a value is of the wrong type or out of range, or a key is unknown.
    """
    document = _read_file(file) if file else {}
    values: dict[str, Any] = {key: value for key, value in document.items() if key in model.model_fields}
    for path, text in _environment(model, environ):
        _place(values, path, text)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error, model)) from error


def environment_name(path: tuple[str, ...]) -> str:
    """The variable that sets the field at a path of section, groups and name."""
    return "_".join((ENVIRONMENT_PREFIX, *path)).upper()


def fields(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields that hold values, groups taken apart."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, (*path, name))
        else:
            yield (*path, name)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingsError(f"{file}: larger than {MAX_FILE_BYTES} bytes")
        document = yaml.safe_load(data) or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{file}: given a {type(document).__name__}; allowed: a map of sections")
    return document


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
    """Text as it is, but lists and maps, which are written as in YAML's flow style: `[a, b]`, `{a: 1}`."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text


def _place(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *groups, name = path
    for group in groups:
        inner = values.get(group)
        values[group] = dict(inner) if isinstance(inner, dict) else {}
        values = values[group]
    values[name] = value


def _given(value: Any) -> str:
    """A value for people; of a group its keys alone, as a secret may stand among its values."""
    return f"a group with {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, dict) else repr(value)


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for fault in error.errors(include_url=False, include_context=False):
        path = tuple(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            lines.append(_unknown(path, model))
            continue
        given = _given(fault["input"])
        secret = any(word in path[-1] for word in ("password", "secret", "token")) if path else False
        shown = "a value that is not shown" if secret else given[:80]
        lines.append(f"{'.'.join(path)} ({environment_name(path)}): given {shown}; {fault['msg']}")
    return "\n".join(lines)


def _unknown(path: tuple[str, ...], model: type[BaseModel]) -> str:
    """Names the setting that may be meant: of the same group if one is close, else of the same name elsewhere."""
    known = list(fields(model))
    beside = {one[: len(path)][-1] for one in known if one[: len(path) - 1] == path[:-1]}
    close = difflib.get_close_matches(path[-1], beside, n=1)
    elsewhere = [one for one in known if one[-1] == path[-1]]
    meant = (*path[:-1], close[0]) if close else next(iter(elsewhere), None)
    hint = f"; write {'.'.join(meant)}" if meant else f"; allowed there: {', '.join(sorted(beside))}" if beside else ""
    return f"{'.'.join(path)}: there is no such setting{hint}"
