"""Writes the statuses of GPUBudgets, with their checkpoints, and of orders; and the checkpoints of all other accounts.

Statuses of budgets are written in turns that do not delay the other tasks of the leader. The checkpoints of accounts
without a GPUBudget are divided among a few objects of the API server. A checkpoint is always in the same object, so a
change of one account is one small write. These objects also hold the instant from which pods of other stacks are
metered, the parts of GPUs that these pods hold, and, if they differ from the prices in the settings, the prices by
which sessions were charged.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import structlog

from timekeeper.controller.report.status_documents import (
    Json,
    budget_status,
    checkpoint_of,
    checkpoint_status,
    conditions_of,
    correction_status,
    deprioritizes,
    grant_status,
    lasting,
    refused_order,
    timeless,
    with_conditions,
)
from timekeeper.controller.state.accounts import Account, Checkpoint, moves_by_account, recorded_moves
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.figures import Figures
from timekeeper.controller.state.loading import DECIDED, PRICES, SINCE, kept_holdings, kept_prices, kept_since
from timekeeper.controller.state.other_stacks import idle_quotas
from timekeeper.domain.charges import Assignments
from timekeeper.domain.money import SECOND, display
from timekeeper.domain.orders import (
    NAME_TAKEN,
    NO_BUDGET,
    REFUSED,
    Correction,
    Grant,
    OrderEntry,
    condition_reason,
)
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import FOREVER
from timekeeper.domain.timestamps import DAY, Instant, format_instant
from timekeeper.sources.base import CHECKPOINT_SHARDS, ChangedMeanwhileError, RefusedError, Source, uid_of

_log = structlog.get_logger()

REFRESH = 60 * SECOND
"""The shortest time between two writes of figures that change all the time."""
CONFIRM = 600 * SECOND
"""The shortest time between two writes of a status or a checkpoint in which only times and versions are new."""
TURN_SECONDS = 0.25
"""The most seconds that one run delays the other tasks: with ten thousand budgets, writing takes minutes."""

LAST_SECONDS = 5.0
"""The seconds that a run waits longer for the last answers, to complete a pass over all budgets."""
AT_ONCE = 16
"""The number of statuses that are sent in parallel: the API server takes milliseconds for each."""
READY = 64
"""The number of statuses prepared ahead, so that sending continues while other tasks run."""

FORGOTTEN_BY_A_KILLED_REDIS = 60 * SECOND
"""The time for which finalized sessions stay in memory in any case. It is much longer than the seconds of acknowledged
writes that a killed Redis can lose.
"""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A budget's status and checkpoint as they are to be written; `at` is their instant, in nanoseconds since 1970."""

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

    def write(self, settled_at: Instant) -> int:
        """Writes the statuses of GPUBudgets that have changed, for about TURN_SECONDS; returns how many were written.

        Once all are sent, it waits up to LAST_SECONDS longer for their answers. The next call continues with the rest.
        A status in which only passing figures have changed waits for REFRESH, one with only new times for CONFIRM.

        Args:
            settled_at: the instant of the last reconciliation.

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
        """Queues all budgets for writing, those whose status was written longest ago first."""
        present = {name: uid_of(item) for name, item in objects.items()}
        self._written = {uid: self._written[uid] for uid in present.values() if uid in self._written}
        last = {name: self._written[uid][0] if uid in self._written else 0 for name, uid in present.items()}
        self._moves = moves_by_account(self.books.assignments)
        self._idle_quotas = idle_quotas(self.books, self.source.mirrors)
        self._waiting = sorted(objects, key=lambda name: last[name], reverse=True)

    def _send_on(self, objects: Mapping[str, Json], now: Instant) -> None:
        """Hands to the sending threads the next statuses that must be written.

        The sending threads do not touch the leader's memory.
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
        """Records the outcome of writing a budget's status, `error` or None; returns whether the API server took it.

        A refused status is remembered as if it were written: it is not sent again before it changes or is due to be
        confirmed. After any other error it is sent again in the next pass. With a status that was taken, the account
        gets its checkpoint.
        """
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

    def _draft(self, name: str, item: Json, now: Instant) -> _Draft | None:
        """Returns the new status of a GPUBudget (`item`) with this name; None if it need not be written now."""
        books = self.books
        account = books.accounts.get(name)
        figures = books.figures.get(name)
        fault = books.budgets.budget_faults.get(name)
        generation = int((item.get("metadata") or {}).get("generation") or 0)
        written_at, written = self._written.get(uid_of(item), (0, item.get("status") or {}))
        # An account that cannot be read has no figures. A later leader may need its last checkpoint.
        status: Json = {field: value for field, value in written.items() if field != "conditions"}
        checkpoint = None
        if account is not None and figures is not None:
            status = budget_status(account, figures, now)
            moves = recorded_moves(self._moves.get(name, {}), figures.period.start)
            if account.restoring is None:
                checkpoint = checkpoint_of(account, figures, now)
            elif written.get("checkpoint"):  # a later leader restores the account from the checkpoint that it has now
                status["checkpoint"] = dict(written["checkpoint"])
            if moves:
                status["checkpoint"]["moves"] = moves
        yields = books.rules.gives_classes or account is None or not deprioritizes(account.budget)
        idle = frozenset() if account is None else self._idle_quotas & account.budget.namespaces
        conflicts = books.conflicts.get(name, {})
        conditions = conditions_of(figures, conflicts, fault, now, yields=yields, idle_quotas=idle)
        status = with_conditions(status, conditions, written, generation, now)
        wanted = REFRESH if timeless(status) != timeless(written) else CONFIRM
        if lasting(status) == lasting(written) and now - written_at < wanted:
            return None
        version = str((item.get("metadata") or {}).get("resourceVersion") or "")
        return _Draft(name, uid_of(item), now, status, checkpoint, version)

    def _forget_left(self, now: Instant) -> None:
        """Drops finalized sessions from memory that are not needed to restore a store any more.

        A session is kept for FORGOTTEN_BY_A_KILLED_REDIS after it was finalized. It is kept longer, up to a day, while
        a checkpoint that should include it is not written yet.
        """
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


