"""Reads the amounts of extended resources: limit and request agree, and both are whole numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fairgpu.dialects.reading import Container
from fairgpu.faults import Fault, show
from fairgpu.quantity import QuantityError, in_memory_units, memory_unit_name, parse_count

_MISSING: Final[Any] = object()
_NO_MEMORY: Mapping[str, int] = MappingProxyType({})
_PERCENT = re.compile(r"([0-9]{1,9}) ?%")


class Unit(NamedTuple):
    """What one of a resource is: so many MiB, one percent, or neither."""

    mib: int | None
    percent: bool


class Amounts:
    """The amounts that a container gives, by resource, and what is wrong with the others."""

    def __init__(self, values: dict[str, int], faults: tuple[Fault, ...]) -> None:
        self.values: Final = values
        self.faults: Final = faults


def read_amounts(
    container: Container,
    resources: Iterable[str],
    memory_units_mib: Mapping[str, int] = _NO_MEMORY,
    percentages: Collection[str] = (),
) -> Amounts:
    """The whole-number amounts of the resources that the container names.

    `memory_units_mib` says what one unit of a resource is in MiB, so that who writes `2Gi` is told the number;
    `percentages` are the resources that count in percent, so that who writes `30%` is.

    Kubernetes wants the limit of an extended resource, and a request equal to it where one is given
    (https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources).
    """
    values: dict[str, int] = {}
    faults: list[Fault] = []
    for resource in resources:
        if not container.names(resource):
            continue
        amount = _read_one(container, resource, Unit(memory_units_mib.get(resource), resource in percentages))
        if isinstance(amount, Fault):
            faults.append(amount)
        else:
            values[resource] = amount
    return Amounts(values, tuple(faults))


def _read_one(container: Container, resource: str, unit: Unit) -> int | Fault:
    limit = container.limits.get(resource, _MISSING)
    request = container.requests.get(resource, _MISSING)
    if limit is _MISSING:
        return Fault(
            path=container.request_path(resource),
            given=f"{show(request)} without a limit",
            allowed="an extended resource has a limit, and its request equals it",
            instead=f"resources.limits[{resource}]: {show(request)}, and leave the request out",
        )
    parsed = _parse(container.limit_path, resource, limit, unit)
    if isinstance(parsed, Fault) or request is _MISSING or (type(request) is type(limit) and request == limit):
        return parsed
    parsed_request = _parse(container.request_path, resource, request, unit)
    if isinstance(parsed_request, Fault):
        return parsed_request
    if parsed_request != parsed:
        return Fault(
            path=container.request_path(resource),
            given=show(request),
            allowed=f"the limit's amount, {parsed}, as for every extended resource",
            instead="the request equal to the limit, or no request",
        )
    return parsed


def _parse(path_of: Callable[[str], str], resource: str, value: Any, unit: Unit) -> int | Fault:
    try:
        return parse_count(value)
    except QuantityError as error:
        return Fault(
            path=path_of(resource),
            given=f"{show(value)} ({error})",
            allowed="a whole number from 0",
            instead=_in_unit(value, unit) or 'a number such as "1"',
        )


def _in_unit(value: Any, unit: Unit) -> str | None:
    """What the author most likely means, in the resource's own unit."""
    if not isinstance(value, str):
        return None
    percent = _PERCENT.fullmatch(value.strip()) if unit.percent else None
    if percent is not None:
        return f'"{int(percent[1])}", as the resource counts in percent'
    units = None if unit.mib is None else in_memory_units(value, unit.mib)
    return (
        None
        if units is None or unit.mib is None
        else (f'"{units}", as the resource counts in {memory_unit_name(unit.mib)}')
    )
