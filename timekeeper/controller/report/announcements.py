"""Announces changes of budgets to people: Kubernetes Events, and messages to chats with their delivery.

A message has the form of Slack's incoming webhooks, which Mattermost and Rocket.Chat accept
(https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks): `text` for people, and one attachment whose
fields hold the same figures for programs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import redis
import structlog
import urllib3
from prometheus_client import Counter, Gauge

from fairgpu.cluster.api import Json
from fairgpu.keeping import Wait
from fairgpu.leadership import CurrentTerm
from fairgpu.states import BudgetState
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.figures import Figures, how_to_give_more
from timekeeper.domain.budgets import Budget
from timekeeper.domain.forecast import lasts_until, runs_out_early
from timekeeper.domain.money import GPU_SECOND, SECOND, display
from timekeeper.domain.state import Announced, Enforcement, Milestone, OnExhausted, next_announced, reached
from timekeeper.domain.timestamps import Instant, format_instant
from timekeeper.ledger import outbox
from timekeeper.ledger.client import Store
from timekeeper.sources.base import ObjectEvent, Source, uid_of

_COLORS = {
    Milestone.HALF_SPENT: "good",
    Milestone.MOSTLY_SPENT: "warning",
    Milestone.RUNS_OUT_EARLY: "warning",
    Milestone.REOPENED: "good",
}


def message_of(budget: Budget, figures: Figures, milestone: Milestone, now: Instant) -> str:
    """Returns the body of a notification's request as JSON.

    Args:
        milestone: the milestone that the budget has reached.
    """
    text = f"GPU budget {budget.name}: {_headline(budget, figures, milestone, now)}"
    fields = {
        "event": milestone.value,
        "budget": budget.name,
        "state": figures.state.value,
        "spent (GPU-hours)": display(figures.spent),
        "available (GPU-hours)": display(figures.limits.available or 0),
        "period ends": format_instant(figures.period.end),
    }
    attachment = {
        "fallback": text,
        "color": _COLORS.get(milestone, "danger"),
        "fields": [{"title": title, "value": value, "short": True} for title, value in fields.items()],
        "ts": now // SECOND,
    }
    return json.dumps({"text": text, "attachments": [attachment]}, separators=(",", ":"))


def _headline(budget: Budget, figures: Figures, milestone: Milestone, now: Instant) -> str:
    available = figures.limits.available or 0
    spent = f"{display(figures.spent)} of {display(available)} GPU-hours are spent"
    if milestone is Milestone.REOPENED:
        left = f"{display(figures.remaining)} of {display(available)} GPU-hours are left"
        return f"open again; {left} until {format_instant(figures.period.end)}."
    if milestone in {Milestone.HALF_SPENT, Milestone.MOSTLY_SPENT}:
        percent = figures.spent * 100 // available if available else 100
        return f"{percent} percent spent. {spent}; the period ends {format_instant(figures.period.end)}."
    if milestone is Milestone.RUNS_OUT_EARLY:
        return f"runs out before the period ends. {spent}. {_forecast(figures, now)}"
    return f"{spent}. {_follows(budget, milestone)} The next period begins {format_instant(figures.period.end)}."


def _forecast(figures: Figures, now: Instant) -> str:
    parts = []
    for name, burn in (("hour", figures.burns.hour), ("day", figures.burns.day)):
        end = lasts_until(figures.remaining, burn, now, figures.period.end)
        if burn is not None and end is not None:
            parts.append(f"at the rate of the last {name} ({burn.rate / GPU_SECOND:.2f} GPUs) {format_instant(end)}")
    return f"Nothing is left {', '.join(parts)}; the period ends {format_instant(figures.period.end)}."


def _follows(budget: Budget, milestone: Milestone) -> str:
    if budget.enforcement is Enforcement.OBSERVE:
        return "It is only observed: nothing follows."
    if milestone is Milestone.IN_GRACE:
        return "It is in its grace: pods run as usual."
    new = "wait" if budget.on_exhausted is OnExhausted.HOLD else "run in what others leave"
    running = "are given notice and evicted" if budget.enforcement is Enforcement.EVICT else "go on"
    return f"New pods {new}; running ones {running}."


_log = structlog.get_logger()


@dataclass(slots=True)
class Notifier:
    """Announces milestones of budgets during one term; the store holds the announced milestones for the next leader.

    Attributes:
        books: the leader's state.
        fencing_token: the fencing token of the leader's term.
        most: the most messages that may wait for delivery.
        counter: counts messages by their outcome.
    """

    client: Store
    books: Books
    fencing_token: int
    most: int
    counter: Counter
    _announced: dict[str, Announced] = field(default_factory=dict)
    _loaded: bool = False

    def notify(self, now: Instant) -> int:
        """Stores a message for each budget with a new milestone; returns the number of messages, which await delivery.

        If a budget has several new milestones, the message states the weightiest. If more than `most` messages wait,
        the oldest are dropped.

        Args:
            now: the instant of the last reconciliation.

        Raises:
            StoreError: the store refused or does not answer; the next call finds the milestones again.
            redis.RedisError: the store does not answer; the next call finds the milestones again.
        """
        if not self._loaded:
            self._announced, self._loaded = outbox.announced(self.client), True
        changes = list(self._changes(now))
        if not changes:
            return 0
        dropped = outbox.write(self.client, self.fencing_token, self.most, changes)
        if dropped:
            self.counter.labels("dropped").inc(dropped)
            _log.error("oldest notifications dropped: too many wait", count=dropped, most=self.most)
        for change in changes:
            if change.announced is None:
                self._announced.pop(change.uid, None)
            else:
                self._announced[change.uid] = change.announced
        return sum(bool(change.message) for change in changes)

    def _changes(self, now: Instant) -> Iterator[outbox.Change]:
        books = self.books
        present = {uid_of(item): name for name, item in books.budgets.objects.items()}
        for uid in self._announced.keys() - present.keys():
            yield outbox.Change(uid, None)
        for uid, name in present.items():
            figures, account = books.figures.get(name), books.accounts.get(name)
            if figures is None or account is None:
                continue
            available = figures.limits.available
            early = runs_out_early(figures.remaining, figures.burns, now, figures.period.end)
            holding = reached(figures.state, figures.spent, available, early=early)
            before = self._announced.get(uid)
            announced, milestone = next_announced(before, figures.period.start, available, holding)
            if milestone is not None:
                yield outbox.Change(uid, announced, message_of(account.budget, figures, milestone, now))
            elif announced != before:
                yield outbox.Change(uid, announced)


IDLE_SECONDS = 1.0
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0
LONGEST_RETRY_AFTER_SECONDS = 3600.0
EXPIRES_SECONDS = 86400.0
"""The age at which an undelivered message is dropped."""
CONNECT_SECONDS = 3.0
REFUSED = frozenset({400, 413, 422})
"""The HTTP statuses by which a receiver refuses a message for good; after any other error it is sent again."""


class DeliveryError(RuntimeError):
    """A receiver did not accept a notification; the text contains no URL and no secret.

    Attributes:
        permanent: whether further attempts are useless.
        after: the seconds that the receiver asks to wait; 0 if it does not ask.
    """

    def __init__(self, text: str, *, permanent: bool = False, after: float = 0.0) -> None:
        super().__init__(text)
        self.permanent = permanent
        self.after = after


@dataclass(frozen=True, slots=True)
class Receiver:
    """The receiver of notifications. Each delivery reads the files again, so they may change.

    Attributes:
        url_file: the file with the URL, which is a secret itself with most services.
        secret_file: the file with the key of the signature; None for no signature.
        ca_file: the file with the CAs that the receiver's certificate must come from; None for the system's.
        timeout_seconds: the longest wait for an answer.
    """

    url_file: Path
    secret_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: float = 10.0


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Returns the value of the header FairGPU-Signature for a request: an HMAC-SHA256 of its time and body.

    Args:
        secret: the key that the receiver knows, too.
        timestamp: the value of the header FairGPU-Timestamp: whole seconds since 1970.
        body: the body of the request.
    """
    return "v1=" + hmac.new(secret, b"v1:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def retry_seconds(attempts: int, asked: float, random: float) -> float:
    """Returns the seconds to wait before the next delivery; each failure in a row doubles them, up to a limit.

    The result varies at random, so that failing senders do not try in step.

    Args:
        attempts: the number of failed deliveries in a row, at least 1.
        asked: the seconds of the receiver's Retry-After; 0 for none. The wait is at least as long, but a figure above
            LONGEST_RETRY_AFTER_SECONDS counts as that.
        random: a random number in [0, 1).
    """
    usual = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 16), LAST_RETRY_SECONDS) * (0.5 + random)
    return max(usual, min(asked, LONGEST_RETRY_AFTER_SECONDS))


