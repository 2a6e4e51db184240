"""Answers usage queries about months that the store no longer holds, from their exported files.

If the store still holds an account's usage in such a month, the store's figures count, and the file's do not: the
store's are newer.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import groupby

from timekeeper.api.problems import invalid
from timekeeper.domain.timestamps import HOUR, Instant
from timekeeper.domain.usage import Dimensions, Row, UsageSums, Use, values_of
from timekeeper.domain.usage_folding import month_of
from timekeeper.domain.windows import Window, month_start
from timekeeper.export import document
from timekeeper.export.destination import Destination, ExportError, MonthUnavailableError
from timekeeper.export.document import DocumentError, file_name, month_at, month_named, months_between
from timekeeper.ledger import exports
from timekeeper.ledger.client import Store
from timekeeper.ledger.exports import Export, Exports

MOST_MONTHS = 24
"""The most files that one answer reads."""
LISTED_SECONDS = 60.0
"""The longest time, in seconds, for which the list of files is reused."""
Held = Collection[tuple[str, str]]
"""Pairs of an account's name and a month, such as 2026-10, of which the store still holds usage."""


class ExportedMonths:
    """Answers usage queries from the exported files of months that the store no longer holds.

    It caches the files that were read last. Thread-safe; one for each worker.
    """

    def __init__(
        self,
        client: Store,
        destination: Destination,
        retention_months: int,
        cache_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._destination = destination
        self._retention_months = retention_months
        self._cache_bytes = cache_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._listed: tuple[float, frozenset[str]] | None = None

    def add(self, sums: UsageSums, window: Window, now: Instant, held: Held, only: frozenset[str] | None) -> None:
        """Adds the usage in a window that the store no longer holds, from exported files, to the sums of a query.

        Args:
            sums: the sums; they already contain the store's usage.
            window: the window of the query.
            now: the instant of the query. Files are read for the months before `kept_from(now)`.
            held: pairs of an account and a month before `kept_from(now)`, such as 2026-10, of which the store still
                holds usage. This usage is not added from the file.
            only: the namespaces to add; None for all.

        Raises:
            MonthUnavailableError: a file that was written, or that lies between others, is missing; or a file cannot be
                read, is not the one that was written, or may contradict the store.
            ProblemError: the window needs more than MOST_MONTHS files.
            FoldedHoursError, TooManySumsError: the sums cannot take the usage (see `UsageSums.add`).
            redis.RedisError: the store does not answer.
        """
        if window.start >= self.kept_from(now):
            return
        records = exports.load(self._client)
        names = self._names(month_at(window.start))
        first, last = max(window.start, 0), min(window.end, self.kept_from(now)) - HOUR
        earliest = min([*names, *records.written], default="9999-12")
        wanted = months_between(max(month_at(first), earliest), month_at(last))
        if len(wanted) > MOST_MONTHS:
            allowed = f"one with at most {MOST_MONTHS} months from before {month_at(self.kept_from(now))}"
            raise invalid("window", f"one with {len(wanted)}", allowed)
        for month in wanted:
            mine = {account for account, there in held if there == month}
            for account, use in self._month(month, records, names, mine):
                sums.add(account, use, only)

    def kept_from(self, now: Instant) -> Instant:
        """Returns the start of the first month whose usage the store is sure to hold at an instant."""
        return month_start(now, -self._retention_months)

    def _month(
        self, month: str, exports: Exports, names: frozenset[str], mine: Collection[str]
    ) -> Iterator[tuple[str, Use]]:
        written = exports.written.get(month)
        if written is None and month not in names:
            # The store drops no month before it is exported, so a missing file means that both were lost.
            if not mine and month < max(names, default=""):
                raise MonthUnavailableError(month, "the file is missing between others")
            return
        if mine and (written is None or (written.adopted and not exports.is_confirmed(month))):
            raise MonthUnavailableError(month, "the file and the store say different things")
        try:
            rows = document.read(self._body(month, written))
            for account, rows_of_account in groupby(rows, key=lambda row: row[0]):
                if account not in mine:
                    yield account, _use(row for _, row in rows_of_account)
        except (ExportError, DocumentError) as error:
            raise MonthUnavailableError(month, str(error)) from error

    def _body(self, month: str, written: Export | None) -> bytes:
        if written is not None:
            with self._lock:
                body = self._bodies.get(written.sha256)
                if body is not None:
                    self._bodies.move_to_end(written.sha256)
                    return body
        stored = self._destination.read(file_name(month))
        if stored is None:
            raise MonthUnavailableError(month, "the file is missing")
        if written is None:
            return stored.body
        if document.content_sha256(stored.body) != written.sha256:
            raise MonthUnavailableError(month, "the file is not what was written")
        self._keep(written.sha256, stored.body)
        return stored.body

    def _keep(self, name: str, body: bytes) -> None:
        with self._lock:
            self._bodies[name] = body
            while sum(map(len, self._bodies.values())) > self._cache_bytes:
                self._bodies.popitem(last=False)

    def _names(self, month: str) -> frozenset[str]:
        """Returns the months, such as 2026-10, that have a file, by a list of files that is at most LISTED_SECONDS old.

        Raises:
            MonthUnavailableError: the files cannot be listed; the error names `month`, which the query needs.
        """
        with self._lock:
            if self._listed is not None and self._clock() - self._listed[0] < LISTED_SECONDS:
                return self._listed[1]
        try:
            names = frozenset(filter(None, map(month_named, self._destination.names())))
        except ExportError as error:
            raise MonthUnavailableError(month, str(error)) from error
        with self._lock:
            self._listed = (self._clock(), names)
        return names


def held_before(account: str, use: Use, before: Instant) -> set[tuple[str, str]]:
    """Returns pairs of the account and each month, such as 2026-10, in which it has usage before an instant.

    Args:
        use: the account's usage in the store.
        before: the instant, in nanoseconds since 1970.
    """
    return {(account, month_of(hour)) for hour in {row[0] for row in use.raw_rows} if hour * HOUR < before}


def _use(rows: Iterator[Row]) -> Use:
    use = Use()
    places: dict[Dimensions, int] = {}
    for hour, hours, to, figures in rows:
        place = places.setdefault(to, len(places))
        if place == len(use.dimensions):
            use.dimensions.append(values_of(to))
        use.raw_rows.append((hour, hours, place, *figures))
    return use
