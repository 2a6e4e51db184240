"""Finds settings by which two servers of one service, or of one pod, listen on the same port."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Keys = tuple[str, ...]
"""The path of a setting: its keys in the file, from the section on."""

ANY_FREE = 0
"""The port number by which the kernel is asked for any free port; several servers may be set to it."""


@dataclass(frozen=True, slots=True)
class Listens:
    """Marks a setting as the port of a server.

    Attributes:
        host: the name of the setting in the same group that holds the address on which the server listens.
    """

    host: str


@dataclass(frozen=True, slots=True)
class _Listener:
    path: Keys
    host: str
    port: int
    default: Any


def shared_ports(settings: BaseModel, variables: Mapping[Keys, str]) -> Iterator[str]:
    """Yields a message for each setting by which a server would listen on the port of another server.

    The operating system refuses the second of two servers on one port, if both have the same address, or one of them
    has all addresses of the machine. The refusal comes late, when the first server runs already. All servers of a
    section are compared, since their containers are in one pod.

    Args:
        settings: the settings of a service, whose ports are marked with `Listens`.
        variables: the name of the environment variable of each setting, keyed by the setting's path.
    """
    listeners = [found for path in variables if (found := _listener(settings, path)) is not None]
    taken = {listener.port for listener in listeners}
    for place, second in enumerate(listeners):
        first = next((other for other in listeners[:place] if _same(other, second)), None)
        if first is not None:
            changed = first if second.default in taken and first.default not in taken else second
            free = next(port for port in itertools.count(changed.default) if port not in taken)
            yield (
                f"{_named(first.path, variables)}, {_named(second.path, variables)}: given {second.port} for both; "
                f"allowed: a port of its own for each, since two servers cannot listen on one; "
                f"write another for one of them, such as {free} for {'.'.join(changed.path)}"
            )


def _listener(settings: BaseModel, path: Keys) -> _Listener | None:
    group: Any = settings
    for key in path[:-1]:
        group = getattr(group, key)
    info = type(group).model_fields[path[-1]]
    mark = next((one for one in info.metadata if isinstance(one, Listens)), None)
    port = getattr(group, path[-1])
    if mark is None or port == ANY_FREE:
        return None
    return _Listener(path, getattr(group, mark.host), port, info.default)


def _same(one: _Listener, other: _Listener) -> bool:
    """Returns whether two servers have the same port and overlapping addresses.

    Addresses overlap if they are equal, or if one of them stands for every address of the machine.
    """
    return one.port == other.port and (one.host == other.host or _is_every(one.host) or _is_every(other.host))


def _is_every(host: str) -> bool:
    """Returns whether an address stands for every address of the machine: an empty one, `0.0.0.0` or `::`."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _named(path: Keys, variables: Mapping[Keys, str]) -> str:
    return f"{'.'.join(path)} ({variables[path]})"