def deliver(receiver: Receiver, waiting: outbox.Waiting, now: float) -> None:
    """Sends one notification to its receiver.

    Args:
        now: seconds since 1970.

    Raises:
        DeliveryError: the receiver did not accept it, or does not answer; or the file of its URL, its secret or its CA
            is unusable.
    """
    body = waiting.message.encode()
    timestamp = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "fairgpu-timekeeper",
        "FairGPU-Delivery": waiting.id,
        "FairGPU-Timestamp": timestamp,
    }
    if receiver.secret_file is not None:
        headers["FairGPU-Signature"] = signature(_read(receiver.secret_file).encode(), timestamp, body)
    url = _read(receiver.url_file)
    if not _is_url(url):
        raise DeliveryError(f"{receiver.url_file} holds no https:// or http:// URL")
    with urllib3.PoolManager(num_pools=1, ssl_context=_context(receiver.ca_file)) as pool:
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=receiver.timeout_seconds)
        try:
            response = pool.request(
                "POST", url, body=body, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
            response.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # The texts of these errors contain the URL.
            raise DeliveryError(f"the receiver does not answer: {type(error).__name__}") from None
    if not 200 <= response.status < 300:
        after = response.headers.get("Retry-After", "")
        raise DeliveryError(
            f"status {response.status}",
            permanent=response.status in REFUSED,
            after=float(after) if after.isascii() and after.isdigit() else 0.0,
        )


class NotificationSender:
    """Delivers the notifications that wait in the store, in order, while this process leads."""

    def __init__(self, client: Store, receiver: Receiver, term: CurrentTerm, counter: Counter, pending: Gauge) -> None:
        self._client = client
        self._receiver = receiver
        self._term = term
        self._counter = counter
        self._pending = pending
        self._failing: tuple[str, int] = ("", 0)

    def run(self, wait: Wait, now: Callable[[], float], random: Callable[[], float]) -> None:
        """Delivers notifications until `wait` returns that the process ends.

        If the store does not answer, it goes on after IDLE_SECONDS.

        Args:
            wait: sleeps for a number of seconds; returns whether the process ends.
            now: returns seconds since 1970.
            random: returns a number in [0, 1).
        """
        seconds = 0.0
        while not wait(seconds):
            try:
                seconds = self.step(now(), random())
            except redis.RedisError as error:
                _log.warning("the outbox cannot be read", error=str(error))
                seconds = IDLE_SECONDS

    def step(self, now: float, random: float) -> float:
        """Delivers the first notification that waits, if this process leads; returns the seconds until the next call.

        A notification that is older than EXPIRES_SECONDS, or that the receiver refuses for good, is dropped. After any
        other failure it stays the first.

        Args:
            now: seconds since 1970.
            random: a random number in [0, 1).

        Raises:
            redis.RedisError: the store does not answer.
        """
        if self._term.number() is None:
            self._pending.set(0)
            return IDLE_SECONDS
        self._pending.set(outbox.length(self._client))
        waiting = outbox.first(self._client)
        if waiting is None:
            return IDLE_SECONDS
        if now - waiting.written_at > EXPIRES_SECONDS:
            return self._done(waiting, "expired")
        try:
            deliver(self._receiver, waiting, now)
        except DeliveryError as error:
            failing, attempts = self._failing
            self._failing = (waiting.id, attempts + 1 if failing == waiting.id else 1)
            _log.warning("notification not taken", delivery=waiting.id, attempt=self._failing[1], error=str(error))
            if error.permanent:
                return self._done(waiting, "refused")
            self._counter.labels("failed").inc()
            return retry_seconds(self._failing[1], error.after, random)
        return self._done(waiting, "delivered")

    def _done(self, waiting: outbox.Waiting, outcome: str) -> float:
        outbox.remove(self._client, waiting)
        self._counter.labels(outcome).inc()
        return 0.0


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DeliveryError(f"{file} cannot be read: {type(error).__name__}") from error


def _is_url(text: str) -> bool:
    try:
        return urlsplit(text).scheme in {"https", "http"}
    except ValueError:  # brackets that hold no IPv6 address
        return False


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise DeliveryError(f"{ca_file} holds no CA: {type(error).__name__}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


TURN_SECONDS = 0.25
"""The most seconds that one run delays the other tasks: as a month ends, ten thousand budgets may reopen."""

SPENT_UP = {
    BudgetState.GRACE: "BudgetInGrace",
    BudgetState.OVER: "BudgetExhausted",
    BudgetState.HELD: "BudgetHeld",
}


@dataclass(slots=True)
class EventRecorder:
    """Writes an event for each change of a budget's state to or from grace, over or held, for one term of the leader.

    It remembers the last state of each budget that it announced. A new leader reads that state from the budget's
    status. An earlier leader may have announced a change and ended before it wrote the status. The change is then
    announced twice, but as one event: an event's id follows from its `occasion`, which is the same both times.

    Attributes:
        source: the cluster.
        books: the leader's state.
        clock: a monotonic clock, in seconds.
    """

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    _recorded: dict[str, BudgetState] = field(default_factory=dict)

    def record_changes(self) -> int:
        """Writes events for the budgets whose state changed, for at most TURN_SECONDS; returns the number of events.

        If events are due, at least one is written, however busy the machine is. The next call writes the others.
        """
        until = self.clock() + TURN_SECONDS
        objects, budgets = self.books.budgets.objects, self.books.budgets.budgets
        before_by_uid, self._recorded = self._recorded, {}
        written = 0
        for name, item in objects.items():
            uid = uid_of(item)
            before = before_by_uid[uid] if uid in before_by_uid else state_written(item)
            figures, budget = self.books.figures.get(name), budgets.get(name)
            self._recorded[uid] = before
            if figures is None or budget is None or figures.state is before or (self.clock() >= until and written):
                continue
            self._recorded[uid] = figures.state
            notice = change_of_state(item, budget, figures, before)
            if notice is not None:
                self.source.record_event(notice)
                written += 1
        return written


def state_written(item: Json) -> BudgetState:
    """Returns the state in the status of a GPUBudget (JSON); OPEN if the status has none that is known."""
    try:
        return BudgetState(str((item.get("status") or {}).get("state")))
    except ValueError:
        return BudgetState.OPEN


def change_of_state(item: Json, budget: Budget, figures: Figures, before: BudgetState) -> ObjectEvent | None:
    """Returns the event of a budget's change of state.

    The result is None if the budget's money was not spent before and is not spent now.

    Args:
        item: the GPUBudget (JSON).
        before: the state that was last announced.
    """
    if figures.state in SPENT_UP:
        seen_only = budget.enforcement is Enforcement.OBSERVE
        follows = "Nothing follows from it, as enforcement is observe." if seen_only else _effect_of(budget, figures)
        message = f"{_spent(figures)} {follows}"
        return ObjectEvent(
            item, SPENT_UP[figures.state], message, warning=True, occasion=f"{before} {figures.exhausted_at}"
        )
    if before not in SPENT_UP:
        return None
    spent_up = (item.get("status") or {}).get("exhaustedAt", "")
    occasion = f"{before} {spent_up} {figures.period.start}"
    if figures.limits.available is None:
        message = "Nothing limits this budget any more: new pods run as usual."
        return ObjectEvent(item, "BudgetReopened", message, occasion=occasion)
    left = f"{display(figures.remaining)} of {display(figures.limits.available)} GPU-hours are left"
    follows = "new pods run as usual, and held ones are released as far as it pays"
    message = f"{left} until {format_instant(figures.period.end)}: {follows}."
    return ObjectEvent(item, "BudgetReopened", message, occasion=occasion)


def _spent(figures: Figures) -> str:
    available = figures.limits.available or 0
    return f"{display(figures.spent)} of {display(available)} GPU-hours are spent."


def _effect_of(budget: Budget, figures: Figures) -> str:
    limits = figures.limits
    more = f"{how_to_give_more(budget)}; the next period begins at {format_instant(figures.period.end)}."
    running = "are given notice and evicted" if budget.enforcement is Enforcement.EVICT else "go on"
    if figures.state is BudgetState.HELD:
        return f"New pods wait; running ones {running}. {more}"
    if figures.state is BudgetState.OVER:
        return f"New pods run in what others leave, and yield first; running ones {running}. {more}"
    ends = []
    if limits.grace_amount is not None:
        ends.append(
            f"another {display((limits.available or 0) + limits.grace_amount - figures.spent)} GPU-hours are spent"
        )
    if limits.grace_duration is not None and figures.exhausted_at is not None:
        ends.append(f"{format_instant(figures.exhausted_at + limits.grace_duration)}")
    then = "wait" if limits.on_exhausted is OnExhausted.HOLD else "yield to those of teams within their budgets"
    return f"In grace all goes on until {' or '.join(ends)}; then new pods {then}. {more}"
