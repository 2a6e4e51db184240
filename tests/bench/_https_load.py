"""A load of HTTPS requests on keep-alive connections, by wrk (https://github.com/wg/wrk).

The server under test and its client share the machine: a client in C takes a tenth of what one in Python takes, so that
what is measured is the server. wrk counts the latencies in its own event loop, in microseconds, and adds those that
requests would have had which a stalled connection did not send.
"""

from __future__ import annotations

import http.client
import re
import resource
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("reviews.lua")
START_LIMIT_SECONDS = 15.0
ANSWER_LIMIT_SECONDS = 10

Requests = Sequence[tuple[str, bytes]]
"""Paths and bodies, sent in turns."""


@dataclass(frozen=True)
class Load:
    """The outcome of a load: latencies in seconds, answers a second of all clients together, and the clients' own part.

    Attributes:
        client_spent: processor seconds that the clients spent on a request, kernel included.
    """

    p50: float
    p99: float
    rate: float
    answers: int
    client_spent: float


def measure(port: int, requests: Requests, clients: int, seconds: int) -> Load:
    """The load of so many clients, each sending its next request when it has its answer.

    Raises:
        RuntimeError: there is no wrk, an answer was no 200, or a connection broke.
    """
    program = shutil.which("wrk")
    if program is None:
        raise RuntimeError("wrk is not installed; sh tools/load_generator.sh installs it or says how")
    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        for number, (path, body) in enumerate(requests):
            file = Path(folder, str(number))
            file.write_bytes(body)
            arguments += [path, str(file)]
        command = [
            program, "--threads", "1", "--connections", str(clients), "--duration", f"{seconds}s",
            "--timeout", f"{ANSWER_LIMIT_SECONDS}s", "--script", str(SCRIPT), f"https://localhost:{port}", *arguments,
        ]  # fmt: skip
        before = spent_by_ended_children()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        spent = spent_by_ended_children() - before
    outcome = re.search(r"^outcome (\d+) (\d+) (\d+) (\d+) (\d+)$", done.stdout, re.MULTILINE)
    if outcome is None:
        raise RuntimeError(done.stdout + done.stderr)
    p50, p99, answers, duration, failed = map(int, outcome.groups())
    if failed or not answers:
        raise RuntimeError(f"{failed} of {answers} requests failed:\n{done.stdout}")
    rate = answers / duration * 1e6
    return Load(p50=p50 / 1e6, p99=p99 / 1e6, rate=rate, answers=answers, client_spent=spent / answers)


def spent_by_ended_children() -> float:
    """Processor seconds of this process's children that have ended, in user and kernel mode (getrusage(2))."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_keep_alive(port: int, requests: Requests) -> None:
    """Sends every request twice on one connection, once somebody listens.

    Raises:
        RuntimeError: an answer was no 200.
        http.client.NotConnected: the server closed the connection after an answer; wrk would make another in silence.
        OSError: no server listens.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection("localhost", port, timeout=ANSWER_LIMIT_SECONDS, context=context)
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while connection.sock is None:
        try:
            connection.connect()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection.auto_open = False
    try:
        for path, body in [*requests, *requests]:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != http.client.OK:
                raise RuntimeError(f"{path} answered {response.status}")
    finally:
        connection.close()
