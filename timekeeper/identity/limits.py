"""How often callers may make the timekeeper ask the API server: a token bucket for each, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from timekeeper.identity.refusals import TooManyRequestsError

MAX_KEPT = 8192
"""Buckets; who was not heard of for longest is forgotten first, and has mostly a full one by then."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a bucket holds at most, and how much comes back to it."""

    burst: int
    per_second: float


class Buckets:
    """A token bucket (https://en.wikipedia.org/wiki/Token_bucket) for each key, full at first; for several threads."""

    def __init__(self, rate: Rate, clock: Callable[[], float], max_kept: int = MAX_KEPT) -> None:
        """`clock` is a monotonic one, in seconds."""
        self._rate = rate
        self._clock = clock
        self._max_kept = max_kept
        self._levels: dict[str, tuple[float, float]] = {}
        self._changing = Lock()
        """Guards a bucket's level between its being read and written."""

    def take(self, key: str, what: str) -> None:
        """Takes one from a key's bucket.

        Raises:
            TooManyRequestsError: it is empty; `what` tells people what there was too much of.
        """
        with self._changing:
            level = self._level(key)
            if level < 1:
                seconds = math.ceil((1 - level) / self._rate.per_second)
                raise TooManyRequestsError(f"{what}; try again in {seconds} s", seconds)
            self._keep(key, level - 1)

    def give_back(self, key: str) -> None:
        """Puts one back that was taken for nothing."""
        with self._changing:
            self._keep(key, self._level(key) + 1)

    def __len__(self) -> int:
        return len(self._levels)

    def _level(self, key: str) -> float:
        level, at = self._levels.get(key, (float(self._rate.burst), 0.0))
        return min(level + (self._clock() - at) * self._rate.per_second, self._rate.burst)

    def _keep(self, key: str, level: float) -> None:
        self._levels.pop(key, None)
        while len(self._levels) >= self._max_kept:
            self._levels.pop(next(iter(self._levels)))
        self._levels[key] = (min(level, self._rate.burst), self._clock())
