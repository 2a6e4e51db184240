"""The jobs of the leading process, each a function that a scheduler calls again and again, one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import redis
import structlog

from timekeeper.jobs.archiving import Archivist
from timekeeper.jobs.collecting import Collector
from timekeeper.jobs.measures import JobMeasures
from timekeeper.jobs.memory.books import KeeperRules
from timekeeper.jobs.memory.observing import Clocks
from timekeeper.jobs.news.checkpoints import CheckpointKeeper
from timekeeper.jobs.news.events import Teller
from timekeeper.jobs.news.notifying import Notifier
from timekeeper.jobs.news.order_statuses import OrderAnswers
from timekeeper.jobs.news.series import BooksRead
from timekeeper.jobs.news.status_writing import StatusWriter
from timekeeper.jobs.pods.evicting import evictions
from timekeeper.jobs.pods.letting_go import removals
from timekeeper.jobs.pods.releasing import Releaser
from timekeeper.jobs.pods.writer import PodWriter
from timekeeper.jobs.pods.writes import Plan, PodWrite
from timekeeper.jobs.round.desk import Step
from timekeeper.jobs.round.keeper import Keeper, NotReadyError
from timekeeper.leadership.term import Term
from timekeeper.rules.money import SECOND
from timekeeper.sources.source import Source, SourceError
from timekeeper.store.calls import FencedError, StoreEmptyError, StoreError
from timekeeper.store.ledger import take_epoch
from timekeeper.store.servers import store_clock

REMEMBERED_DEPARTURES = 600 * SECOND
"""How long one who does not lead remembers who left: longer than any change of leaders takes."""

ARCHIVING_SECONDS = 0.5
"""The longest that archiving keeps the other jobs waiting, beside the step that it has begun."""

_log = structlog.get_logger()


def _archiving_time() -> Callable[[], bool]:
    """Says later whether the time that archiving has is up."""
    ends = time.monotonic() + ARCHIVING_SECONDS
    return lambda: time.monotonic() >= ends


@dataclass(frozen=True, slots=True)
class World:
    """What surrounds the work.

    Attributes:
        client: the store; its answers are bytes.
        source: pods, budgets and grants.
        term: whether this process leads.
        now: nanoseconds since 1970.
        most_notifications: how many may wait to be delivered; 0 where nobody is notified.
        holder: names this process and no other, as whose term the store notes an epoch.
        without_notice_seconds: how long a notice that cannot be written on a pod is tried before it is evicted without.
    """

    client: redis.Redis
    source: Source
    term: Term
    now: Callable[[], int]
    most_notifications: int = 0
    holder: str = ""
    without_notice_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class _Reign:
    """What is kept in memory for one term."""

    term: int
    keeper: Keeper
    releaser: Releaser
    answers: OrderAnswers
    archivist: Archivist
    writer: StatusWriter
    checkpoints: CheckpointKeeper
    teller: Teller
    notifier: Notifier | None


class Work:
    """What this process does while it leads."""

    def __init__(
        self, world: World, rules: KeeperRules, measures: JobMeasures, step: Step = lambda _name: None
    ) -> None:
        self._client = world.client
        self._source = world.source
        self._term = world.term
        self._holder = world.holder
        self._now = world.now
        self._most_notifications = world.most_notifications
        self._without_notice_seconds = world.without_notice_seconds
        self._rules = rules
        self._measures = measures
        self._step = step
        self._reign: _Reign | None = None
        self._rounded_at = 0
        self._collector = Collector(time.monotonic)
        self.pod_writer = PodWriter(world.source, measures.pods)
        """Carries out what is decided here on pods, once somebody has started it."""
        self.progressed_at = time.monotonic()
        """When a job last ended, well or not, on the monotonic clock."""

    def react(self) -> None:
        """Takes up what has changed and what is due."""
        self._do("react", lambda reign: self._round(reign, full=False))

    def settle(self) -> None:
        """Settles every session."""
        self._do("settle", lambda reign: self._round(reign, full=True))

    def release(self) -> None:
        """Decides which held pods the money reaches."""

        def decide(reign: _Reign) -> Sequence[PodWrite]:
            progress = self.pod_writer.progress(Plan.RELEASES)
            writes, notices = reign.releaser.releases(self._rounded_at, progress)
            self.pod_writer.tell(notices)
            return writes

        self._decide(Plan.RELEASES, decide)

    def let_go(self) -> None:
        """Decides from which pods the finalizer is taken: those whose end is in the ledger."""
        self._decide(Plan.FINALIZERS, lambda reign: removals(reign.keeper.books))

    def evict(self) -> None:
        """Decides which running pods of spent budgets get notice and are evicted, where the admin wants that."""

        def decide(reign: _Reign) -> Sequence[PodWrite] | None:
            return evictions(reign.keeper.books, self._rounded_at, self._now(), self._without_notice_seconds)

        self._decide(Plan.EVICTIONS, decide)

    def tell(self) -> None:
        """Writes events beside budgets whose state has changed."""
        self._do("tell", lambda reign: reign.teller.tell() if self._rounded_at else None)

    def notify(self) -> None:
        """Puts news of budgets into the outbox, where somebody wants them."""

        def run(reign: _Reign) -> None:
            if reign.notifier is not None and self._rounded_at:
                reign.notifier.notify(self._rounded_at)

        self._do("notify", run)

    def write(self) -> None:
        """Writes statuses and checkpoints.

        A state that a status shows counts as told, under every later leader: so it is told first.
        """
        self.tell()
        self._do("write", lambda reign: reign.answers.write(self._rounded_at) if self._rounded_at else None)
        self._do("write", lambda reign: reign.writer.write(self._rounded_at) if self._rounded_at else None)
        self._do("write", lambda reign: reign.checkpoints.write(self._rounded_at) if self._rounded_at else None)

    def write_on(self) -> None:
        """Goes on with writing that had to stop for the other jobs."""
        if self._reign is not None and self._reign.writer.waiting:
            self.write()

    def archive(self) -> None:
        """Folds what is old and forgets what is older, a few accounts at a time."""
        self._do("archive", lambda reign: reign.archivist.archive(self._rounded_at) if self._rounded_at else None)

    def books(self) -> BooksRead | None:
        """The books as they are now, for whoever tells of them; None while this process does not lead."""
        reign = self._reign
        if reign is None or not self._rounded_at:
            return None
        kept = reign.keeper.books
        figures = dict(kept.figures)
        accounts = [(kept.accounts[name], found) for name, found in figures.items() if name in kept.accounts]
        return BooksRead(len(kept.pods.sessions), accounts)

    def _round(self, reign: _Reign, *, full: bool) -> None:
        now = self._now()
        whole = full or not self._rounded_at  # the first round of a term reads everything
        with self._collector.paused() if whole else nullcontext():
            reign.keeper.round(now, full=full)
        self._rounded_at = now
        self._measures.not_settled.set(len(reign.keeper.books.not_settled))
        self._measures.held_back.set(reign.keeper.held_back)
        self._measures.clock_ahead.set(reign.keeper.books.pods.ahead / SECOND)
        if full:
            self._measures.settled_at.set(now / SECOND)

    def _decide(self, plan: Plan, decide: Callable[[_Reign], Sequence[PodWrite] | None]) -> None:
        """Hands what a job decides over to the pod writer; nothing of it is done by whoever does not lead."""

        def run(reign: _Reign) -> None:
            writes = decide(reign) if self._rounded_at else None
            if writes is None:
                self.pod_writer.pause(plan)
            else:
                self.pod_writer.hand_over(plan, writes, lambda: self._term.number() == reign.term)

        self._do(plan.value, run)
        if self._reign is None:
            self.pod_writer.hand_over(plan, (), lambda: False)

    def _do(self, job: str, run: Callable[[_Reign], object]) -> None:
        try:
            reign = self._present_reign()
            if reign is not None:
                with self._measures.durations.labels(job).time():
                    run(reign)
        except NotReadyError as error:
            _log.info("not started yet", job=job, reason=str(error))
        except FencedError as error:
            # Somebody has followed: the term is over, whatever this process believes, until the Lease says otherwise.
            self._term.lose()
            self._reign, self._rounded_at = None, 0
            self._failed(job, error)
        except (StoreError, SourceError, redis.RedisError) as error:
            if isinstance(error, StoreEmptyError):
                self._rounded_at = 0
            self._failed(job, error)
        except Exception as error:  # noqa: BLE001 - whatever broke, the books must go on being kept
            # Memory may be half changed: the next round begins from the store again.
            self._reign, self._rounded_at = None, 0
            self._failed(job, error)
            _log.exception("job broke off", job=job)
        finally:
            self.progressed_at = time.monotonic()

    def _failed(self, job: str, error: Exception) -> None:
        kind = type(error).__name__
        self._measures.failures.labels(job, kind).inc()
        _log.warning("job failed and is tried again", job=job, kind=kind, error=str(error))

    def _present_reign(self) -> _Reign | None:
        number = self._term.number()
        self._measures.leading.set(number is not None)
        if number is None:
            self._reign, self._rounded_at = None, 0
            self._forget_old_departures()
            return None
        if self._reign is None or self._reign.term != number:
            self._rounded_at = 0
            epoch = take_epoch(self._client, number, self._holder)
            clocks = Clocks(self._now, partial(store_clock, self._client))
            keeper = Keeper(self._client, self._source, self._rules, epoch, self._step, clocks)
            releaser = Releaser(self._source, keeper.books)
            writer = StatusWriter(self._source, keeper.books, leading=lambda: self._term.number() == number)
            checkpoints = CheckpointKeeper(self._source, keeper.books, leading=writer.leading)
            answers, teller = OrderAnswers(self._source, keeper.books), Teller(self._source, keeper.books)
            archivist = Archivist(
                self._client, self._source, keeper.books, keeper.epoch, self._rules.retention, _archiving_time
            )
            notifier = self._notifier(keeper)
            self._reign = _Reign(number, keeper, releaser, answers, archivist, writer, checkpoints, teller, notifier)
            _log.info("keeping the books", term=number, epoch=keeper.epoch)
        return self._reign

    def _notifier(self, keeper: Keeper) -> Notifier | None:
        if not self._most_notifications:
            return None
        counter = self._measures.notifications
        return Notifier(self._client, keeper.books, keeper.epoch, self._most_notifications, counter)

    def _forget_old_departures(self) -> None:
        """Who does not lead still hears who left, and must not remember them forever."""
        mirrors = self._source.mirrors
        oldest = self._now() - REMEMBERED_DEPARTURES
        for mirror in (getattr(mirrors, name) for name in mirrors.__slots__):
            kept = [departure for departure in mirror.take_departures() if departure.at >= oldest]
            mirror.return_departures(kept if mirror is mirrors.pods else [])