PATIENCE = 10 * SECOND
"""The time after which the status of an order says that its budget does not exist: the two are often created together,
the order first.
"""


@dataclass(slots=True)
class OrderAnswers:
    """Writes the statuses of orders (GPUGrants and GPUCorrections), for one term of the leader.

    An order whose status says that it was applied gets none. Any other gets one once in a term. An order whose budget
    does not exist gets a status that says so, and another once the budget exists and the order is applied or refused.

    Attributes:
        source: the cluster.
        books: the leader's state.
    """

    source: Source
    books: Books
    _answered: set[tuple[str, str]] = field(default_factory=set)
    _without_budget: dict[tuple[str, str], int] = field(default_factory=dict)

    def write(self, now: Instant) -> int:
        """Writes the statuses of orders that were applied or refused, are invalid, or have waited for their budget.

        It returns the number of statuses sent. One that the API server refuses counts, too, and is not sent again.

        Raises:
            SourceError: the API server does not answer; the next call writes the rest.
        """
        view = self.books.budgets
        present = {("grant", name) for name in view.grant_objects}
        present |= {("correction", name) for name in view.correction_objects}
        self._answered &= present
        self._without_budget = {order: due for order, due in self._without_budget.items() if order in present}
        count = 0
        for name, item in view.grant_objects.items():
            count += self._write("grant", name, item, self.source.write_grant_status, now)
        for name, item in view.correction_objects.items():
            count += self._write("correction", name, item, self.source.write_correction_status, now)
        return count

    def _write(self, kind: str, name: str, item: Json, write: Callable[[str, Json], None], now: Instant) -> bool:
        before = item.get("status") or {}
        if before.get("applied") is True or (kind, name) in self._answered:
            return False
        generation = int((item.get("metadata") or {}).get("generation") or 0)
        status = self._status(kind, name, before, generation, now)
        if status is None:
            return False
        try:
            write(name, status)
        except RefusedError as error:
            _log.warning("status refused", kind=kind, name=name, error=str(error))
        except ChangedMeanwhileError as error:
            _log.info("object deleted before its status was written", kind=kind, name=name, error=str(error))
        if (kind, name) in self._without_budget:
            self._without_budget[(kind, name)] = FOREVER
        else:
            self._answered.add((kind, name))
        return True

    def _waiting(self, kind: str, name: str, budget: str, generation: int, now: Instant, before: Json) -> Json | None:
        """Returns the status of an order whose budget has not existed for PATIENCE.

        None before PATIENCE has passed, and if the order's status already says that its budget is missing. None also
        if the budget's object exists but is invalid.

        Args:
            kind: the noun for the order: grant or correction.
            generation: the generation of the object's spec.
            before: the status that the object has now.
        """
        due = self._without_budget.setdefault((kind, name), now + PATIENCE)
        if budget in self.books.budgets.objects:
            return None  # the budget's own status says what is wrong with it
        if now < due or condition_reason(before) == NO_BUDGET:
            return None
        message = (
            f"There is no GPUBudget {budget}: this {kind} is applied once there is one. If the name is wrong, delete "
            "it and make another under a name of its own."
        )
        return refused_order(NO_BUDGET, message, generation, now, before)

    def _status(self, kind: str, name: str, before: Json, generation: int, now: Instant) -> Json | None:
        """Returns the new status of an order: it was applied or refused, is invalid, or lacks its budget.

        None while the ledger has neither applied nor refused the order, and if `_waiting` returns None.

        Args:
            kind: the noun for the order: grant or correction.
            before: the status that the object has now.
            generation: the generation of the object's spec.
        """
        view = self.books.budgets
        fault = (view.grant_faults if kind == "grant" else view.correction_faults).get(name)
        if fault is not None:
            return refused_order("Invalid", str(fault), generation, now, before)
        order = view.grants[name] if kind == "grant" else view.corrections[name]
        account = self.books.accounts.get(order.budget)
        if account is None:
            return self._waiting(kind, name, order.budget, generation, now, before)
        self._without_budget.pop((kind, name), None)
        if isinstance(order, Grant):
            return _answer_grant(order, account, generation, now, before)
        return _answer_correction(order, account, generation, now, before)


