"""Writes the statuses of GPUBudgets, with their checkpoints, in turns that do not delay the leader's other tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import structlog

from timekeeper.controller.report.status_documents import (
    Json,
    budget_status,
    checkpoint_of,
    conditions_of,
    deprioritizes,
    lasting,
    timeless,
    with_conditions,
)
from timekeeper.controller.state.accounts import Account, Checkpoint, moves_by_account, recorded_moves
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.other_stacks import idle_quotas
from timekeeper.domain.charges import Assignments
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import DAY
from timekeeper.sources.base import ChangedMeanwhileError, RefusedError, Source, uid_of

_log = structlog.get_logger()

REFRESH = 60 * SECOND
"""The shortest time between two writes of figures that change all the time."""
CONFIRM = 600 * SECOND
"""The shortest time between two writes of a status in which only its time is new."""
TURN_SECONDS = 0.25
"""The longest that one run delays the other tasks: with ten thousand budgets, writing takes minutes."""

LAST_SECONDS = 5.0
"""The additional time that a run waits for the last answers, to complete a pass over all budgets."""
AT_ONCE = 16
"""The number of statuses that are sent in parallel: the API server takes milliseconds for each."""
READY = 64
"""The number of statuses prepared ahead, so that sending continues while other tasks run."""

FORGOTTEN_BY_A_KILLED_REDIS = 60 * SECOND
"""Much longer than the seconds of acknowledged writes that a killed Redis can lose."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A budget's status and checkpoint, ready to be written."""

    name: str
    uid: str
    at: int
    status: Json
    checkpoint: Checkpoint | None
    version: str
    """The budget's resourceVersion when this was drafted, so that no older status replaces a newer one."""


@dataclass(slots=True)
class StatusWriter:
    """Writes the changed statuses of GPUBudgets, for one term of the leader.

    Attributes:
        source: the cluster.
        books: the leader's state.
        clock: a monotonic clock, in seconds.
        leading: returns whether the term lasts.
    """

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    leading: Callable[[], bool] = lambda: True
    _written: dict[str, tuple[int, Json]] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _moves: dict[str, dict[str, Assignments]] = field(default_factory=dict)
    _idle_quotas: frozenset[str] = frozenset()
    _sent: dict[Future[None], _Draft] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "status"))
    """Sends the statuses; its threads end with the writer."""

    @property
    def waiting(self) -> bool:
        """Whether the last call to write stopped before it had written every budget's status."""
        return bool(self._waiting or self._sent)

    def write(self, settled_at: int) -> int:
        """Writes the statuses of GPUBudgets that have changed, for TURN_SECONDS at most; returns their number.

        The next call continues with the rest.

        Args:
            settled_at: the instant of the last reconciliation, in nanoseconds since 1970.

        Raises:
            SourceError: the API server does not answer; the next call writes the rest.
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
        """Queues all budgets, those that were written longest ago first."""
        present = {name: uid_of(item) for name, item in objects.items()}
        self._written = {uid: self._written[uid] for uid in present.values() if uid in self._written}
        last = {name: self._written[uid][0] if uid in self._written else 0 for name, uid in present.items()}
        self._moves = moves_by_account(self.books.assignments)
        self._idle_quotas = idle_quotas(self.books, self.source.mirrors)
        self._waiting = sorted(objects, key=lambda name: last[name], reverse=True)

    def _send_on(self, objects: Mapping[str, Json], now: int) -> None:
        """Submits the next statuses that must be written to the pool.

        Only the caller's thread reads and changes the leader's memory.
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
        """Records the outcome of each status whose request has ended; returns the number that the API server accepted.

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
        """Records the outcome of a status; returns whether it was written."""
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
        """Returns a budget's status if it must be written, else None."""
        books = self.books
        account = books.accounts.get(name)
        figures = books.figures.get(name)
        fault = books.budgets.budget_faults.get(name)
        generation = int((item.get("metadata") or {}).get("generation") or 0)
        status: Json = {}
        if account is not None and figures is not None:
            status = budget_status(account, figures, now)
            moves = recorded_moves(self._moves.get(name, {}), figures.period.start)
            if moves:
                status["checkpoint"]["moves"] = moves
        yields = books.rules.gives_classes or account is None or not deprioritizes(account.budget)
        idle = frozenset() if account is None else self._idle_quotas & account.budget.namespaces
        conflicts = books.conflicts.get(name, {})
        conditions = conditions_of(figures, conflicts, fault, now, yields=yields, idle_quotas=idle)
        written_at, written = self._written.get(uid_of(item), (0, item.get("status") or {}))
        status = with_conditions(status, conditions, written, generation, now)
        wanted = REFRESH if timeless(status) != timeless(written) else CONFIRM
        if lasting(status) == lasting(written) and now - written_at < wanted:
            return None
        checkpoint = None if account is None or figures is None else checkpoint_of(account, figures, now)
        version = str((item.get("metadata") or {}).get("resourceVersion") or "")
        return _Draft(name, uid_of(item), now, status, checkpoint, version)

    def _forget_left(self, now: int) -> None:
        """Drops the finalized sessions that a written checkpoint includes, and after a day all others."""
        accounts = self.books.accounts
        self.books.finalized = [
            (left_at, metered)
            for left_at, metered in self.books.finalized
            if now - left_at < FORGOTTEN_BY_A_KILLED_REDIS
            or (
                now - left_at < DAY
                and any(_still_needed(accounts[name], left_at) for name, _ in metered.acknowledged.periods)
            )
        ]


def _still_needed(account: Account, left_at: int) -> bool:
    return account.checkpoint is None or account.checkpoint.time < left_at
