"""Leader election by a Lease. The leader of a term relies on a renewal of the Lease for a limited time only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import structlog

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.keeping import Wait


class CurrentTerm(Protocol):
    """The present term of this process as the leader, if it leads."""

    def number(self) -> int | None:
        """Returns the number of the present term; None while this process does not lead."""


class Term:
    """The present term of this process as the leader, if it leads. Safe to use from several threads.

    The thread of `campaign` begins, renews and ends a term; a thread whose write the store refuses ends it, too. Times
    are seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the attributes that follow, which are read together."""
        self._number: int | None = None
        self._until = 0.0
        self._lost_at = float("-inf")
        self._changed = threading.Condition(self._lock)

    def number(self) -> int | None:
        """Returns the number of the present term; None if it has expired or this process does not lead."""
        with self._lock:
            return self._number if self._clock() < self._until else None

    def hold(self, number: int, until: float, looked_at: float = float("inf")) -> None:
        """Begins or renews a term; does nothing if the Lease was read before this process last lost a term.

        Args:
            number: the number of the term.
            until: the time at which the term ends if it is not renewed.
            looked_at: the time at which this process began to read the Lease; by default, the Lease counts as read now.
        """
        with self._changed:
            if looked_at < self._lost_at:
                return
            self._number, self._until = number, until
            self._changed.notify_all()

    def lose(self) -> None:
        """Ends the term: this process does not lead any more."""
        with self._changed:
            self._number, self._until, self._lost_at = None, 0.0, self._clock()
            self._changed.notify_all()

    def wait(self, seconds: float) -> int | None:
        """Waits until this process leads; returns the term's number, or None if it does not lead in time.

        Args:
            seconds: the longest wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number is not None and self._clock() < self._until, seconds)
        return self.number()


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease as the API server returned it.

    Attributes:
        holder: the holder's identity; empty if the Lease was released.
        term: the number of the holder's term, which the Lease has in `leaseTransitions`.
        version: the Lease's resourceVersion, which changes with every renewal.
    """

    holder: str
    term: int
    version: str


@dataclass(frozen=True, slots=True)
class Observation:
    """A Lease as one process observes it.

    Attributes:
        record: the Lease.
        since: the time at which this version of the Lease was first observed, in seconds of the observer's monotonic
            clock.
    """

    record: LeaseRecord
    since: float


def observe(previous: Observation | None, record: LeaseRecord, now: float) -> Observation:
    """Returns the observation of a Lease that was just read. If the Lease has not changed, `since` does not change.

    Args:
        previous: the observation before this reading; None for the first reading.
        record: the Lease as it was just read.
        now: the time of the reading, in seconds of the observer's monotonic clock.
    """
    if previous is not None and previous.record.version == record.version:
        return previous
    return Observation(record, now)


def may_take(observation: Observation, identity: str, duration: float, now: float) -> bool:
    """Returns whether a candidate may take the Lease: the Lease was released, has expired, or is held by the candidate.

    Args:
        observation: the Lease as the candidate last observed it.
        identity: the candidate's identity.
        duration: the seconds for which a renewal keeps the Lease.
        now: the present time, in seconds of the observer's monotonic clock.
    """
    holder = observation.record.holder
    return not holder or holder == identity or now - observation.since >= duration


def next_term(record: LeaseRecord | None, floor: int) -> int:
    """Returns the number of the term that begins by taking the Lease.

    The number is higher than that of every earlier term, even if the Lease, which counts the terms, was deleted.

    Args:
        record: the Lease; None if there is none.
        floor: the highest term that the store has recorded.
    """
    return max(record.term if record else 0, floor) + 1


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """The Lease by which a service elects its leader, and this process as a candidate.

    Attributes:
        namespace: the Lease's namespace.
        name: the Lease's name.
        identity: the text by which the Lease names this process. No other process has the same text, nor had an earlier
            start of this process.
        duration_seconds: the time for which a holder that does not renew keeps the Lease.
        renew_seconds: the interval at which the holder renews; well below the duration.
    """

    namespace: str
    name: str
    identity: str
    duration_seconds: int = 15
    renew_seconds: float = 3.0

    @property
    def believed_seconds(self) -> float:
        """The seconds for which a holder relies on a renewal: four fifths of `duration_seconds`, as clocks differ."""
        return self.duration_seconds * 0.8


class _Attempt(NamedTuple):
    """The result of one attempt to take or renew the Lease.

    Attributes:
        observed: the Lease as last observed; None if there is none.
        held: the number of the term in which this process leads after the attempt; None if it does not lead.
        trouble: the cause of a failure, in words that stay the same while the cause lasts, so that it is logged once;
            empty without one, and after a lost race for the Lease.
        error: the error's own text, which may differ each time.
    """

    observed: Observation | None = None
    held: int | None = None
    trouble: str = ""
    error: str = ""


def campaign(
    api: KubernetesAPI,
    options: LeaseOptions,
    term: Term,
    floor: Callable[[], int],
    clock: Callable[[], float],
    wait: Wait,
) -> None:
    """Takes the Lease whenever it is free, and renews it; releases it and returns once `wait` returns true.

    Args:
        api: the API server, which holds the Lease.
        options: the Lease, its candidate and its durations.
        term: updated as terms begin, are renewed and end.
        floor: returns the highest term that the store has recorded; if it raises, no term begins.
        clock: returns the seconds of a monotonic clock.
        wait: sleeps for the given seconds, and returns whether the process ends.
    """
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{options.namespace}/leases"
    last = _Attempt()
    while True:
        asked_at = clock()
        attempt = _attempt(api, collection, options, last, floor, clock)
        if attempt.trouble not in ("", last.trouble):
            _log.warning("lease unavailable", lease=options.name, reason=attempt.trouble, error=attempt.error)
        last = attempt
        if attempt.held is not None:
            if term.number() is None:
                _log.info("leading", lease=options.name, term=attempt.held, identity=options.identity)
            term.hold(attempt.held, asked_at + options.believed_seconds, asked_at)
        elif attempt.observed is not None and attempt.observed.record.holder != options.identity:
            term.lose()
        if wait(options.renew_seconds):
            break
    term.lose()
    _release(api, f"{collection}/{options.name}", options.identity)


def _attempt(
    api: KubernetesAPI,
    collection: str,
    options: LeaseOptions,
    last: _Attempt,
    floor: Callable[[], int],
    clock: Callable[[], float],
) -> _Attempt:
    observed = last.observed
    try:
        observed = _read_lease(api, f"{collection}/{options.name}", observed, clock)
        return _Attempt(observed, _take_or_renew(api, collection, options, observed, floor, clock))
    except ApiError as error:
        # After a lost race, the next attempt reads the Lease again. Without the API server, the term lasts as renewed.
        trouble = "" if error.conflict else f"the API server: {error.status} {error.reason}"
        return _Attempt(observed, None, trouble, error.message)
    except Exception as error:  # noqa: BLE001 - without the store no term can be numbered
        return _Attempt(observed, None, f"the store: {type(error).__name__}", str(error))


def _read_lease(
    api: KubernetesAPI, path: str, previous: Observation | None, clock: Callable[[], float]
) -> Observation | None:
    try:
        lease = api.get(path)
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return observe(previous, _record(lease), clock())


def _take_or_renew(
    api: KubernetesAPI,
    collection: str,
    options: LeaseOptions,
    observation: Observation | None,
    floor: Callable[[], int],
    clock: Callable[[], float],
) -> int | None:
    """Takes or renews the Lease, unless another candidate holds it.

    Returns the number of the term in which this process now leads; None if another candidate holds the Lease.

    Args:
        api: the API server, which holds the Lease.
        collection: the path of the namespace's Leases in the API.
        options: the Lease, its candidate and its durations.
        observation: the Lease as last observed; None if there is none.
        floor: returns the highest term that the store has recorded.
        clock: returns the seconds of a monotonic clock.

    Raises:
        ApiError: another candidate was faster, or the API server refuses or does not answer.
        Exception: any error that `floor` raises.
    """
    if observation is None:
        number = next_term(None, floor())
        api.create(collection, _lease(options, number))
        return number
    record = observation.record
    if record.holder != options.identity and not may_take(
        observation, options.identity, options.duration_seconds, clock()
    ):
        return None
    number = record.term if record.holder == options.identity else next_term(record, floor())
    body = _lease(options, number)
    body["metadata"]["resourceVersion"] = record.version
    api.replace(f"{collection}/{options.name}", body)
    return number


def _release(api: KubernetesAPI, path: str, identity: str) -> None:
    try:
        lease = api.get(path)
        if _record(lease).holder == identity:
            lease["spec"]["holderIdentity"] = ""
            api.replace(path, lease)
    except ApiError as error:
        _log.info("lease not given up", status=error.status, reason=error.reason)


def _record(lease: Json) -> LeaseRecord:
    spec = lease.get("spec") or {}
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        term=int(spec.get("leaseTransitions") or 0),
        version=str(lease["metadata"]["resourceVersion"]),
    )


def _lease(options: LeaseOptions, number: int) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": options.name},
        "spec": {
            "holderIdentity": options.identity,
            "leaseDurationSeconds": options.duration_seconds,
            "leaseTransitions": number,
            "renewTime": now,
        },
    }