def _answer_grant(grant: Grant, account: Account, generation: int, now: Instant, before: Json) -> Json | None:
    if grant.name in account.refused_grants:
        return refused_order(REFUSED, account.refused_grants[grant.name], generation, now, before)
    if grant.name not in account.grants:
        return None
    stored = account.grants[grant.name]
    made_in = account.period_at(min(grant.created or now, now))
    if stored is not None and is_another(stored, grant.amount, made_in):
        return refused_order(NAME_TAKEN, name_taken(stored, "grant"), generation, now, before)
    return grant_status(grant, None if stored is None else stored.period, generation, now, before)


def _answer_correction(
    correction: Correction, account: Account, generation: int, now: Instant, before: Json
) -> Json | None:
    if correction.name in account.refused:
        return refused_order(REFUSED, account.refused[correction.name], generation, now, before)
    period = account.period_at(correction.effective)
    stored = account.corrections.get(correction.name)
    if period is None or stored is None:
        return None
    if is_another(stored, correction.amount, period):
        return refused_order(NAME_TAKEN, name_taken(stored, "correction"), generation, now, before)
    return correction_status(correction, period, generation, now, before)


def is_another(stored: OrderEntry, amount: int, period: Period | None) -> bool:
    """Returns whether the ledger holds another order under the name of this order.

    An order that was created again unchanged, for example from a backup of the cluster, is the same order if it falls
    into the same period.

    Args:
        stored: the order that the ledger holds under the name.
        amount: the amount of this order, in microGPU-seconds.
        period: the period of this order; None if it is not known, and then only the amounts are compared.
    """
    return stored.amount != amount or (period is not None and stored.period != period.start)


def name_taken(stored: OrderEntry, kind: str) -> str:
    """Returns the message for an order whose name the ledger already holds for a different order.

    Args:
        stored: the different order.
        kind: the noun for the order: grant or correction.
    """
    return (
        f"Nothing was done: the ledger holds a {kind} of this name, of {display(stored.amount)} GPU-hours in the "
        f"period from {format_instant(stored.period)}, and each name counts once, also where its object was deleted. "
        "Make this one under another name."
    )


MOST_BYTES = 900_000
"""The largest size, in bytes, of a shard, which is one object of checkpoint documents: etcd takes one and a half
million bytes, the API server a million of a ConfigMap's data
(https://kubernetes.io/docs/concepts/configuration/configmap/).
"""

