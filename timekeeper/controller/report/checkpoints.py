"""Writes the checkpoints of namespaces that no GPUBudget pays for to a few objects of the API server.

The status of a GPUBudget holds its own checkpoint. The other accounts share some objects, each always the same one, so
a change of one namespace is one small write. The objects also hold the prices that were charged and that the settings
no longer contain, the instant from which pods of other stacks are metered, and what these hold.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from timekeeper.controller.report.status_documents import Json, checkpoint_of, checkpoint_status
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.figures import Figures
from timekeeper.controller.state.loading import DECIDED, PRICES, SINCE, kept_holdings, kept_prices, kept_since
from timekeeper.domain.money import SECOND
from timekeeper.sources.base import CHECKPOINT_SHARDS, ChangedMeanwhileError, RefusedError, Source

CONFIRM = 600 * SECOND
"""The shortest interval between writes of a shard of which only times and versions have changed."""
MOST_BYTES = 900_000
"""The largest size of a shard: etcd takes one and a half million bytes, the API server a million of a ConfigMap's data
(https://kubernetes.io/docs/concepts/configuration/configmap/)."""

HOLDINGS_AGE = 30 * SECOND
"""The shortest interval between writes of a shard of which only what sessions hold has changed.

Pods come and go all the time, and a shard of 50,000 sessions has a quarter of a megabyte."""

SHARED = frozenset({PRICES, SINCE})
"""The documents that belong to no account."""

_log = structlog.get_logger()


@dataclass(slots=True)
class CheckpointKeeper:
    """Writes the checkpoints of accounts without a GPUBudget to the API server, for one term of the leader.

    Attributes:
        source: the cluster.
        books: the leader's state.
        leading: returns whether the term lasts.
        most_bytes: the largest size of one object of the API server.
    """

    source: Source
    books: Books
    leading: Callable[[], bool] = lambda: True
    most_bytes: int = MOST_BYTES
    _written: dict[int, tuple[int, Json]] | None = field(default=None)

    def write(self, now: int) -> int:
        """Writes the objects of checkpoints that have changed; returns their number.

        Args:
            now: the instant of the last reconciliation, in nanoseconds since 1970.

        Raises:
            SourceError: the API server does not answer; the next call writes the rest.
        """
        if self._written is None:
            shards = shards_of(self.source.read_checkpoints())
            self._written = {number: (0, shard) for number, shard in shards.items()}
        present = shards_of(self._documents(now))
        count = 0
        for number in sorted(present.keys() | self._written.keys()):
            shard = present.get(number, {})
            at, before = self._written.get(number, (0, {}))
            due = _timeless(shard) != _timeless(before) or (bool(shard) and now - at >= CONFIRM)
            due |= now - at >= HOLDINGS_AGE and _decided(shard) != _decided(before)
            if due and self.leading():
                count += self._write(number, shard, now)
        return count

    def _documents(self, now: int) -> dict[str, Json]:
        books = self.books
        prices = kept_prices(books.prices, books.rules.prices)
        return (
            prices
            | kept_since(books.since)
            | kept_holdings(books.pods.sessions.all())
            | {
                name: checkpoint_status(account, figures, now)
                for name, account in books.accounts.items()
                if not books.has_object(name)
                and (figures := books.figures.get(name)) is not None
                and _matters(account, figures)
            }
        )

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
        for name in filter(_is_account, kept):
            account = self.books.accounts[name]
            account.checkpoint = checkpoint_of(account, self.books.figures[name], now)
        return True


def shards_of(documents: Json) -> dict[int, Json]:
    """Divides checkpoint documents among a fixed number of objects of the API server, by a hash of their names.

    Returns:
        By the number of the object, its documents by name.
    """
    shards: dict[int, Json] = {}
    for name, document in documents.items():
        number = name.removeprefix(DECIDED) if name.startswith(DECIDED) else ""
        shard = int(number) if number.isdigit() else zlib.crc32(name.encode())
        shards.setdefault(shard % CHECKPOINT_SHARDS, {})[name] = document
    return shards


def _is_account(name: str) -> bool:
    return name not in SHARED and not name.startswith(DECIDED)


def fitting(shard: Json, most_bytes: int) -> Json:
    """Returns the part of an object's checkpoint documents that fits into a size.

    Documents that belong to no account come first, then the accounts with the largest sums.

    Args:
        most_bytes: the size as JSON.
    """
    kept: Json = {}
    size = 2
    for name in sorted(shard, key=lambda name: (_is_account(name), -_closed(shard[name]))):
        size += len(json.dumps({name: shard[name]}))
        if size > most_bytes:
            break
        kept[name] = shard[name]
    return kept


def _closed(document: Json) -> int:
    return int(document.get("checkpoint", {}).get("closedMicroGPUSeconds", 0))


def _matters(account: Account, figures: Figures) -> bool:
    """Whether the account holds money that the present pods alone do not show."""
    return account.period_totals[figures.period.start].finalized > 0 or bool(account.credits.get(figures.period.start))


def _timeless(shard: Json) -> Json:
    return {
        name: {**document, "checkpoint": {**document.get("checkpoint", {}), "time": "", "version": 0}}
        for name, document in shard.items()
        if not name.startswith(DECIDED)
    }


def _decided(shard: Json) -> Json:
    return {name: document for name, document in shard.items() if name.startswith(DECIDED)}
