"""What of each month was written outside, and whether the store has learned of more since.

Every function may raise redis.RedisError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import redis

from timekeeper.metering.segments import Assignments
from timekeeper.store import keys, reading
from timekeeper.store.usage_reading import accounts_usage
from timekeeper.usage.folding import fold
from timekeeper.usage.parts import parse_part
from timekeeper.usage.rows import Row
from timekeeper.usage.windows import Window

BATCH = 200
"""Accounts that are read at once."""


@dataclass(frozen=True, slots=True)
class Export:
    """A month as it was written.

    Attributes:
        change: the number of its last late change that the file holds.
        sha256: of the CSV in the file.
        rows: how many it holds.
        tag: what the place called this version of the file.
        adopted: whether the file held more than the store, and was left as it was.
    """

    change: int
    sha256: str
    rows: int
    tag: str
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class Exports:
    """All months: the number of each one's last late change, and what was written of it."""

    changes: Mapping[str, int]
    written: Mapping[str, Export]

    def is_confirmed(self, month: str) -> bool:
        """Whether the file holds all that the store knows of a month."""
        found = self.written.get(month)
        return found is not None and found.change == self.changes.get(month, 0)


def load(client: redis.Redis) -> Exports:
    """What is known of all months."""
    # Files first: what changes in between makes a month due once more, and never less.
    written: Any = client.hgetall(keys.EXPORTS)
    changes: Any = client.hgetall(keys.LATE_CHANGES)
    return Exports(
        {month.decode(): int(number) for month, number in changes.items()},
        {month.decode(): _decode(text) for month, text in written.items()},
    )


def note_late_changes(client: redis.Redis, months: Iterable[str]) -> None:
    """Numbers a late change of each of these months; done before the change, so that none goes unnoticed."""
    pipeline = client.pipeline(transaction=False)
    for month in months:
        pipeline.hincrby(keys.LATE_CHANGES, month)
    pipeline.execute()


def note_written(client: redis.Redis, month: str, export: Export) -> None:
    """Writes down that a month's file is there."""
    client.hset(keys.EXPORTS, month, json.dumps(asdict(export), separators=(",", ":")))


def folded_months(client: redis.Redis, accounts: Sequence[str]) -> set[str]:
    """The months of which any of these accounts holds folded hours."""
    found: set[str] = set()
    for start in range(0, len(accounts), BATCH):
        pipeline = client.pipeline(transaction=False)
        for name in accounts[start : start + BATCH]:
            pipeline.hkeys(keys.AccountKeys(name).folded)
        parts = (parse_part(part) for held in pipeline.execute() for part in held)
        found.update(part.month for part in parts if part is not None and not part.hourly)
    return found


def month_rows(client: redis.Redis, window: Window) -> Iterator[tuple[str, Sequence[Row]]]:
    """What each account holds of a month that is over, as days; by account.

    Raises:
        StoreError: the store refuses to read.
    """
    assignments: Mapping[str, Assignments] = reading.assignments(client)
    names = reading.account_names(client)
    for start in range(0, len(names), BATCH):
        chunk = names[start : start + BATCH]
        pipeline = client.pipeline(transaction=False)
        for name in chunk:
            pipeline.hkeys(keys.AccountKeys(name).periods)
        edges = {name: sorted(map(int, found)) for name, found in zip(chunk, pipeline.execute(), strict=True)}
        for found in accounts_usage(client, chunk, assignments, window):
            yield found.account, fold(found.rows(), edges[found.account])


def _decode(text: bytes) -> Export:
    known = {field.name for field in fields(Export)}
    return Export(**{name: value for name, value in json.loads(text).items() if name in known})
