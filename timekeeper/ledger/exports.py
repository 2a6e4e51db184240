"""Reads and writes the store's records of exported files, one for each month, and its counts of late changes.

A late change is a change to a month's usage after the month was closed. It makes the month's exported file due again.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import redis
import structlog

from timekeeper.domain.charges import Assignments
from timekeeper.domain.usage import Row
from timekeeper.domain.usage_folding import edges_of, fold, parse_part
from timekeeper.domain.windows import Window
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import (
    ScriptError,
    Store,
    StoreError,
    concerns_all,
    described,
    isolate_failures,
    put,
    readable_answers,
)
from timekeeper.ledger.codec import UNREADABLE, RecordError
from timekeeper.ledger.reading import whole
from timekeeper.ledger.usage import accounts_usage

_log = structlog.get_logger()

BATCH = 200
"""The number of accounts in one read."""


@dataclass(frozen=True, slots=True)
class Export:
    """The record of a month's exported file.

    Attributes:
        change: the number of late changes to the month when this record was made; a higher number in the store makes
            the file due again.
        sha256: the SHA-256 of the CSV in the file.
        rows: the number of rows in the file.
        tag: a text from the destination that changes with the file's content, such as an ETag.
        adopted: whether the exporter found the file at the destination and kept it, because the file holds usage that
            the store does not, or because the admin chose to keep the file.
    """

    change: int
    sha256: str
    rows: int
    tag: str
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Exports:
    """The export records of all months, keyed by the month, such as 2026-11.

    Attributes:
        changes: the number of changes to each month that came after the month was closed; UNKNOWN if the stored number
            cannot be read. A month without such a change may be absent.
        written: the record of each month's exported file.
    """

    changes: Mapping[str, int]
    written: Mapping[str, Export]

    def is_confirmed(self, month: str) -> bool:
        """Returns whether a month has an exported file, and has had no late change since that file was written.

        The result is False if the number of the month's late changes cannot be read.

        Args:
            month: the month, such as 2026-11.
        """
        export = self.written.get(month)
        return export is not None and export.change == self.changes.get(month, 0)


def load(client: Store) -> Exports:
    """Reads the export records of all months. A month with an unreadable record counts as not exported."""
    # Files first: a change between the two reads makes a month due once more, and is never missed.
    written = _fields(client, keys.EXPORTS) or {}
    changes = _fields(client, keys.LATE_CHANGES)
    exports = {}
    for month, text in written.items():
        try:
            exports[month.decode()] = _decode(text)
        except UNREADABLE as error:
            _log.error("export record unreadable", month=repr(month), error=repr(error))
    if changes is None:
        return Exports(dict.fromkeys(exports, UNKNOWN), exports)
    numbers = {month.decode(errors="replace"): whole(number) for month, number in changes.items()}
    return Exports({month: UNKNOWN if number is None else number for month, number in numbers.items()}, exports)


UNKNOWN = -1
"""Stands for a month's number of late changes if the stored number cannot be read.

No exported file's record has this number, so the month is exported once more.
"""


def _fields(client: Store, key: str) -> dict[bytes, bytes] | None:
    """Returns the fields of the hash under a key; if the key holds no hash, logs an error and returns None."""
    try:
        stored: Any = client.hgetall(key)
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        _log.error("export records unreadable", key=key, error=str(error))
        return None
    return dict(stored)


def note_late_changes(client: Store, months: Iterable[str]) -> None:
    """Adds 1 to the stored number of late changes of each of these months.

    A caller must call this before it changes the month, so that no change is missed. A stored number that cannot be
    read is replaced by a number other than `Export.change` of the month's file, so that the file is due again.

    Args:
        months: the months, such as 2026-11, that were closed.

    Raises:
        StoreError: the store refused the write, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    for month in months:
        try:
            put(client, None, "HINCRBY", keys.LATE_CHANGES, [month, 1])
        except ScriptError as error:
            _log.error("count of late changes unreadable: it is written anew", month=month, error=str(error))
            _replace_counts(client, month)


def _replace_counts(client: Store, month: str) -> None:
    """Replaces a month's unreadable number of late changes by the number in its exported file's record, plus one.

    If the key is no hash, the numbers of all exported months are replaced, so that each of their files is due again.
    """
    records = load(client)
    months = {month}
    if _fields(client, keys.LATE_CHANGES) is None:
        months |= records.written.keys()
        client.delete(keys.LATE_CHANGES)
    for each in sorted(months):
        export = records.written.get(each)
        put(client, None, "HSET", keys.LATE_CHANGES, [each, 1 if export is None else export.change + 1])


def note_written(client: Store, month: str, export: Export) -> None:
    """Writes the record of a month's exported file.

    Args:
        month: the month, such as 2026-11.

    Raises:
        StoreError: the store refused the write, or Redis does not answer.
    """
    put(client, None, "HSET", keys.EXPORTS, [month, json.dumps(asdict(export), separators=(",", ":"))])


def folded_months(client: Store, accounts: Sequence[str]) -> set[str]:
    """Returns the months, such as 2026-11, of which any of these accounts holds use that is folded into days.

    An account whose folded use is under a key of another Redis type is left out.
    """
    months: set[str] = set()
    for start in range(0, len(accounts), BATCH):
        pipeline = client.pipeline(transaction=False)
        for name in accounts[start : start + BATCH]:
            pipeline.hkeys(keys.AccountKeys(name).folded)
        answers = readable_answers(pipeline.execute(raise_on_error=False))
        parts = (parse_part(part) for names in answers for part in names or ())
        months.update(part.month for part in parts if part is not None and not part.hourly)
    return months


class UnreadableUseError(StoreError):
    """The use of some accounts cannot be read; the message names each with the reason."""


def month_rows(client: Store, window: Window) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yields, for each account, its name and its use in a month that has ended, as rows that are folded into days.

    Args:
        window: the month, from its start to its end.

    Raises:
        UnreadableUseError: a stored value of an account cannot be read.
        StoreError: the store refused to read.
    """
    assignments: Mapping[str, Assignments] = reading.assignments(client)
    names = reading.account_names(client)
    for start in range(0, len(names), BATCH):
        chunk = names[start : start + BATCH]
        try:
            yield from _month_rows(client, chunk, assignments, window)
        except (StoreError, redis.RedisError, *UNREADABLE) as error:
            if concerns_all(error):
                raise
            failed = isolate_failures(chunk, lambda some: list(_month_rows(client, some, assignments, window)))
            reasons = "; ".join(f"{name!r}: {described(failed[name])}" for name in sorted(failed))
            raise UnreadableUseError(f"the use of accounts cannot be read: {reasons or error}") from error


def _month_rows(
    client: Store, names: Sequence[str], assignments: Mapping[str, Assignments], window: Window
) -> Iterator[tuple[str, Sequence[Row]]]:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(keys.AccountKeys(name).periods)
    ends = zip(names, pipeline.execute(), strict=True)
    edges = {name: edges_of((int(start), int(end)) for start, end in known.items()) for name, known in ends}
    for usage in accounts_usage(client, names, assignments, window):
        yield usage.account, fold(usage.rows(), edges[usage.account])


def _decode(text: bytes) -> Export:
    names = {field.name for field in fields(Export)}
    export = Export(**{name: value for name, value in json.loads(text).items() if name in names})
    kinds = type(export.change), type(export.sha256), type(export.rows), type(export.tag), type(export.adopted)
    if kinds != (int, str, int, str, bool):
        raise RecordError("no export: a field is of another type")
    return export
