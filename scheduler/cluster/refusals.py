"""Caches the reasons why a request fits on none of some nodes, until the fleet changes.

Pods with equal requests wait together, and kube-scheduler asks about them again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
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
"""The most refusals that are kept, each for a request and a set of nodes."""
MAX_ENCODED = 32
"""The most refusals whose JSON is kept, those asked for last: with 5,000 nodes one is 0.4 MB, and made in 1 ms."""
MAX_TEXTS = 16
"""The most answers in the cache that give the same text for all their nodes."""


@dataclass(frozen=True)
class Refusal:
    """The reasons why a request fits on none of a set of nodes.

    Attributes:
        contents: the contents of the fleet (`Fleet.contents`) for which the reasons hold.
        texts: the reasons, each once.
        lasting: for each text, whether the reason would still hold if other pods ended.
        cause: for each node, in the fleet's order, the index of its text; -1 for nodes that were not asked about.
        names: the names of all nodes, in the fleet's order.
        fragmented: whether some node has enough free in sum, but in parts on several GPUs.
    """

    contents: int
    texts: tuple[str, ...]
    lasting: tuple[bool, ...]
    cause: npt.NDArray[np.int8]
    names: npt.NDArray[np.object_]
    fragmented: bool

    @cached_property
    def passing(self) -> msgspec.Raw:
        """The reason against each node that may have room once another pod has ended, as JSON keyed by node name."""
        return self._encoded(lasting=False)

    @cached_property
    def final(self) -> msgspec.Raw:
        """The reason against each node that has no room even if other pods end, as JSON keyed by node name."""
        return self._encoded(lasting=True)

    def forget_encoded(self) -> None:
        """Frees the JSON in `passing` and `final`, which are made again when they are asked for."""
        for name in ("passing", "final"):
            vars(self).pop(name, None)

    def _encoded(self, *, lasting: bool) -> msgspec.Raw:
        texts: dict[str, str] = {}
        for place, text in enumerate(self.texts):
            if self.lasting[place] is lasting:
                texts.update(dict.fromkeys(self.names[self.cause == place].tolist(), text))
        return msgspec.Raw(msgspec.json.encode(texts))


class Refusals:
    """A cache of the reasons why requests fit on no node; it computes those that it does not have."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._refusals: OrderedDict[tuple[Request, bytes], Refusal] = OrderedDict()
        # The refusals asked for last, whose JSON may be kept. The keys are their ids: those of `_refusals` are slow to
        # hash.
        self._recent: OrderedDict[int, Refusal] = OrderedDict()
        self._names = chooser.fleet.names[:0].copy()
        self._texts: OrderedDict[tuple[str, Hashable], msgspec.Raw] = OrderedDict()

    def of(self, request: Request, rows: Ints) -> Refusal:
        """Returns the reasons why a request fits on none of these nodes at present.

        Args:
            rows: the nodes' indexes in the fleet.
        """
        key = self._key(request, rows)
        return self._present(key) or self._explain(key, request, rows)

    def is_refused(self, request: Request, rows: Ints) -> bool:
        """Returns whether the cache knows, for the fleet as it is now, that the request fits on none of these nodes.

        A caller then need not try to place the request. False says only that the cache has no such answer: the request
        may still fit on none of the nodes.

        Args:
            rows: the nodes' indexes in the fleet.
        """
        return self._present(self._key(request, rows)) is not None

    def with_one_text(self, text: str, key: Hashable | None, names: Callable[[], list[str]]) -> msgspec.Raw:
        """Returns a JSON object that gives each of some nodes the same text.

        Args:
            key: a value that identifies the set of nodes, for the cache; None for an answer that is not cached.
            names: returns the names of the nodes; called if the answer is not in the cache.
        """
        kept = self._texts.get((text, key)) if key is not None else None
        if kept is None:
            kept = msgspec.Raw(msgspec.json.encode(dict.fromkeys(names(), text)))
        if key is not None:
            self._texts[text, key] = kept
            self._texts.move_to_end((text, key))
            if len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return kept

    def _key(self, request: Request, rows: Ints) -> tuple[Request, bytes]:
        asked = np.zeros(self._chooser.fleet.size, np.bool_)
        asked[rows] = True
        return request, asked.tobytes()

    def _present(self, key: tuple[Request, bytes]) -> Refusal | None:
        kept = self._refusals.get(key)
        if kept is None or kept.contents != self._chooser.fleet.contents:
            return None
        self._keep(key, kept)
        return kept

    def _explain(self, key: tuple[Request, bytes], request: Request, rows: Ints) -> Refusal:
        fleet = self._chooser.fleet
        shortages = self._chooser.why(request, rows) if len(rows) else []
        cause = np.full(fleet.size, -1, np.int8)
        for place, (_, short) in enumerate(shortages):
            cause[short] = place
        texts = tuple(explain(shortage, request) for shortage, _ in shortages)
        lasting = tuple(shortage.cause in LASTING for shortage, _ in shortages)
        fragmented = any(shortage.in_sum for shortage, _ in shortages)
        names = fleet.names[: fleet.size]
        if not np.array_equal(self._names, names):
            self._names = names.copy()
        refusal = Refusal(fleet.contents, texts, lasting, cause, self._names, fragmented)
        self._keep(key, refusal)
        if len(self._refusals) > MAX_KEPT:
            self._refusals.popitem(last=False)
        return refusal

    def _keep(self, key: tuple[Request, bytes], refusal: Refusal) -> None:
        self._refusals[key] = refusal
        self._refusals.move_to_end(key)
        self._recent[id(refusal)] = refusal
        self._recent.move_to_end(id(refusal))
        if len(self._recent) > MAX_ENCODED:
            self._recent.popitem(last=False)[1].forget_encoded()
