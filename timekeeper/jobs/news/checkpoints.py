"""Keeps checkpoints of the namespaces that no GPUBudget pays for in a few objects of the API server.

A GPUBudget has a status to hold its own. The others share some objects, each account always in the same one, so that
what changes of one namespace is one small write. With them are the prices as they were charged, where the settings do
not tell them any more.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from timekeeper.jobs.memory.accounts import Account
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.memory.price_history import PRICES, kept_prices
from timekeeper.jobs.news.statuses import Json, checkpoint_of, checkpoint_status
from timekeeper.rules.money import SECOND
from timekeeper.sources.source import CHECKPOINT_SHARDS, ChangedMeanwhileError, RefusedError, Source

CONFIRM = 600 * SECOND
"""A shard of which nothing but times and versions is new is written this often at most."""
MOST_BYTES = 900_000
"""How large a shard may become: etcd takes one and a half million bytes, the API server a million of a ConfigMap's data
(https://kubernetes.io/docs/concepts/configuration/configmap/)."""

_log = structlog.get_logger()


@dataclass(slots=True)
class CheckpointKeeper:
    """Remembers what the shards hold, in one term of leadership; `leading` says whether that goes on."""

    source: Source
    books: Books
    leading: Callable[[], bool] = lambda: True
    most_bytes: int = MOST_BYTES
    _written: dict[int, tuple[int, Json]] | None = field(default=None)

    def write(self, now: int) -> int:
        """Writes the shards that have changed; how many.

        Args:
            now: when the books were last brought up to date, in nanoseconds since 1970.

        Raises:
            SourceError: the API server does not answer; what is missing is written the next time.
        """
        if self._written is None:
            found = shards_of(self.source.read_checkpoints())
            self._written = {number: (0, shard) for number, shard in found.items()}
        present = shards_of(self._documents(now))
        count = 0
        for number in sorted(present.keys() | self._written.keys()):
            shard = present.get(number, {})
            at, before = self._written.get(number, (0, {}))
            due = _timeless(shard) != _timeless(before) or (bool(shard) and now - at >= CONFIRM)
            if due and self.leading():
                count += self._write(number, shard, now)
        return count

    def _documents(self, now: int) -> dict[str, Json]:
        books = self.books
        prices = kept_prices(books.prices, books.rules.prices)
        return prices | {
            name: checkpoint_status(account, found, now)
            for name, account in books.accounts.items()
            if not account.is_budget and (found := books.figures.get(name)) is not None and _matters(account, found)
        }

    def _write(self, number: int, shard: Json, now: int) -> bool:
        kept = fitting(shard, self.most_bytes)
        if len(kept) < len(shard):
            _log.error("too many namespaces without a budget for a checkpoint each", shard=number, kept=len(kept))
        try:
            self.source.write_checkpoints(number, kept)
        except (RefusedError, ChangedMeanwhileError) as error:
            _log.warning("checkpoints not written", shard=number, error=str(error))
            return False
        assert self._written is not None  # noqa: S101 - the caller has read them
        self._written[number] = (now, shard)
        for name in kept.keys() - {PRICES}:
            account = self.books.accounts[name]
            account.checkpoint = checkpoint_of(account, self.books.figures[name], now)
        return True


def shards_of(documents: Json) -> dict[int, Json]:
    """The accounts of each shard."""
    shards: dict[int, Json] = {}
    for name, document in documents.items():
        shards.setdefault(zlib.crc32(name.encode()) % CHECKPOINT_SHARDS, {})[name] = document
    return shards


def fitting(shard: Json, most_bytes: int) -> Json:
    """What of a shard fits into so many bytes; the prices come first, then accounts with the largest sums."""
    kept: Json = {}
    size = 2
    for name in sorted(shard, key=lambda name: (name != PRICES, -_closed(shard[name]))):
        size += len(json.dumps({name: shard[name]}))
        if size > most_bytes:
            break
        kept[name] = shard[name]
    return kept


def _closed(document: Json) -> int:
    return int(document.get("checkpoint", {}).get("closedMicroGPUSeconds", 0))


def _matters(account: Account, found: Figures) -> bool:
    """Whether an emptied store could not compute all of the account again from the pods that are there."""
    return account.standings[found.period.start].gone > 0 or bool(account.pots.get(found.period.start))


def _timeless(shard: Json) -> Json:
    return {
        name: {**document, "checkpoint": {**document.get("checkpoint", {}), "time": "", "version": 0}}
        for name, document in shard.items()
    }
