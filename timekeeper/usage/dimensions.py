"""What use can be asked for by, and how that stands in the store."""

from __future__ import annotations

import json
from functools import lru_cache
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
_ABSENT: tuple[Any, ...] = ("", "", "", "", {})


class Dimensions(NamedTuple):
    """What an hour's use is put down to; labels are (key, value) pairs, and an empty value is not known."""

    namespace: str
    node: str = ""
    model: str = ""
    owner: str = ""
    user: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def value(self, name: str, account: str) -> str:
        """The value of a dimension: one of PLAIN, or a label's key after `label:`."""
        if name == "budget":
            return account
        if name.startswith(LABEL):
            return dict(self.labels).get(name.removeprefix(LABEL)) or UNKNOWN
        return str(getattr(self, name)) or UNKNOWN


def dimensions(namespace: str, node: str, attribution: Attribution | None) -> str:
    """As the store holds it: a JSON list, from which what is not known at its end is left out."""
    if attribution is None:
        return encode_dimensions(Dimensions(namespace, node))
    found = attribution
    return encode_dimensions(Dimensions(namespace, node, found.model, found.owner, found.user, found.labels))


@lru_cache(maxsize=100_000)
def read_dimensions(text: str) -> Dimensions:
    """What `dimensions` wrote; fields of later writers are passed over."""
    values = json.loads(text)
    namespace, node, model, owner, user, labels = [*values, *_ABSENT[len(values) - 1 :]][:6]
    return Dimensions(namespace, node, model, owner, user, tuple(sorted(labels.items())))


def encode_dimensions(found: Dimensions) -> str:
    """What `read_dimensions` reads."""
    values: list[Any] = [*found[:5], dict(found.labels)]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)
