"""The leader's tasks on the ledger, which run in one thread while this process leads.

The audit, the export, the delivery of notifications and the queries for present use run in threads of their own, under
the same term.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import redis
import structlog

from fairgpu.leadership import Term
from fairgpu.serving.process_probe import Progress
from timekeeper.controller.archive import Archivist
from timekeeper.controller.eviction import eviction_writes, label_writes
from timekeeper.controller.metrics import BooksRead, JobMeasures
from timekeeper.controller.pod_writer import PodWriter
from timekeeper.controller.pod_writes import Plan, PodWrite
from timekeeper.controller.reconcile.reconciler import NotReadyError, Reconciler
from timekeeper.controller.releases import Releaser, removals
from timekeeper.controller.report.announcements import EventRecorder, Notifier
from timekeeper.controller.report.status_writer import CheckpointKeeper, OrderAnswers, StatusWriter
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.observing import Clocks
from timekeeper.controller.state.other_stacks import doubtful, held_idle, unknown_models
from timekeeper.domain.holdings.holding import Doubt
from timekeeper.domain.money import GPU_SECOND, SECOND
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger.client import FencedError, Store, StoreEmptyError, StoreError
from timekeeper.ledger.connection import store_clock
from timekeeper.ledger.writing import HeldTerm, LedTerm, take_fencing_token
from timekeeper.sources.base import OBSERVED_TO_THE_END, Source, SourceError

STUCK_SECONDS = 120.0
"""The seconds without an answer of any server after which the tasks count as stuck; Redis's time limits are added to
them. A leader of 50,000 pods has its first figures after 30 s of processor time, in all its threads and with many
answers on the way (docs/sizing.md); an answer of the API server takes 35 s at most, and a run that writes statuses ends
after 5 s.
"""
THOROUGH_SECONDS = 3600.0
"""The time between two full garbage collections, which free the few cycles of objects, in seconds."""

REMEMBERED_DEPARTURES = 600 * SECOND
"""The time for which a process that does not lead remembers deletions: longer than a change of leaders takes."""

ARCHIVING_SECONDS = 0.5
"""The longest that archiving delays the other tasks, apart from the step that it has begun."""

_log = structlog.get_logger()


class Collector:
    """Runs Python's garbage collector between reconciliations, and never during one.

    The leader's memory is millions of objects that live for as long as their pods. Nearly none of them are parts of
    cycles, and reference counts free those that are dropped: a full collection examines all of them for nothing. With
    50,000 pods it takes half a second, and a reconciliation that creates as many new objects starts several. Objects
    that are alive after a reconciliation are exempt from further collections.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Makes a collector; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._thorough_at = clock() + THOROUGH_SECONDS

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps Python's garbage collector from running, in any thread, until the block ends."""
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            if self._clock() >= self._thorough_at:
                gc.unfreeze()
                gc.collect()
                self._thorough_at = self._clock() + THOROUGH_SECONDS
            gc.freeze()


