"""What use can be asked for by, and how that stands in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from timekeeper.metering.attribution import Attribution

UNKNOWN = "__unallocated__"
"""What stands for a value that nothing tells, as in OpenCost."""
IDLE = "__idle__"
"""What stands for capacity that nobody held, as in OpenCost."""
PLAIN = ("namespace", "budget", "model", "node", "owner", "user")
LABEL = "label:"
NOBODY = '[""]'
"""What a checkpoint is put down to: nobody knows any more who spent it."""
Key = tuple[str, ...]
"""The values of some dimensions, in the order in which they were asked for."""
_ABSENT: tuple[Any, ...] = ("", "", "", "", {})


class Dimensions(NamedTuple):
    """What an hour's use is put down to; labels are (key, value) pairs, and an empty value is not known."""

    namespace: str
    node: str = ""
    model: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def dimensions(namespace: str, node: str, attribution: Attribution | None) -> str:
    """What an hour's use is put down to, as the store holds it."""
    return _encoded(dimension_values(namespace, node, attribution))


def dimension_values(namespace: str, node: str, attribution: Attribution | None) -> list[Any]:
    """The same as the list that is stored."""
    found = attribution or Attribution()
    return values_of(Dimensions(namespace, node, found.model, found.owner, found.user, found.labels))


def values_of(found: Dimensions) -> list[Any]:
    """Dimensions as the list that is stored: what is not known at its end is left out."""
    values: list[Any] = [*found[:5], dict(found.labels)]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def of_values(values: Sequence[Any]) -> Dimensions:
    """What `values_of` listed; values of later writers are passed over."""
    namespace, node, model, owner, user, labels = [*values, *_ABSENT[len(values) - 1 :]][:6]
    return Dimensions(namespace, node, model, owner, user, tuple(sorted(labels.items())))


def asks_for_details(names: Iterable[str]) -> bool:
    """Whether anything is asked for without which folded days are kept, too."""
    return not {*names} <= {"namespace", "budget", "model"}


def asks_for_sums(names: Iterable[str]) -> bool:
    """Whether nothing else is asked for than what sums over many hours are kept by."""
    return {*names} <= {"namespace", "budget", "model", "user"}


def keys_of(
    names: Sequence[str], account: str, found: Sequence[Sequence[Any]], namespaces: frozenset[str] | None = None
) -> list[Key | None]:
    """What is asked for, of each of the lists that `values_of` made.

    Args:
        names: of PLAIN, or a label's key after `label:`.
        account: who pays.
        found: the lists.
        namespaces: of these alone, where some are named: anything else has no key.
    """
    columns = [_column(name, account, found) for name in names]
    keys: list[Key | None] = [*zip(*columns, strict=True)] if columns else [()] * len(found)
    if namespaces is None:
        return keys
    return [key if (values[0] or UNKNOWN) in namespaces else None for key, values in zip(keys, found, strict=True)]


def _column(name: str, account: str, found: Sequence[Sequence[Any]]) -> list[str]:
    """What is asked for by one name."""
    if name == "budget":
        return [account] * len(found)
    if name.startswith(LABEL):
        label, place = name.removeprefix(LABEL), Dimensions._fields.index("labels")
        return [(values[place].get(label) if len(values) > place else None) or UNKNOWN for values in found]
    position = Dimensions._fields.index(name)
    return [(values[position] if len(values) > position else None) or UNKNOWN for values in found]


def _encoded(values: Sequence[Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)
