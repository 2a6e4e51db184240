"""Remembers why a kind of request fits on none of some nodes, until anything changes.

Pods of one kind wait together, and are asked about again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from scheduler.placement.causes import LASTING, explain
from scheduler.placement.choosing import Chooser
from scheduler.placement.fleet import Ints
from scheduler.placement.request import Request

MAX_KEPT = 256
"""The most kinds of requests whose refusals are kept."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reasons why a request fits on none of some nodes.

    Attributes:
        version: of the fleet for which it holds.
        texts: one for each cause.
        lasting: of each text whether no end of another pod helps.
        cause: the place of each row's text; -1 of rows that are not asked about.
    """

    version: int
    texts: tuple[str, ...]
    lasting: tuple[bool, ...]
    cause: Ints


class Refusals:
    """The refusals that were computed last, by kind of request."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._kept: OrderedDict[tuple[Request, bytes], Refusal] = OrderedDict()

    def of(self, request: Request, rows: Ints) -> Refusal:
        """Returns why a request fits on none of these rows at present."""
        fleet = self._chooser.fleet
        asked = np.zeros(fleet.size, np.bool_)
        asked[rows] = True
        key = (request, asked.tobytes())
        kept = self._kept.get(key)
        if kept is None or kept.version != fleet.version:
            told = self._chooser.why(request, rows) if len(rows) else []
            cause = np.full(fleet.size, -1, np.int64)
            for place, (_, short) in enumerate(told):
                cause[short] = place
            texts = tuple(explain(shortage, request) for shortage, _ in told)
            lasting = tuple(shortage.cause in LASTING for shortage, _ in told)
            kept = self._kept[key] = Refusal(fleet.version, texts, lasting, cause)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return kept
