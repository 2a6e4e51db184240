"""Writes the statuses of budgets to the API server, as rarely as they may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import structlog

from timekeeper.jobs.memory.accounts import Account, Checkpoint
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.moves import moves_by_account, told
from timekeeper.jobs.news.statuses import (
    Json,
    budget_status,
    checkpoint_of,
    conditions_of,
    lasting,
    timeless,
    with_conditions,
)
from timekeeper.metering.segments import Assignments
from timekeeper.rules.money import SECOND
from timekeeper.rules.timestamps import DAY
from timekeeper.sources.mirror import uid_of
from timekeeper.sources.source import ChangedMeanwhileError, RefusedError, Source

REFRESH = 60 * SECOND
"""Figures that change all the time are written this often at most."""
CONFIRM = 600 * SECOND
"""A status of which nothing but its time is new is written this often at most."""
TURN_SECONDS = 0.25
"""How long writing keeps the other jobs waiting: with ten thousand budgets it takes minutes."""

LAST_SECONDS = 5.0
"""How much longer it waits for the last answers, with which a pass is whole."""
AT_ONCE = 16
"""How many statuses are sent at once: an API server takes milliseconds for each, and many beside each other."""
READY = 64
"""How many are ready to be sent, so that sending goes on while the other jobs have their turn."""

FORGOTTEN_BY_A_KILLED_REDIS = 60 * SECOND
"""Far longer than what a killed Redis can have forgotten of what it had acknowledged."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Draft:
    """A status on its way to a budget, and the checkpoint that it holds."""

    name: str
    uid: str
    at: int
    status: Json
    checkpoint: Checkpoint | None
    version: str
    """Of the object that it was drafted for: an older status never takes the place of a newer one."""


@dataclass(slots=True)
class StatusWriter:
    """Remembers what was written, in one term of leadership; `leading` says whether that goes on."""

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    leading: Callable[[], bool] = lambda: True
    _written: dict[str, tuple[int, Json]] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _moves: dict[str, dict[str, Assignments]] = field(default_factory=dict)
    _sent: dict[Future[None], _Draft] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "status"))
    """Its threads end with the writer."""

    @property
    def waiting(self) -> bool:
        """Whether the last call to write stopped before it had looked at every budget."""
        return bool(self._waiting or self._sent)

    def write(self, settled_at: int) -> int:
        """Writes the statuses that have changed since the last time, as far as its turn lasts; how many.

        The next call goes on with those that this one did not come to.

        Args:
            settled_at: when the books were last brought up to date, in nanoseconds since 1970.

        Raises:
            SourceError: the API server does not answer; what is missing is written the next time.
        """
        until = self.clock() + TURN_SECONDS
        objects, count = self.books.budgets.objects, 0
        if not self.waiting:
            self._begin_anew(objects)
        while self.waiting:
            self._send_on(objects, settled_at)
            limit = until if self._waiting else until + LAST_SECONDS
            wait(self._sent, max(limit - self.clock(), 0), FIRST_COMPLETED)
            count += self._gather()
            if self.clock() >= limit:
                return count
        self._forget_left(settled_at)
        return count

    def _begin_anew(self, objects: Mapping[str, Json]) -> None:
        """All budgets wait for their turn again, those that were written longest ago first."""
        present = {name: uid_of(item) for name, item in objects.items()}
        self._written = {uid: self._written[uid] for uid in present.values() if uid in self._written}
        last = {name: self._written[uid][0] if uid in self._written else 0 for name, uid in present.items()}
        self._moves = moves_by_account(self.books.assignments)
        self._waiting = sorted(objects, key=lambda name: last[name], reverse=True)

    def _send_on(self, objects: Mapping[str, Json], now: int) -> None:
        """Hands the next statuses that must be written to those who send.

        The books are read and changed by the caller's thread alone.
        """
        while self._waiting and len(self._sent) < READY:
            name = self._waiting.pop()
            draft = self._draft(name, objects[name], now) if name in objects else None
            if draft is not None:
                self._sent[self._pool.submit(self._send, draft)] = draft

    def _send(self, draft: _Draft) -> None:
        if not self.leading():
            raise ChangedMeanwhileError("another process leads by now")
        self.source.write_budget_status(draft.name, draft.status, draft.version)

    def _gather(self) -> int:
        """Notes what became of those that were sent; how many were written.

        Raises:
            SourceError: the API server does not answer.
        """
        finished = [future for future in self._sent if future.done()]
        errors = [(self._sent.pop(future), future.exception()) for future in finished]
        written = sum(self._note(draft, error) for draft, error in errors)
        for _, error in errors:
            if error is not None and not isinstance(error, RefusedError | ChangedMeanwhileError):
                raise error
        return written

    def _note(self, draft: _Draft, error: BaseException | None) -> bool:
        """Notes what became of a status; whether it was written."""
        if isinstance(error, RefusedError):
            _log.warning("budget's status refused", budget=draft.name, error=str(error))
            self._written[draft.uid] = (draft.at, draft.status)
            return False
        if error is not None:
            _log.info("budget's status not written", budget=draft.name, error=str(error))
            return False
        self._written[draft.uid] = (draft.at, draft.status)
        account = self.books.accounts.get(draft.name)
        if account is not None and draft.checkpoint is not None:
            account.checkpoint = draft.checkpoint
        return True

    def _draft(self, name: str, item: Json, now: int) -> _Draft | None:
        """A budget's status, if it must be written."""
        books = self.books
        account = books.accounts.get(name)
        found = books.figures.get(name)
        fault = books.budgets.budget_faults.get(name)
        generation = int((item.get("metadata") or {}).get("generation") or 0)
        status: Json = {}
        if account is not None and found is not None:
            status = budget_status(account, found, now)
            moves = told(self._moves.get(name, {}), found.period.start)
            if moves:
                status["checkpoint"]["moves"] = moves
        conditions = conditions_of(found, books.conflicts.get(name, {}), fault, now)
        written_at, written = self._written.get(uid_of(item), (0, item.get("status") or {}))
        status = with_conditions(status, conditions, written, generation, now)
        wanted = REFRESH if timeless(status) != timeless(written) else CONFIRM
        if lasting(status) == lasting(written) and now - written_at < wanted:
            return None
        checkpoint = None if account is None or found is None else checkpoint_of(account, found, now)
        version = str((item.get("metadata") or {}).get("resourceVersion") or "")
        return _Draft(name, uid_of(item), now, status, checkpoint, version)

    def _forget_left(self, now: int) -> None:
        """Drops the sessions whose cost a written checkpoint holds, and those that none ever will, after a while."""
        accounts = self.books.accounts
        self.books.left = [
            (left_at, metered)
            for left_at, metered in self.books.left
            if now - left_at < FORGOTTEN_BY_A_KILLED_REDIS
            or (
                now - left_at < DAY
                and any(_still_needed(accounts[name], left_at) for name, _ in metered.acknowledged.periods)
            )
        ]


def _still_needed(account: Account, left_at: int) -> bool:
    return account.checkpoint is None or account.checkpoint.time < left_at
