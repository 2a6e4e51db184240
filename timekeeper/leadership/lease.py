"""Campaigns for a Lease of the API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Wait
from timekeeper.leadership.decision import LeaseRecord, Observation, may_take, next_term, observe
from timekeeper.leadership.term import Term

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Which Lease, for whom, and how it is kept.

    Attributes:
        namespace: the Lease's namespace.
        name: the Lease's name.
        identity: names this process and no other, not even its own predecessor.
        duration_seconds: how long a holder who falls silent keeps the Lease.
        renew_seconds: how often the holder renews; well below the duration.
    """

    namespace: str
    name: str
    identity: str
    duration_seconds: int = 15
    renew_seconds: float = 3.0

    @property
    def believed_seconds(self) -> float:
        """How long the holder believes in a renewal: less than others wait, by a fifth, as clocks run unevenly."""
        return self.duration_seconds * 0.8


class _Attempt(NamedTuple):
    """What came of one try: the Lease as it was seen last, the term that is held, and why it could not be had.

    `trouble` stays the same for as long as the cause does, so that it is told once; `error` may differ each time.
    """

    seen: Observation | None = None
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
    """Takes the Lease whenever it is free and renews it, until `wait` says that everything is to end; then gives it up.

    Args:
        api: the API server.
        options: which Lease, and how.
        term: is told of each term that begins, goes on or ends.
        floor: the highest term that the store has seen; may raise, which counts as not to be had now.
        clock: a monotonic clock, in seconds.
        wait: sleeps between looks, and ends the campaign.
    """
    collection = f"/apis/coordination.k8s.io/v1/namespaces/{options.namespace}/leases"
    last = _Attempt()
    while True:
        asked_at = clock()
        attempt = _attempt(api, collection, options, last, floor, clock)
        if attempt.trouble not in ("", last.trouble):
            _log.warning("lease not to be had", lease=options.name, reason=attempt.trouble, error=attempt.error)
        last = attempt
        if attempt.held is not None:
            if term.number() is None:
                _log.info("leading", lease=options.name, term=attempt.held, identity=options.identity)
            term.hold(attempt.held, asked_at + options.believed_seconds, asked_at)
        elif attempt.seen is not None and attempt.seen.record.holder != options.identity:
            term.lose()
        if wait(options.renew_seconds):
            break
    term.lose()
    _give_up(api, f"{collection}/{options.name}", options.identity)


def _attempt(
    api: KubernetesAPI,
    collection: str,
    options: LeaseOptions,
    last: _Attempt,
    floor: Callable[[], int],
    clock: Callable[[], float],
) -> _Attempt:
    seen = last.seen
    try:
        seen = _look(api, f"{collection}/{options.name}", seen, clock)
        return _Attempt(seen, _step(api, collection, options, seen, floor, clock))
    except ApiError as error:
        # Who lost a race looks again; who cannot reach the API server goes on for as long as it may believe.
        trouble = "" if error.conflict else f"the API server: {error.status} {error.reason}"
        return _Attempt(seen, None, trouble, error.message)
    except Exception as error:  # noqa: BLE001 - the store is down: no term can be numbered, so none begins
        return _Attempt(seen, None, f"the store: {type(error).__name__}", str(error))


def _look(
    api: KubernetesAPI, path: str, previous: Observation | None, clock: Callable[[], float]
) -> Observation | None:
    try:
        lease = api.get(path)
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return observe(previous, _record(lease), clock())


def _step(
    api: KubernetesAPI,
    collection: str,
    options: LeaseOptions,
    observation: Observation | None,
    floor: Callable[[], int],
    clock: Callable[[], float],
) -> int | None:
    """One look's consequence: the number of the term that is now ours, or nothing.

    Raises:
        ApiError: somebody else was faster, or the API server cannot be asked.
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


def _give_up(api: KubernetesAPI, path: str, identity: str) -> None:
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