HOLDINGS_AGE = 30 * SECOND
"""The shortest interval between writes of a shard in which only the holdings of sessions have changed.

Pods come and go all the time, and a shard of 50,000 sessions has a quarter of a megabyte.
"""

SHARED = frozenset({PRICES, SINCE})
"""The documents that belong to no account."""
_NUMBER = re.compile(r"[0-9]{1,9}")


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

    def write(self, now: Instant) -> int:
        """Writes the objects of checkpoints that have changed; returns their number.

        An object is also written once it is CONFIRM old. Nothing is written after the term has ended.

        Args:
            now: the instant of the last reconciliation.

        Raises:
            SourceError: the API server does not answer; the next call writes the rest.
        """
        if self._written is None:
            shards = shards_of({name: each for name, each in self.source.read_checkpoints().items() if _is_whole(each)})
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

    def _documents(self, now: Instant) -> dict[str, Json]:
        books = self.books
        prices = kept_prices(books.prices, books.rules.prices)
        return (
            self._documents_of_unreadable()
            | prices
            | kept_since(books.since)
            | kept_holdings(books.pods.sessions.all())
            | {
                name: checkpoint_status(account, figures, now)
                for name, account in books.accounts.items()
                if not books.has_object(name)
                and account.restoring is None
                and (figures := books.figures.get(name)) is not None
                and _matters(account, figures)
            }
        )

    def _documents_of_unreadable(self) -> Json:
        """Returns the last checkpoints of the accounts that cannot be read now, or that lack a part of theirs."""
        books, written = self.books, [shard for _, shard in (self._written or {}).values()]
        lacking = {
            name for name, each in books.accounts.items() if name not in books.figures or each.restoring is not None
        }
        return {
            name: document
            for shard in written
            for name, document in shard.items()
            if name in lacking and not books.has_object(name)
        }

    def _write(self, number: int, shard: Json, now: Instant) -> bool:
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
        for name in kept.keys() & self.books.figures.keys():
            account = self.books.accounts[name]
            if account.restoring is None:
                account.checkpoint = checkpoint_of(account, self.books.figures[name], now)
        return True


def shards_of(documents: Json) -> dict[int, Json]:
    """Divides checkpoint documents among CHECKPOINT_SHARDS objects of the API server.

    A document of a name such as `:held:2` (see `DECIDED`) belongs to the object of that number, any other to the object
    that a hash of its name gives.

    Returns:
        The documents, keyed by the object's number and then by the document's name; objects without one are left out.
    """
    shards: dict[int, Json] = {}
    for name, document in documents.items():
        number = name.removeprefix(DECIDED) if name.startswith(DECIDED) else ""
        shard = int(number) if _NUMBER.fullmatch(number) else zlib.crc32(name.encode())
        shards.setdefault(shard % CHECKPOINT_SHARDS, {})[name] = document
    return shards


def _is_whole(document: object) -> bool:
    """Whether a document has the form of a checkpoint's; one of another form is replaced as if there were none."""
    return isinstance(document, dict) and isinstance(document.get("checkpoint", {}), dict)


def _is_account(name: str) -> bool:
    return name not in SHARED and not name.startswith(DECIDED)


def fitting(shard: Json, most_bytes: int) -> Json:
    """Returns the first checkpoint documents of a shard, as many as fit into one object of the API server.

    Documents that belong to no account come first. Then come the accounts whose finalized sessions cost most.

    Args:
        shard: the documents meant for the object, keyed by name.
        most_bytes: the largest size of the result as JSON.
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
    """Whether the account needs a checkpoint: its present period has credits, or spending of finalized sessions.

    The store's other amounts can be computed again from the pods.
    """
    return account.period_totals[figures.period.start].finalized > 0 or bool(account.credits.get(figures.period.start))


def _timeless(shard: Json) -> Json:
    return {
        name: {**document, "checkpoint": {**document.get("checkpoint", {}), "time": "", "version": 0}}
        for name, document in shard.items()
        if not name.startswith(DECIDED)
    }


def _decided(shard: Json) -> Json:
    return {name: document for name, document in shard.items() if name.startswith(DECIDED)}
