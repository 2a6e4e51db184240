"""Caches why a kind of request fits on none of a set of nodes, until the fleet changes.

Pods of one kind wait together, and are asked about again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler.placement.causes import LASTING, explain
from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Ints
from scheduler.placement.request import Request

MAX_KEPT = 256
"""The most kinds of requests whose refusals are kept."""


@dataclass(frozen=True)
class Refusal:
    """The reasons why a request fits on none of some nodes.

    Attributes:
        version: of the fleet for which it holds.
        texts: one for each cause.
        lasting: of each text whether no end of another pod helps.
        cause: the place of each row's text; -1 of rows that are not asked about.
        names: the names of the nodes of all rows.
        fragmented: whether fragmentation alone is in the way on some node.
    """

    version: int
    texts: tuple[str, ...]
    lasting: tuple[bool, ...]
    cause: Ints
    names: npt.NDArray[np.object_]
    fragmented: bool

    @cached_property
    def passing(self) -> msgspec.Raw:
        """The text of each node that another pod's end may free for the request, in JSON."""
        return self._encoded(lasting=False)

    @cached_property
    def final(self) -> msgspec.Raw:
        """The text of each node that no other pod's end can free for the request, in JSON."""
        return self._encoded(lasting=True)

    def _encoded(self, *, lasting: bool) -> msgspec.Raw:
        texts: dict[str, str] = {}
        for place, text in enumerate(self.texts):
            if self.lasting[place] is lasting:
                texts.update(dict.fromkeys(self.names[self.cause == place].tolist(), text))
        return msgspec.Raw(msgspec.json.encode(texts))


class Refusals:
    """The refusals that were computed last, by kind of request."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._kept: OrderedDict[tuple[Request, bytes], Refusal] = OrderedDict()

    def of(self, request: Request, rows: Ints) -> Refusal:
        """Returns why a request fits on none of these rows at present."""
        key = self._key(request, rows)
        return self._present(key) or self._explain(key, request, rows)

    def _key(self, request: Request, rows: Ints) -> tuple[Request, bytes]:
        asked = np.zeros(self._chooser.fleet.size, np.bool_)
        asked[rows] = True
        return request, asked.tobytes()

    def _present(self, key: tuple[Request, bytes]) -> Refusal | None:
        kept = self._kept.get(key)
        if kept is None or kept.version != self._chooser.fleet.version:
            return None
        self._kept.move_to_end(key)
        return kept

    def _explain(self, key: tuple[Request, bytes], request: Request, rows: Ints) -> Refusal:
        fleet = self._chooser.fleet
        shortages = self._chooser.why(request, rows) if len(rows) else []
        cause = np.full(fleet.size, -1, np.int64)
        for place, (_, short) in enumerate(shortages):
            cause[short] = place
        texts = tuple(explain(shortage, request) for shortage, _ in shortages)
        lasting = tuple(shortage.cause in LASTING for shortage, _ in shortages)
        fragmented = any(shortage.in_sum for shortage, _ in shortages)
        refusal = Refusal(fleet.version, texts, lasting, cause, fleet.names[: fleet.size].copy(), fragmented)
        self._kept[key] = refusal
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return refusal
