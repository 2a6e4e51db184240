"""Reads the amounts of extended resources: limit and request agree, and both are whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from fairgpu.dialects.reading import Container
from fairgpu.faults import Fault, show
from fairgpu.quantity import QuantityError, parse_count, parse_quantity

_MISSING: Final[Any] = object()
_NO_MEMORY: Mapping[str, int] = MappingProxyType({})
_MIB = 2**20


class Amounts:
    """The amounts that a container gives, by resource, and what is wrong with the others."""

    def __init__(self, values: dict[str, int], faults: tuple[Fault, ...]) -> None:
        self.values: Final = values
        self.faults: Final = faults


def read_amounts(
    container: Container, resources: Iterable[str], memory_units_mib: Mapping[str, int] = _NO_MEMORY
) -> Amounts:
    """The whole-number amounts of the resources that the container names.

    `memory_units_mib` says what one unit of a resource is in MiB, so that who writes `2Gi` is told the number.

    Kubernetes wants the limit of an extended resource, and a request equal to it where one is given
    (https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources).
    """
    values: dict[str, int] = {}
    faults: list[Fault] = []
    for resource in resources:
        if not container.names(resource):
            continue
        amount = _read_one(container, resource, memory_units_mib.get(resource))
        if isinstance(amount, Fault):
            faults.append(amount)
        else:
            values[resource] = amount
    return Amounts(values, tuple(faults))


def _read_one(container: Container, resource: str, unit_mib: int | None) -> int | Fault:
    limit = container.limits.get(resource, _MISSING)
    request = container.requests.get(resource, _MISSING)
    if limit is _MISSING:
        return Fault(
            path=container.request_path(resource),
            given=f"{show(request)} without a limit",
            allowed="an extended resource has a limit, and its request equals it",
            instead=f"resources.limits[{resource}]: {show(request)}, and leave the request out",
        )
    parsed = _parse(container.limit_path, resource, limit, unit_mib)
    if isinstance(parsed, Fault) or request is _MISSING or (type(request) is type(limit) and request == limit):
        return parsed
    parsed_request = _parse(container.request_path, resource, request, unit_mib)
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


def _parse(path_of: Callable[[str], str], resource: str, value: Any, unit_mib: int | None) -> int | Fault:
    try:
        return parse_count(value)
    except QuantityError as error:
        return Fault(
            path=path_of(resource),
            given=f"{show(value)} ({error})",
            allowed="a whole number from 0",
            instead=_in_units(value, unit_mib) or 'a number such as "1"',
        )


def _in_units(value: Any, unit_mib: int | None) -> str | None:
    """What an amount of bytes is in the resource's own unit, rounded up."""
    if unit_mib is None or not isinstance(value, str) or not value.endswith("i"):
        return None
    try:
        units = -(-parse_quantity(value) // (unit_mib * _MIB))
    except QuantityError:
        return None
    unit = {1: "MiB", 1024: "GiB"}.get(unit_mib, f"blocks of {unit_mib} MiB")
    return f'"{units}", as the resource counts in {unit}' if units > 0 else None