def _archiving_time() -> Callable[[], bool]:
    """Returns a function that returns whether ARCHIVING_SECONDS have passed since this call."""
    ends = time.monotonic() + ARCHIVING_SECONDS
    return lambda: time.monotonic() >= ends


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The means of the leader's tasks: the store, the cluster, the term and the clock.

    Attributes:
        client: the store.
        source: the cluster: pods, budgets and grants.
        term: the term in which this process leads, if it does.
        now: returns the present by the local clock.
        most_notifications: the most notifications that may wait for delivery; 0 if notifications are not configured.
        holder: a text that identifies this process; the store keeps it with the fencing token.
        without_notice_seconds: the time for which the write of an eviction notice is tried; after it, the pod is
            evicted without one, but no sooner than with the notice.
        progress: notes each begin and end of a task, and each answer of the store and of the API server, so that a
            stuck process is noticed.
    """

    client: Store
    source: Source
    term: Term
    now: Callable[[], Instant]
    most_notifications: int = 0
    holder: str = ""
    without_notice_seconds: float = 600.0
    progress: Progress = field(default_factory=lambda: Progress(STUCK_SECONDS))


@dataclass(frozen=True, slots=True)
class _LeaderTerm:
    """The objects that do the leader's tasks; a new set is made for each term, and `term` is the term's number."""

    term: int
    reconciler: Reconciler
    releaser: Releaser
    answers: OrderAnswers
    archivist: Archivist
    statuses: StatusWriter
    checkpoints: CheckpointKeeper
    events: EventRecorder
    notifier: Notifier | None


class LeaderTasks:
    """The leader's tasks: to reconcile, to write statuses, and to decide on writes to pods. For one thread alone.

    A task does nothing while this process does not lead. A failure is logged and counted, and not raised.
    """

    def __init__(
        self,
        environment: TaskEnvironment,
        rules: ControllerRules,
        measures: JobMeasures,
    ) -> None:
        self._client = environment.client
        self._source = environment.source
        self._term = environment.term
        self._holder = environment.holder
        self._now = environment.now
        self._most_notifications = environment.most_notifications
        self._without_notice_seconds = environment.without_notice_seconds
        self._rules = rules
        self._measures = measures
        self._leader_term: _LeaderTerm | None = None
        self._reconciled_at = 0
        self._collector = Collector(time.monotonic)
        self.pod_writer = PodWriter(environment.source, measures.pods)
        """Carries out the writes to pods that are decided here, once its threads are started."""
        self._progress = environment.progress

    def react(self) -> None:
        """Reconciles the accounts that have changed, or whose figures are due to be computed again.

        The first reconciliation of a term concerns all accounts.
        """
        self._do("react", lambda leader_term: self._reconcile(leader_term, full=False))

    def settle(self) -> None:
        """Reconciles all accounts and settles every session."""
        self._do("settle", lambda leader_term: self._reconcile(leader_term, full=True))

    def release(self) -> None:
        """Hands the pod writer the removals of scheduling gates that are due, and events of pods that still wait."""

        def decide(leader_term: _LeaderTerm) -> Sequence[PodWrite]:
            progress = self.pod_writer.progress(Plan.RELEASES)
            past = leader_term.reconciler.past
            writes, notices = leader_term.releaser.releases(self._reconciled_at, past, progress)
            self.pod_writer.record(notices)
            return writes

        self._decide(Plan.RELEASES, decide)

    def remove_finalizers(self) -> None:
        """Hands the pod writer the removals of the meter's finalizer from all pods whose end is in the ledger."""
        self._decide(Plan.FINALIZERS, lambda leader_term: removals(leader_term.reconciler.books))

    def label(self) -> None:
        """Hands the pod writer the labels of GPU pods that are due on pods that hold GPUs by claims."""
        self._decide(Plan.LABELS, lambda leader_term: label_writes(leader_term.reconciler.books))

    def evict(self) -> None:
        """Hands the pod writer the notices of eviction, the evictions and the removals of notices that are due."""

        def decide(leader_term: _LeaderTerm) -> Sequence[PodWrite] | None:
            reconciler, wait = leader_term.reconciler, self._without_notice_seconds
            return eviction_writes(reconciler.books, self._reconciled_at, reconciler.past, self._now(), wait)

        self._decide(Plan.EVICTIONS, decide)

    def record_events(self) -> None:
        """Writes the events of budgets whose state has changed since the last run."""
        self._do(
            "record_events",
            lambda leader_term: leader_term.events.record_changes() if self._reconciled_at else None,
        )

    def notify(self) -> None:
        """Stores a message for each new milestone of a budget, if notifications are configured."""

        def run(leader_term: _LeaderTerm) -> None:
            if leader_term.notifier is not None and self._reconciled_at:
                leader_term.notifier.notify(self._reconciled_at)

        self._do("notify", run)

    def write(self) -> None:
        """Writes the statuses of budgets and orders, and the checkpoints.

        It first writes the events of changed states: a later leader assumes that a state in a status was announced.
        """
        self.record_events()
        self._do(
            "write", lambda leader_term: leader_term.answers.write(self._reconciled_at) if self._reconciled_at else None
        )
        self._do(
            "write",
            lambda leader_term: leader_term.statuses.write(self._reconciled_at) if self._reconciled_at else None,
        )
        self._do(
            "write",
            lambda leader_term: leader_term.checkpoints.write(self._reconciled_at) if self._reconciled_at else None,
        )

    def write_on(self) -> None:
        """Runs `write` again if the last run ended before all statuses of budgets were written.

        A run ends early so that other tasks can run. If the last run wrote all statuses, this does nothing.
        """
        if self._leader_term is not None and self._leader_term.statuses.waiting:
            self.write()

    def archive(self) -> None:
        """Compacts old records of the next few accounts in the store, and deletes those past retention.

        Further calls go on with the next accounts. Once all are done, calls do nothing until the next hour. Before the
        first reconciliation, a call does nothing.
        """
        self._do(
            "archive",
            lambda leader_term: (
                leader_term.archivist.archive(leader_term.reconciler.surely_past(self._reconciled_at))
                if self._reconciled_at
                else None
            ),
        )

    def books(self) -> BooksRead | None:
        """Returns the accounts with the figures that were last published, and the number of sessions, for the metrics.

        Returns:
            None while this process does not lead, and before its first reconciliation.
        """
        leader_term = self._leader_term
        if leader_term is None or not self._reconciled_at:
            return None
        kept = leader_term.reconciler.books
        figures = dict(kept.figures)
        accounts = [
            (kept.accounts[name], account_figures) for name, account_figures in figures.items() if name in kept.accounts
        ]
        return BooksRead(len(kept.pods.sessions), accounts)

    def open_sessions(self) -> list[Session] | None:
        """Returns the open sessions; None while this process does not lead, or has not reconciled yet. Thread-safe."""
        leader_term = self._leader_term
        if leader_term is None or not self._reconciled_at:
            return None
        metered = [each.session for each in leader_term.reconciler.books.pods.sessions.all()]
        return [session for session in metered if session.end is None]

    def _reconcile(self, leader_term: _LeaderTerm, *, full: bool) -> None:
        now = self._now()
        whole = full or not self._reconciled_at  # the first reconciliation of a term reads everything
        with self._collector.paused() if whole else nullcontext():
            leader_term.reconciler.reconcile(now, full=full)
        self._reconciled_at = now
        self._measures.not_settled.set(len(leader_term.reconciler.books.not_settled))
        self._measures.held_back.set(leader_term.reconciler.held_back)
        self._measures.clock_ahead.set(leader_term.reconciler.books.pods.ahead / SECOND)
        self._measures.ahead_of_store.set(leader_term.reconciler.ahead_of_store(now) / SECOND)
        if full:
            self._measures.settled_at.set(now / SECOND)
            self._measures.unknown_model.set(unknown_models(leader_term.reconciler.books) / GPU_SECOND)
            counts = doubtful(leader_term.reconciler.books)
            for doubt in Doubt:
                self._measures.doubtful.labels(doubt.value).set(counts[doubt])
            self._measures.unlisted_claims.set(leader_term.reconciler.books.claims.unlisted())
            self._measures.held_idle.set(held_idle(leader_term.reconciler.books, now) / GPU_SECOND)

    def _decide(self, plan: Plan, decide: Callable[[_LeaderTerm], Sequence[PodWrite] | None]) -> None:
        """Hands a task's decision to the pod writer, which writes nothing once this process has stopped leading.

        Args:
            plan: the task, whose earlier decision is replaced.
            decide: returns the writes to pods that are due; None to stop the earlier ones without new ones.
        """

        def run(leader_term: _LeaderTerm) -> None:
            writes = decide(leader_term) if self._reconciled_at else None
            if writes is None:
                self.pod_writer.pause(plan)
            else:
                self.pod_writer.hand_over(plan, writes, lambda: self._term.number() == leader_term.term)

        self._do(plan.value, run)
        if self._leader_term is None:
            self.pod_writer.hand_over(plan, (), lambda: False)

    def _do(self, job: str, run: Callable[[_LeaderTerm], object]) -> None:
        self._progress.note()
        try:
            leader_term = self._present_term()
            if leader_term is not None:
                with self._measures.durations.labels(job).time():
                    run(leader_term)
        except NotReadyError as error:
            _log.info("not started yet", job=job, reason=str(error))
        except FencedError as error:
            # Another leader has followed: the term is over until the Lease says otherwise.
            self._term.lose()
            self._leader_term, self._reconciled_at = None, 0
            self._failed(job, error)
        except (StoreError, SourceError, redis.RedisError) as error:
            if isinstance(error, StoreEmptyError):
                self._reconciled_at = 0
            self._failed(job, error)
        except Exception as error:  # noqa: BLE001 - no error may stop the later runs
            # The state in memory may be half changed: the next reconciliation reads the store again.
            self._leader_term, self._reconciled_at = None, 0
            self._failed(job, error)
            _log.exception("job failed unexpectedly", job=job)
        finally:
            self._progress.note()

    def _failed(self, job: str, error: Exception) -> None:
        kind = type(error).__name__
        self._measures.failures.labels(job, kind).inc()
        _log.warning("job failed and is tried again", job=job, kind=kind, error=str(error))

    def _present_term(self) -> _LeaderTerm | None:
        number = self._term.number()
        self._measures.leading.set(number is not None)
        if number is None:
            self._leader_term, self._reconciled_at = None, 0
            self._measures.clear_leader()
            self._forget_old_departures()
            return None
        if self._leader_term is None or self._leader_term.term != number:
            self._reconciled_at = 0
            fencing_token = take_fencing_token(self._client, number, self._holder)
            clocks = Clocks(self._now, partial(store_clock, self._client))
            led = LedTerm(fencing_token, HeldTerm(number, self._holder))
            reconciler = Reconciler(self._client, self._source, self._rules, led, clocks)
            releaser = Releaser(self._source, reconciler.books)
            statuses = StatusWriter(self._source, reconciler.books, leading=lambda: self._term.number() == number)
            checkpoints = CheckpointKeeper(self._source, reconciler.books, leading=statuses.leading)
            answers, events = (
                OrderAnswers(self._source, reconciler.books),
                EventRecorder(self._source, reconciler.books),
            )
            archivist = Archivist(
                self._client,
                self._source,
                reconciler.books,
                reconciler.fencing_token,
                self._rules.retention,
                _archiving_time,
            )
            notifier = self._notifier(reconciler)
            self._leader_term = _LeaderTerm(
                number, reconciler, releaser, answers, archivist, statuses, checkpoints, events, notifier
            )
            _log.info("term begun", term=number, fencing_token=reconciler.fencing_token)
        return self._leader_term

    def _notifier(self, reconciler: Reconciler) -> Notifier | None:
        if not self._most_notifications:
            return None
        counter = self._measures.notifications
        return Notifier(self._client, reconciler.books, reconciler.fencing_token, self._most_notifications, counter)

    def _forget_old_departures(self) -> None:
        """Drops from the mirrors the deletions of objects that this process needs no more while it does not lead.

        These are deletions older than REMEMBERED_DEPARTURES, and those of kinds of objects whose deletion ends no
        session. Other deletions stay in the mirrors until this process leads and handles them.
        """
        mirrors = self._source.mirrors
        oldest = self._now() - REMEMBERED_DEPARTURES
        for name in mirrors.__slots__:
            mirror = getattr(mirrors, name)
            kept = [departure for departure in mirror.take_departures() if departure.at >= oldest]
            mirror.return_departures(kept if name in OBSERVED_TO_THE_END else [])
