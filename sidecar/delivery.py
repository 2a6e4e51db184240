"""Encodes reports of GPU usage and sends them to the timekeeper: POST /v1/reports over TLS, with the pod's token."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple

from sidecar.settings import Settings
from sidecar.tally import Tally
from sidecar.usage_record import DeviceUsage

PATH = "/v1/reports"
TIMEOUT_SECONDS = 10.0
"""The time-out of each step: connecting, sending, and each wait for bytes of the answer."""
MAX_ANSWER_BYTES = 16 * 1024
MAX_TOKEN_BYTES = 16 * 1024


class Accepted(NamedTuple):
    """The outcome of a report that the timekeeper took.

    Attributes:
        interval_seconds: the time until the next report, as the timekeeper's answer sets it; None if it sets none that
            can be read.
    """

    interval_seconds: float | None


class Refused(NamedTuple):
    """The outcome of a report that was refused, not sent, or not answered. An unanswered report may have arrived.

    Attributes:
        reason: the reason, for the log.
        status: the HTTP status; None if there was no whole answer, or the report was not sent.
        retry_after_seconds: the least time until the next report, as the answer demands it in whole seconds; None if it
            demands none, or in another form.
    """

    reason: str
    status: int | None = None
    retry_after_seconds: float | None = None


Outcome = Accepted | Refused


def tls_context(ca_pem: str) -> ssl.SSLContext:
    """Returns a TLS context for a client, which trusts one CA and no other.

    Args:
        ca_pem: the CA's certificate in PEM.

    Raises:
        ssl.SSLError: the text contains no usable certificate.
        TypeError: the text has a character that is not ASCII.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca_pem)
    return context


def read_token(path: str) -> str:
    """Returns the bearer token in a file. The kubelet renews the token there, so it is read for each report.

    Raises:
        OSError: the file is unreadable.
        ValueError: the file contains no token.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        raw = os.read(file, MAX_TOKEN_BYTES)
    finally:
        os.close(file)
    token = raw.decode("ascii", errors="replace").strip()
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise ValueError("the token file holds no token")
    return token


def deliver(settings: Settings, context: ssl.SSLContext, body: bytes) -> Outcome:
    """Sends a report once; returns its outcome. A failure is not raised but returned as Refused, without secrets.

    Args:
        settings: the timekeeper's address, and the file of the token.
        context: the TLS context for the timekeeper.
        body: the report in JSON.
    """
    try:
        token = read_token(settings.token_file)
    except (OSError, ValueError) as error:
        return Refused(f"token: {describe(error)}")
    connection = HTTPSConnection(settings.host, settings.port, timeout=TIMEOUT_SECONDS, context=context)
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Connection": "close",
        "User-Agent": "fairgpu-sidecar",
    }
    try:
        connection.request("POST", settings.base_path + PATH, body, headers)
        return _outcome(connection.getresponse())
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a name that cannot be put into IDNA
        return Refused(describe(error))
    finally:
        connection.close()


def _outcome(response: HTTPResponse) -> Outcome:
    document = _json_object(response.read(MAX_ANSWER_BYTES))
    if 200 <= response.status < 300:
        return Accepted(_seconds(document.get("interval_s")))
    title = document.get("detail") or document.get("title") or response.reason
    return Refused(str(title)[:200], response.status, _retry_after(response.getheader("Retry-After")))


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(min(value, 2**31)) if usable else None


def _retry_after(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() and len(text) < 7 else None


def describe(error: Exception) -> str:
    """Returns the type and the message of an error, cut to 200 characters."""
    return f"{type(error).__name__}: {error}"[:200]


VERSION = 1
MAX_DEVICES = 256
"""The most devices in one report, over all containers, which keeps it under 128 KiB."""
_MIB = 2**20


def encode(boot: str, sequence: int, tallies: Mapping[str, Tally], *, last: bool = False) -> bytes:
    """Returns a report of GPU usage in JSON. Devices beyond MAX_DEVICES over all containers are left out.

    Args:
        boot: identifies this start of the sidecar.
        sequence: the number of the report, which grows with each report of one start.
        tallies: the usage of each container, keyed by its name.
        last: whether this is the sidecar's last report. The timekeeper takes a last report however soon it follows the
            report before.
    """
    containers: list[dict[str, Any]] = []
    room = MAX_DEVICES
    for name in sorted(tallies):
        devices = tallies[name].devices()[:room]
        room -= len(devices)
        found = {device.uuid: device for device in tallies[name].found}
        containers.append({"name": name, "devices": [_device(device, found.get(device.uuid)) for device in devices]})
    document: dict[str, Any] = {"v": VERSION, "boot": boot, "seq": sequence, "containers": containers}
    if last:
        document["last"] = True
    return json.dumps(document, separators=(",", ":")).encode()


def _device(device: DeviceUsage, found: DeviceUsage | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "uuid": device.uuid,
        "busyNs": device.busy_ns,
        "spanNs": device.span_ns,
        "throttledNs": device.throttled_ns,
        "memoryPeakMiB": -(-device.memory_peak_bytes // _MIB),  # rounded up: a peak is never understated
        "launches": device.launches,
        "oom": device.oom,
    }
    if found is not None:
        document |= {"earlierBusyNs": found.busy_ns, "earlierSpanNs": found.span_ns}
    return document
