"""Follows the timekeeper's states by long polls, and the CA that signs the timekeeper's certificate."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

import orjson
import structlog
import urllib3

from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.keeping import Wait
from fairgpu.sections import StatesReaderSettings
from fairgpu.states import StatesDocument, StatesError, decode_document

_log = structlog.get_logger(__name__)

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 15.0
LONG_POLL_SECONDS = 0.5
"""The least time that a long poll takes if nothing changes; an answer without changes before that did not wait."""
AT_ONCE_PAUSE_SECONDS = 0.5
CONNECT_SECONDS = 3.0
SLACK_SECONDS = 10.0
MAX_BYTES = 64 << 20
CA_KEY = "ca.crt"
CA_CHECK_SECONDS = 60.0
CA_RETRY_SECONDS = 1.0

ReadAuthority = Callable[[], str]


class StatesCache(Protocol):
    """A cache that stores the budgets' states and the timekeeper's CA; several threads call it."""

    @property
    def timekeeper_ca(self) -> str:
        """The timekeeper's CA that was stored last, in PEM; empty before the first."""

    def learn_authority(self, pem: str) -> None:
        """Stores the timekeeper's CA, a certificate in PEM."""

    def learn_states(self, document: StatesDocument, now: float) -> None:
        """Stores the states of the timekeeper's answer; an answer that is not `full` leaves other states as they are.

        Args:
            document: the timekeeper's answer.
            now: the time at which the answer was received, in seconds of the monotonic clock.
        """


class FollowError(RuntimeError):
    """The timekeeper does not answer with states, or its CA or the token for it is missing or invalid.

    The message says which of these.
    """


def authority_file(file: Path) -> ReadAuthority:
    """Returns a function that reads the timekeeper's CA, in PEM, from a file.

    The function raises FollowError if it cannot read the CA.
    """

    def read() -> str:
        try:
            pem = file.read_text(errors="replace")
        except OSError as error:
            raise FollowError(f"the timekeeper's CA: {error.filename}: {error.strerror}") from error
        return _in_ascii(pem, str(file))

    return read


def authority_config_map(api: KubernetesAPI, namespace: str, name: str) -> ReadAuthority:
    """Returns a function that reads the timekeeper's CA, in PEM, from a ConfigMap that the timekeeper writes.

    The function raises FollowError if it cannot read the CA.
    """

    def read() -> str:
        try:
            document = api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        except ApiError as error:
            raise FollowError(f"the timekeeper's CA: {error}") from error
        pem = (document.get("data") or {}).get(CA_KEY)
        if not isinstance(pem, str):
            raise FollowError(f"the timekeeper's CA: ConfigMap {namespace}/{name} has no {CA_KEY}")
        return _in_ascii(pem, f"ConfigMap {namespace}/{name}")

    return read


def _in_ascii(pem: str, source: str) -> str:
    """Returns a CA unchanged; raises FollowError if it has a character that TLS libraries take in no PEM."""
    if not pem.isascii():
        raise FollowError(f"the timekeeper's CA: {source} has a character that is not ASCII, perhaps in a comment")
    return pem


def follow_authority(read: ReadAuthority, cache: StatesCache, wait: Wait) -> None:
    """Keeps the timekeeper's CA in a cache current until `wait` returns true.

    If the CA cannot be read, that is logged, and the cache keeps the CA that it has.

    Args:
        read: returns the CA in PEM, or raises FollowError.
        cache: stores the CA.
        wait: sleeps for the given seconds, and returns whether the process ends.
    """
    while True:
        seconds = CA_CHECK_SECONDS
        try:
            cache.learn_authority(read())
        except FollowError as error:
            if not cache.timekeeper_ca:
                seconds = CA_RETRY_SECONDS
            _log.warning("timekeeper CA not read", error=str(error))
        if wait(seconds):
            return


