"""Reads settings from a YAML file and the environment; an invalid value stops the start with a message.

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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from fairgpu import yaml_text
from fairgpu.commands import CommandError
from fairgpu.listeners import shared_ports
from fairgpu.setting_faults import explain

USUAL_FILE = Path("/etc/fairgpu/settings.yaml")
"""The settings file of a service that is started without the name of one."""
ENVIRONMENT_PREFIX = "FAIRGPU"
MAX_FILE_BYTES = 1 << 20

_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT(_.*)?)|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)")
"""Variables that the kubelet sets for each Service of the namespace; `FAIRGPU_WEBHOOK_PORT` is one of these."""

SECTIONS = ("webhook", "timekeeper", "scheduler", "nodeagent", "existing")
"""The sections that a settings file may have; each service reads its own, and knows the names of all."""


class SettingsError(CommandError):
    """A setting is invalid, or the settings file cannot be read; the message names the key or the file, and why."""


class Section(BaseModel):
    """The base of a group of settings: unknown keys are errors, and values do not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


SectionType = TypeVar("SectionType", bound=Section)


def load_settings(
    model: type[SectionType], environ: Mapping[str, str], file: Path | None = None, usual: Path | None = None
) -> SectionType:
    """Reads and checks a service's settings from a YAML file and the environment.

    Args:
        model: the type of the settings; each of its fields is a section of the file.
        environ: the environment; its values win over the file's.
        file: the YAML file, which must exist; None to read `usual`.
        usual: the YAML file that is read if `file` is None; it may be missing. None to read no file.

    Raises:
        SettingsError: the file cannot be read or is no YAML, a value is of the wrong type or out of range, a key is
            unknown or appears twice, a section of the file belongs to no service, or two servers would listen on one
            port.
    """
    read = file or (usual if usual is not None and usual.exists() else None)
    document = _read_file(read) if read else {}
    values: dict[str, Any] = {key: value for key, value in document.items() if key in model.model_fields}
    _refuse_unknown(document, model)
    for path, text in _environment(model, environ):
        _place(values, path, text)
    variables = {path: environment_name(path) for path in fields(model)}
    try:
        settings = model.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error, model, variables)) from error
    if faults := list(shared_ports(settings, variables)):
        raise SettingsError("\n".join(faults))
    return settings


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
        document = yaml_text.load(data) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{file}: given a {type(document).__name__}; allowed: a map of sections")
    return document


def _refuse_unknown(sections: Iterable[Any], model: type[BaseModel]) -> None:
    """Raises SettingsError if a section of the file belongs to no service: its settings would have no effect.

    Args:
        sections: the names of the sections in the file.
        model: the type of the settings of the service that reads the file; each of its fields is a section.
    """
    allowed = list(dict.fromkeys((*model.model_fields, *SECTIONS)))
    for section in sections:
        if section in allowed:
            continue
        close = difflib.get_close_matches(str(section), allowed, n=1, cutoff=0.8)
        within = [path for path in fields(model) if str(section) in path[1:]]
        meant = close[0] if close else ".".join(within[0][: within[0].index(str(section)) + 1]) if within else ""
        hint = f"write {meant}" if meant else f"allowed: {', '.join(allowed)}"
        raise SettingsError(f"{section}: there is no such section; {hint}")


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
    """Parses the text of an environment variable: YAML's lists and maps (`[a, b]`, `{a: 1}`), anything else as text."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return yaml_text.load(text)
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
