"""Adds up what all accounts hold of a window of whole days, with the help of what is remembered of closed days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.rest.usage.closed_days import ClosedDays, Part, PartKey, closed_before, divided, whole_days
from timekeeper.rules.timestamps import HOUR
from timekeeper.store.usage_reading import NOTHING_KNOWN, AccountUsage, Known, View, accounts_usage
from timekeeper.usage.dimensions import asks_for_details
from timekeeper.usage.folding import HOURS_OF_A_DAY
from timekeeper.usage.grouping import Steps, Sums
from timekeeper.usage.windows import Window

READ_AT_ONCE = 1000
"""Accounts that are read in one round trip at most."""


@dataclass(frozen=True, slots=True)
class WholeUsage:
    """A question about all accounts, asked at an instant.

    Attributes:
        client: the store; its answers are bytes.
        assignments: who pays for every namespace from when on.
        within: a window that begins with a day.
        closed: what is remembered.
        now: nanoseconds since 1970.
    """

    client: redis.Redis
    assignments: Mapping[str, Assignments]
    within: Window
    closed: ClosedDays
    now: int

    def add_to(self, sums: Sums) -> None:
        """Adds all of it to sums whose steps begin with days.

        Raises:
            redis.RedisError: the store does not answer.
            StoreError: it refuses.
        """
        for number, accounts in divided(payers(self.assignments)).items():
            key = (number, sums.aggregate)
            if not self._add_with_what_is_known(sums, key, accounts):
                self._add_anew(sums, key, accounts)

    def _add_with_what_is_known(self, sums: Sums, key: PartKey, accounts: Sequence[str]) -> bool:
        """Adds a part, reading no day that is remembered; or nothing, where what is remembered holds no more."""
        part = self.closed.find(key)
        if part is None or not part.answers(self._first, self._limit):
            return False
        since = min(part.end, self._end)
        # Accounts that are new are read from the part's first day on, so that it can hold them from now on.
        within = Window(part.first * HOUR, self.within.end)
        found = list(self._read(sums, accounts, within, Known(part.past, since)))
        if {usage.account for usage in found if usage.known} != part.past.keys():
            return False
        part.add_to(sums, self._first, since)
        for usage in found:
            sums.add(usage.account, usage.put_down)
            sums.add(usage.account, usage.running)
        self._remember_more(key, part, found)
        return True

    def _remember_more(self, key: PartKey, part: Part, found: Sequence[AccountUsage]) -> None:
        """Remembers the days that have closed since, and the accounts that have come, with what is known."""
        come = {usage.account: usage.past for usage in found if usage.account not in part.past}
        if self._limit < part.end or (self._limit == part.end and not come):
            return
        closed = Sums(Steps(whole_days(part.first, self._limit)), key[1])
        part.add_to(closed, part.first, part.end)
        for usage in found:
            closed.add(usage.account, usage.put_down)
        self.closed.remember(key, Part(part.first, self._limit, {**part.past, **come}, closed.cells))

    def _add_anew(self, sums: Sums, key: PartKey, accounts: Sequence[str]) -> None:
        """Adds a part, and remembers what its closed days came to."""
        limit = max(self._limit, self._first)
        days = whole_days(self._first, limit)
        closed = Sums(Steps(days), sums.aggregate) if days else None
        past: dict[str, bytes] = {}
        for usage in self._read(sums, accounts, self.within, NOTHING_KNOWN):
            past[usage.account] = usage.past
            if closed is not None:
                closed.add(usage.account, usage.put_down)
            if limit < self._end:
                sums.add(usage.account, usage.put_down.between(limit, self._end))
            sums.add(usage.account, usage.running)
        if closed is not None:
            part = Part(self._first, limit, past, closed.cells)
            part.add_to(sums, self._first, limit)
            self.closed.remember(key, part)

    def _read(self, sums: Sums, accounts: Sequence[str], within: Window, known: Known) -> Iterator[AccountUsage]:
        view = View(asks_for_details(sums.aggregate), sums=False)
        for start in range(0, len(accounts), READ_AT_ONCE):
            chunk = accounts[start : start + READ_AT_ONCE]
            yield from accounts_usage(self.client, chunk, self.assignments, within, view=view, known=known)

    @property
    def _first(self) -> int:
        return self.within.start // HOUR

    @property
    def _end(self) -> int:
        return self.within.end // HOUR

    @property
    def _limit(self) -> int:
        """The hour before which the window's days are closed."""
        return min(closed_before(self.now), self._end - self._end % HOURS_OF_A_DAY)


def payers(assignments: Mapping[str, Assignments]) -> list[str]:
    """Every account that pays, or paid, for any of these namespaces."""
    return sorted({account for known in assignments.values() for _, account in known})
