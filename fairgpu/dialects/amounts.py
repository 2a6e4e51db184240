"""Reads the amounts of extended resources, which are whole numbers, equal in requests and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from fairgpu.dialects.reading import Container
from fairgpu.faults import Fault, show
from fairgpu.quantity import QuantityError, in_memory_units, memory_unit_name, parse_count

_MISSING: Final[Any] = object()
_NO_MEMORY: Mapping[str, int] = MappingProxyType({})
_PERCENT = re.compile(r"([0-9]{1,9}) ?%")


class Units:
    """The units in which resources count.

    Attributes:
        memory_mib: the size of one unit in MiB, keyed by the resources that count memory.
        percentages: the resources that count in percent.
    """

    def __init__(self, memory_mib: Mapping[str, int], percentages: Collection[str]) -> None:
        self.memory_mib: Final = memory_mib
        self.percentages: Final = percentages


class Amounts:
    """A container's amounts of some resources.

    Attributes:
        values: the valid amounts, keyed by resource.
        faults: the faults of the invalid amounts.
    """

    def __init__(self, values: dict[str, int], faults: tuple[Fault, ...]) -> None:
        self.values: Final = values
        self.faults: Final = faults


def read_amounts(
    container: Container,
    resources: Iterable[str],
    memory_units_mib: Mapping[str, int] = _NO_MEMORY,
    percentages: Collection[str] = (),
) -> Amounts:
    """Returns a container's amounts of some resources, and the faults of invalid ones.

    Kubernetes wants the limit of an extended resource, and a request equal to it if there is a request
    (https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources).

    Args:
        container: the container, with its requests and limits.
        resources: the names of the resources to read.
        memory_units_mib: the size of one unit in MiB, keyed by the resources that count memory. By this size, the fault
            of an amount such as `2Gi` names the number to write.
        percentages: the resources that count in percent. For these, the fault of an amount such as `30%` names the
            number to write.
    """
    values: dict[str, int] = {}
    faults: list[Fault] = []
    units = Units(memory_units_mib, percentages)
    for resource in resources:
        if not container.names(resource):
            continue
        amount = _read_one(container, resource, units)
        if isinstance(amount, Fault):
            faults.append(amount)
        else:
            values[resource] = amount
    return Amounts(values, tuple(faults))


def _read_one(container: Container, resource: str, units: Units) -> int | Fault:
    limit = container.limits.get(resource, _MISSING)
    request = container.requests.get(resource, _MISSING)
    if limit is _MISSING:
        return Fault(
            path=container.request_path(resource),
            given=f"{show(request)} without a limit",
            allowed="an extended resource has a limit, and its request equals it",
            instead=f"resources.limits[{resource}]: {show(request)}, and leave the request out",
        )
    parsed = _parse(container.limit_path, resource, limit, units)
    if isinstance(parsed, Fault) or request is _MISSING or (type(request) is type(limit) and request == limit):
        return parsed
    parsed_request = _parse(container.request_path, resource, request, units)
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


def _parse(path_of: Callable[[str], str], resource: str, value: Any, units: Units) -> int | Fault:
    try:
        return parse_count(value)
    except QuantityError as error:
        return Fault(
            path=path_of(resource),
            given=f"{show(value)} ({error})",
            allowed="a whole number from 0",
            instead=_in_unit(resource, value, units) or 'a number such as "1"',
        )


def _in_unit(resource: str, value: Any, units: Units) -> str | None:
    """Returns what a fault advises to write for an amount with a unit, such as `2Gi` or `30%`: the bare number.

    Returns None if the value has no such unit, or if the resource counts something else.

    Args:
        resource: the name of the resource.
        value: the amount as the author wrote it, as JSON.
        units: the units in which resources count.
    """
    if not isinstance(value, str):
        return None
    percent = _PERCENT.fullmatch(value.strip()) if resource in units.percentages else None
    if percent is not None:
        return f'"{int(percent[1])}", as the resource counts in percent'
    mib = units.memory_mib.get(resource)
    amount = None if mib is None else in_memory_units(value, mib)
    if mib is None or amount is None:
        return None
    return f'"{amount}", as the resource counts in {memory_unit_name(mib)}'