def follow_states(
    settings: StatesReaderSettings,
    cache: StatesCache,
    wait: Wait,
    clock: Callable[[], float],
    random: Callable[[], float],
) -> None:
    """Keeps the budgets' states in a cache current, by long polls of the timekeeper, until `wait` returns true.

    If the timekeeper does not answer, that is logged, and the cache keeps the states that it has.

    Args:
        settings: the timekeeper's address, and the token for requests to it.
        cache: stores the states, and has the CA that signs the timekeeper's certificate.
        wait: sleeps for the given seconds, and returns whether the process ends.
        clock: returns the seconds of the monotonic clock.
        random: returns a number in [0, 1), by which the pause after a failure varies: many clients then do not ask at
            once.
    """
    cursor, retry_seconds = "", FIRST_RETRY_SECONDS
    poll = _Poll(settings)
    while not wait(0):
        sent_at = clock()
        try:
            document = poll.ask(cursor, cache.timekeeper_ca)
        except FollowError as error:
            _log.warning("budget states not read", url=settings.url, error=str(error))
            if wait(retry_seconds * (0.5 + random())):
                return
            retry_seconds = min(retry_seconds * 2, LAST_RETRY_SECONDS)
            continue
        answered_at = clock()
        cache.learn_states(document, answered_at)
        # A timekeeper that is ending answers at once, without changes.
        at_once = document.cursor == cursor and answered_at - sent_at < LONG_POLL_SECONDS
        cursor, retry_seconds = document.cursor, FIRST_RETRY_SECONDS
        if at_once and wait(AT_ONCE_PAUSE_SECONDS * (0.5 + random())):
            return


class _Poll:
    """A client of the timekeeper's states, which opens a new connection when the timekeeper's CA has changed."""

    def __init__(self, settings: StatesReaderSettings) -> None:
        self._settings = settings
        self._authority = ""
        self._pool = urllib3.PoolManager()

    def ask(self, cursor: str, authority: str) -> StatesDocument:
        """Waits for changes of states, up to `wait_seconds`; returns the states that have changed since a cursor.

        The answer has no states if none has changed in this time.

        Args:
            cursor: the cursor of the last answer; empty to get all states at once.
            authority: the CA that signs the timekeeper's certificate, in PEM.

        Raises:
            FollowError: the timekeeper did not answer with states.
        """
        if authority != self._authority or not authority:
            self._trust(authority)
        query = urlencode({"since": cursor, "wait": f"{self._settings.wait_seconds:g}"} if cursor else {})
        try:
            response = self._pool.request(
                "GET",
                f"{self._settings.url.rstrip('/')}/v1/states?{query}",
                headers={"Authorization": f"Bearer {self._token()}", "Accept": "application/json"},
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=self._settings.wait_seconds + SLACK_SECONDS),
                retries=False,
                preload_content=False,
            )
            try:
                body = response.read(MAX_BYTES + 1)
            finally:
                response.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise FollowError(str(error)) from error
        if response.status != 200 or len(body) > MAX_BYTES:
            raise FollowError(f"status {response.status}: {body[:200].decode(errors='replace')}")
        try:
            return decode_document(orjson.loads(body))
        except (StatesError, orjson.JSONDecodeError) as error:
            raise FollowError(str(error)) from error

    def _trust(self, authority: str) -> None:
        if not authority and self._settings.url.startswith("https:"):
            raise FollowError("the timekeeper's CA is not known yet")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if authority:
                context.load_verify_locations(cadata=authority)
        except ssl.SSLError as error:
            raise FollowError(f"the timekeeper's CA is no certificate: {error}") from error
        self._pool.clear()
        self._pool = urllib3.PoolManager(ssl_context=context)
        self._authority = authority

    def _token(self) -> str:
        file = self._settings.token_file
        try:
            token = file.read_text(errors="replace").strip()
        except OSError as error:
            raise FollowError(f"the token for the timekeeper: {error.filename}: {error.strerror}") from error
        if not all("!" <= letter <= "~" for letter in token):
            raise FollowError(f"the token for the timekeeper: {file} has a letter that no token has")
        return token
