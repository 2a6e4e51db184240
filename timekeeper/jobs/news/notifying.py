"""Decides which budgets' news go to the outbox; whoever delivers them is another thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import redis
import structlog
from prometheus_client import Counter

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.news.messages import message_of
from timekeeper.rules.burn import runs_out_early
from timekeeper.rules.milestones import Told, next_told, reached
from timekeeper.sources.mirror import uid_of
from timekeeper.store import outbox

_log = structlog.get_logger()


@dataclass(slots=True)
class Notifier:
    """Remembers what was told, in one term of leadership; the store remembers it for the next.

    Attributes:
        client: the store.
        books: the leader's.
        epoch: the leader's.
        most: the most messages that may wait.
        counter: messages by outcome.
    """

    client: redis.Redis
    books: Books
    epoch: int
    most: int
    counter: Counter
    _told: dict[str, Told] = field(default_factory=dict)
    _loaded: bool = False

    def notify(self, now: int) -> int:
        """Puts what is new into the outbox; how many messages.

        Args:
            now: when the books were last brought up to date, in nanoseconds since 1970.

        Raises:
            StoreError: the store refused or does not answer; all is found anew by the next call.
            redis.RedisError: likewise.
        """
        if not self._loaded:
            self._told, self._loaded = outbox.told(self.client), True
        changes = list(self._changes(now))
        if not changes:
            return 0
        dropped = outbox.write(self.client, self.epoch, self.most, changes)
        if dropped:
            self.counter.labels("dropped").inc(dropped)
            _log.error("too many notifications wait: the oldest are given up", count=dropped, most=self.most)
        for change in changes:
            if change.told is None:
                self._told.pop(change.uid, None)
            else:
                self._told[change.uid] = change.told
        return sum(bool(change.message) for change in changes)

    def _changes(self, now: int) -> Iterator[outbox.Change]:
        books = self.books
        present = {uid_of(item): name for name, item in books.budgets.objects.items()}
        for uid in self._told.keys() - present.keys():
            yield outbox.Change(uid, None)
        for uid, name in present.items():
            found, account = books.figures.get(name), books.accounts.get(name)
            if found is None or account is None:
                continue
            available = found.limits.available
            early = runs_out_early(found.remaining, found.burns, now, found.period.end)
            holding = reached(found.state, found.spent, available, early=early)
            before = self._told.get(uid)
            told, milestone = next_told(before, found.period.start, available, holding)
            if milestone is not None:
                yield outbox.Change(uid, told, message_of(account.budget, found, milestone, now))
            elif told != before:
                yield outbox.Change(uid, told)
