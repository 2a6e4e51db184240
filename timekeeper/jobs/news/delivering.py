"""Delivers the outbox to a webhook, in a thread of its own: no job ever waits for it.

Each request is signed as Slack signs its own: HMAC-SHA256 over `v1:TIMESTAMP:BODY`
(https://docs.slack.dev/authentication/verifying-requests-from-slack), so that a receiver knows who sends, and when.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import redis
import structlog
import urllib3
from prometheus_client import Counter, Gauge

from timekeeper.store import outbox

IDLE_SECONDS = 1.0
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0
LONGEST_RETRY_AFTER_SECONDS = 3600.0
EXPIRES_SECONDS = 86400.0
"""News of yesterday are given up."""
CONNECT_SECONDS = 3.0
REFUSED = frozenset({400, 413, 422})
"""The receiver will never take this very message; anything else may be put right there."""

_log = structlog.get_logger()


class DeliveryError(RuntimeError):
    """A message was not taken; the words hold neither the URL nor the secret.

    Attributes:
        final: whether trying again is no use.
        after: seconds that the receiver asks to wait; 0 where it does not.
    """

    def __init__(self, text: str, *, final: bool = False, after: float = 0.0) -> None:
        super().__init__(text)
        self.final = final
        self.after = after


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages go. The files are read anew each time, so that they may change.

    Attributes:
        url_file: holds the URL, which is a secret itself with most services.
        secret_file: holds the key of the signature; None for no signature.
        ca_file: the CAs that the receiver's certificate is held to; None for the system's.
        timeout_seconds: how long an answer may take.
    """

    url_file: Path
    secret_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: float = 10.0


class Leading(Protocol):
    """Whether this process leads."""

    def number(self) -> int | None:
        """The term's number; None while another one leads."""


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """What the header FairGPU-Signature holds."""
    return "v1=" + hmac.new(secret, b"v1:" + timestamp.encode() + b":" + body, hashlib.sha256).hexdigest()


def retry_seconds(attempts: int, asked: float, random: float) -> float:
    """How long to wait after so many attempts in vain: doubled each time, and not all at once.

    Args:
        attempts: at least 1.
        asked: what the receiver asked for in Retry-After, in seconds.
        random: in [0, 1).
    """
    usual = min(FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 16), LAST_RETRY_SECONDS) * (0.5 + random)
    return max(usual, min(asked, LONGEST_RETRY_AFTER_SECONDS))


def deliver(receiver: Receiver, waiting: outbox.Waiting, now: float) -> None:
    """Sends one message; `now` is seconds since 1970.

    Raises:
        DeliveryError: it was not taken.
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
            # The words of these errors name the URL.
            raise DeliveryError(f"the receiver does not answer: {type(error).__name__}") from None
    if not 200 <= response.status < 300:
        after = response.headers.get("Retry-After", "")
        raise DeliveryError(
            f"status {response.status}",
            final=response.status in REFUSED,
            after=float(after) if after.isascii() and after.isdigit() else 0.0,
        )


class Courier:
    """Takes one message after the other to the receiver, while this process leads."""

    def __init__(
        self, client: redis.Redis, receiver: Receiver, leading: Leading, counter: Counter, pending: Gauge
    ) -> None:
        self._client = client
        self._receiver = receiver
        self._leading = leading
        self._counter = counter
        self._pending = pending
        self._failing: tuple[str, int] = ("", 0)

    def run(self, wait: Callable[[float], bool], now: Callable[[], float], random: Callable[[], float]) -> None:
        """Delivers until `wait` says that everything is to end.

        Args:
            wait: waits that many seconds, or less if everything is to end, and says whether it is.
            now: seconds since 1970.
            random: a number in [0, 1).
        """
        seconds = 0.0
        while not wait(seconds):
            try:
                seconds = self.step(now(), random())
            except redis.RedisError as error:
                _log.warning("the outbox cannot be read", error=str(error))
                seconds = IDLE_SECONDS

    def step(self, now: float, random: float) -> float:
        """Delivers the first message, if there is one; after how many seconds to come again."""
        if self._leading.number() is None:
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
            known, attempts = self._failing
            self._failing = (waiting.id, attempts + 1 if known == waiting.id else 1)
            _log.warning("notification not taken", delivery=waiting.id, attempt=self._failing[1], error=str(error))
            if error.final:
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
