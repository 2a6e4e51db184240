"""Asks a Prometheus how busy pods keep their GPUs, in a thread of its own that delays no other job.

The figures are advisory. They go into the store beside the books, where the REST API alone reads them.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import redis
import structlog

from fairgpu.keeping import Wait
from fairgpu.leadership import CurrentTerm
from timekeeper.controller.metrics import PRESENT_USE_SERIES, PresentUseMeasures
from timekeeper.domain.money import SECOND
from timekeeper.domain.present_use import AnswerError, AnswerRules, BusyPods, FullName, error_text, read_answer
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import present_use
from timekeeper.ledger.client import Store
from timekeeper.ledger.present_use import NamespaceUse, PresentUse
from timekeeper.settings import PrometheusSettings

IDLE_SECONDS = 1.0
SHOWN_INTERVALS = 3
"""The number of intervals between queries for which a figure is shown if no later answer replaces it."""
WHOLE = 10_000
MOST_OF_AN_ERROR = 1 << 16

_log = structlog.get_logger()


class AskError(RuntimeError):
    """A query for present use failed: Prometheus gave no usable answer, or a file with a token or CA is unusable.

    The text is for the log and holds no token.

    Attributes:
        outcome: the cause as one word, such as timeout, under which the metric of queries counts it.
    """

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


def answer_rules(prometheus: PrometheusSettings) -> AnswerRules:
    """Returns the rules for reading Prometheus's series, from the settings.

    The rules say which labels name a pod or a claim, and which value means a wholly busy GPU.
    """
    full = 100.0 if prometheus.scale == "percent" else 1.0
    return AnswerRules(_pairs(prometheus.pod_labels), full, _pairs(prometheus.claim_labels))


def _pairs(labels: Iterable[str]) -> tuple[FullName, ...]:
    parts = (one.partition("/") for one in labels)
    return tuple((of_namespace, of_name) for of_namespace, _, of_name in parts)


def ask(prometheus: PrometheusSettings) -> bytes:
    """Sends the configured query to Prometheus and returns the body of the answer; it follows no redirect.

    The time-out bounds the whole query but the lookup of the host's name. If the host has several addresses, the
    time-out applies anew to the connection to each.

    Args:
        prometheus: the settings: address, query, credentials and limits.

    Raises:
        AskError: Prometheus gave no answer, an error or too large an answer, or the token's or CA's file is unusable.
    """
    parts = urlsplit(prometheus.url or "")
    asked = urlencode({"query": prometheus.query, "timeout": f"{prometheus.timeout_seconds:g}s"})
    headers = {"Accept": "application/json", "Connection": "close", "User-Agent": "fairgpu-timekeeper"}
    if prometheus.token_file is not None:
        headers["Authorization"] = f"Bearer {_token(prometheus.token_file)}"
    context = _context(prometheus.ca_file) if parts.scheme == "https" else None
    late = threading.Event()
    try:
        with _connected(parts.hostname or "", parts.port, context, prometheus.timeout_seconds, late) as connection:
            connection.request("GET", f"{parts.path.rstrip('/')}/api/v1/query?{asked}", headers=headers)
            return _body(connection.getresponse(), prometheus.max_answer_mib << 20, late)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise AskError("timeout", f"no whole answer within {prometheus.timeout_seconds:g} s") from None
        # A RemoteDisconnected is both.
        outcome = "unreachable" if isinstance(error, OSError | UnicodeError) else "unreadable"
        raise AskError(outcome, f"{type(error).__name__}: {error}") from None


@contextmanager
def _connected(
    host: str, port: int | None, context: ssl.SSLContext | None, seconds: float, late: threading.Event
) -> Iterator[http.client.HTTPConnection]:
    """Connects to a host, over TLS if there is a context, and yields the connection.

    Once the seconds are over, the connection is cut, whatever it waits for, and `late` is set.

    A socket's time-out bounds each read alone, so that a server that sends a byte now and then would never meet it.
    """
    port = port or (80 if context is None else 443)
    began = time.monotonic()
    plain = socket.create_connection((host, port), seconds)
    with plain.dup() as twin:  # a twin, since TLS takes the socket over

        def cut() -> None:
            late.set()
            with suppress(OSError):
                twin.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(max(seconds - (time.monotonic() - began), 0), cut)
        timer.daemon = True
        timer.start()
        try:
            connection = http.client.HTTPConnection(host, port)
            with plain if context is None else context.wrap_socket(plain, server_hostname=host) as connection.sock:
                yield connection
        finally:
            timer.cancel()
            plain.close()


def _body(response: http.client.HTTPResponse, most: int, late: threading.Event) -> bytes:
    if response.status != 200:
        said = error_text(response.read(MOST_OF_AN_ERROR))
        if said:
            raise AskError("error", said)
        if 300 <= response.status < 400:
            raise AskError("redirected", f"status {response.status}: write the address that it leads to into `url`")
        raise AskError("refused", f"status {response.status}")
    if (response.length or 0) > most:
        raise AskError("too-large", f"the answer has {response.length} bytes, and at most {most} are read")
    body = response.read(most + 1)
    if late.is_set():
        raise TimeoutError
    if len(body) > most:
        raise AskError("too-large", f"the answer has more than {most} bytes: let the query aggregate by pod")
    return body


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AskError("misconfigured", f"{file} cannot be read: {type(error).__name__}") from None
    if not token or not token.isprintable() or " " in token:
        raise AskError("misconfigured", f"{file} holds no token of one line")
    return token


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise AskError("misconfigured", f"{ca_file} holds no CA: {type(error).__name__}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class PresentUseReader:
    """Asks Prometheus at an interval how busy open sessions keep their GPUs, and stores the answer for the REST API.

    It asks only while this process leads.
    """

    def __init__(
        self,
        prometheus: PrometheusSettings,
        client: Store,
        term: CurrentTerm,
        open_sessions: Callable[[], Sequence[Session] | None],
        measures: PresentUseMeasures,
    ) -> None:
        """Makes a reader; `open_sessions` returns the leader's open sessions, None in a process that does not lead."""
        self._prometheus = prometheus
        self._rules = answer_rules(prometheus)
        self._client = client
        self._term = term
        self._open_sessions = open_sessions
        self._measures = measures
        self._failing = False

    def run(self, wait: Wait, now: Callable[[], Instant]) -> None:
        """Asks Prometheus at an interval, and stores its answers, until `wait` returns True, as the process ends."""
        seconds = IDLE_SECONDS
        while not wait(seconds):
            seconds = self.step(now)

    def step(self, now: Callable[[], Instant]) -> float:
        """Asks Prometheus once and stores the answer, if this process leads; returns the seconds until the next call.

        A failure of Prometheus or the store is logged and counted, never raised. The answer that was stored before
        stays until it expires.
        """
        # Once, before the query: a process that has lost its term meanwhile knows no sessions.
        metered = self._open_sessions()
        if self._term.number() is None or metered is None:
            return IDLE_SECONDS
        try:
            outcome, error = self._refresh(metered, now), ""
        except AskError as refused:
            outcome, error = refused.outcome, str(refused)
        except AnswerError as unusable:
            outcome, error = unusable.fault.value, str(unusable)
        except redis.RedisError as away:
            outcome, error = "not-stored", str(away)
        except Exception as unexpected:  # noqa: BLE001 - no error may stop later queries
            outcome, error = "failed", repr(unexpected)
            _log.exception("present use failed unexpectedly")
        self._measures.queries.labels(outcome).inc()
        if error:
            _log.warning("present use not read", outcome=outcome, error=error)
        elif self._failing:
            _log.info("present use read again")
        self._failing = bool(error)
        return self._prometheus.every_seconds

    def _refresh(self, metered: Sequence[Session], now: Callable[[], Instant]) -> str:
        answer = read_answer(ask(self._prometheus), self._rules, now())
        at = now()
        if answer.warnings:
            _log.warning("present use may be incomplete", warnings=list(answer.warnings))
        until = at + SHOWN_INTERVALS * self._prometheus.every_seconds * SECOND
        sessions = sessions_by_pod(metered)
        known = [
            (sessions[pod], round(WHOLE * sum(busy) / len(busy)))
            for pod, busy in answer.busy.items()
            if pod in sessions
        ]
        uses = {session.uid: PresentUse(at, until, share) for session, share in known}
        namespaces = {
            name: NamespaceUse(at, until, busy, held) for name, (busy, held) in rates_by_namespace(known).items()
        }
        self._count(answer, sessions)
        present_use.write(self._client, uses, namespaces)
        if not answer.busy and not answer.faults:
            return "empty"
        self._measures.answered_at.set(at / SECOND)
        return "answered"

    def _count(self, answer: BusyPods, sessions: Mapping[FullName, Session]) -> None:
        strange = [pod for pod in answer.busy if pod not in sessions]
        counts = {fault.value: count for fault, count in answer.faults.items()}
        counts["not-metered"] = sum(len(answer.busy[pod]) for pod in strange)
        counts["metered"] = sum(map(len, answer.busy.values())) - counts["not-metered"]
        for outcome in PRESENT_USE_SERIES:
            self._measures.series.labels(outcome).set(counts.get(outcome, 0))
        if sessions and strange and not counts["metered"]:
            _log.warning("present use names no metered pod", series=counts["not-metered"], example="/".join(strange[0]))


def sessions_by_pod(sessions: Sequence[Session]) -> dict[FullName, Session]:
    """Returns sessions keyed by the namespace and name of their pod or claim (see `FullName`).

    If the pods of several sessions have the same name, the session that started last counts: the earlier pods have
    ended, and their ends are not observed yet.
    """
    latest: dict[FullName, Session] = {}
    for session in sessions:
        name = session.namespace, session.pod
        if name not in latest or latest[name].start < session.start:
            latest[name] = session
    return latest


def rates_by_namespace(shares: Iterable[tuple[Session, int]]) -> dict[str, tuple[int, int]]:
    """Returns (busy, held) GPU time of each namespace, in microGPU-seconds a second, keyed by namespace.

    The amounts are GPU time and no cost: prices do not change them.

    Args:
        shares: pairs of a session and the busy part of the GPU time that the session holds, in ten-thousandths.
    """
    rates: dict[str, tuple[int, int]] = {}
    for session, share in shares:
        held = 0 if session.attribution is None else session.attribution.core_rate
        busy, known = rates.get(session.namespace, (0, 0))
        rates[session.namespace] = busy + held * share // WHOLE, known + held
    return rates
