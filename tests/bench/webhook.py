"""The whole webhook over TLS, as its image runs it where it could be compiled, beside a constant answer from Flask.

The peer reads nothing and decides nothing: it gives everybody the same AdmissionReview, on gunicorn's gthread worker.
Both run with two workers and a certificate of the same kind, in turns, called by the same client on connections that
stay open, which asks for a pod to be mutated and then validated as an API server does. Beside the goals stands what the
workers' processors spent on a review, kernel included: it holds still where other work on the machine moves the clock.
Each ratio is the median of those of single rounds, whose two halves lie side by side in time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from fairgpu.certificates import make_authority, make_leaf, utc_now
from tests.bench._builds import builds
from tests.bench._https_load import Load, check_keep_alive, measure
from tests.bench._reviews import both_reviews
from tests.support.ports import free_port
from tests.support.processes import ending
from tests.support.servers.webhook_server import WebhookServer

ROUNDS = 9
SECONDS = 1
P50_GOAL_RATIO = 0.4
RATE_GOAL_RATIO = 3.0
WORKERS = 2

CONSTANT_ANSWER = """
from flask import Flask, jsonify
application = Flask("constant")
@application.post("/<route>")
def review(route):
    return jsonify(apiVersion="admission.k8s.io/v1", kind="AdmissionReview", response={"uid": "0", "allowed": True})
"""

Row = dict[str, Any]
Reviews = list[tuple[str, bytes]]


@dataclass(frozen=True)
class Side:
    """A server that is measured: its port, and the process whose children answer."""

    port: int
    parent: int


@dataclass(frozen=True)
class Figures:
    """The figures of one round: seconds, answers a second, and processor seconds of workers and client an answer."""

    p50: float
    p99: float
    rate: float
    spent: float
    client_spent: float


@dataclass(frozen=True)
class Comparison:
    """The webhook and the peer, round by round."""

    ours: Sequence[Figures]
    peers: Sequence[Figures]

    def ratio(self, of: Callable[[Figures], float]) -> float:
        """The median over the rounds of ours to the peer's."""
        return statistics.median(of(mine) / of(theirs) for mine, theirs in zip(self.ours, self.peers, strict=True))

    def medians(self, of: Callable[[Figures], float]) -> tuple[float, float]:
        """The medians of both, each by itself."""
        return statistics.median(map(of, self.ours)), statistics.median(map(of, self.peers))


def rows() -> list[Row]:
    """The webhook and the peer over TLS with keep-alive, in turns."""
    reviews = both_reviews()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"serving": {"workers": WORKERS}}
        build, environment = list(builds().items())[-1]
        server = WebhookServer(Path(folder, "webhook"), settings, environment=environment)
        with server as webhook, constant_answer(Path(folder)) as peer:
            assert webhook.process is not None
            ours = Side(webhook.port, webhook.process.pid)
            for side in (ours, peer):
                check_keep_alive(side.port, reviews)
                measure(side.port, reviews, clients=8, seconds=1)
            single = compare(ours, peer, reviews, clients=1)
            eight = compare(ours, peer, reviews, clients=8)
    p50 = single.ratio(attrgetter("p50"))
    rate = eight.ratio(attrgetter("rate"))
    p99 = eight.ratio(attrgetter("p99"))
    spent = eight.ratio(attrgetter("spent"))
    return [
        ratio_row("p50 at 1 client, of a constant Flask answer", p50, f"<= {P50_GOAL_RATIO}", met=p50 <= P50_GOAL_RATIO)
        | {"context": f"{latencies(single, 'p50')}, {client(single)}, admission {build}, HTTP parser in {parser()}"},
        ratio_row("reviews/s at 8 clients, of it", rate, f">= {RATE_GOAL_RATIO}", met=rate >= RATE_GOAL_RATIO)
        | {"context": f"{against(eight, 'rate', 1, ',.0f', '/s')}, {client(eight)} on the same cores"},
        ratio_row("p99 at 8 clients, of it", p99, "< 1", met=p99 < 1) | {"context": latencies(eight, "p99")},
        ratio_row("processor time a review at 8 clients, of it", spent, None, met=None)
        | {"context": against(eight, "spent", 1e6, ".0f", " us")},
    ]


def against(compared: Comparison, field: str, scale: float, form: str, unit: str) -> str:
    """Ours against the peer's, for people."""
    ours, peers = compared.medians(attrgetter(field))
    return f"{ours * scale:{form}}{unit} against {peers * scale:{form}}{unit}"


def latencies(compared: Comparison, field: str) -> str:
    return against(compared, field, 1e3, ".2f", " ms")


def client(compared: Comparison) -> str:
    """States the client's own processor time for a review of ours, which no server can lower."""
    return f"the client's own part {compared.medians(attrgetter('client_spent'))[0] * 1e6:.0f} us of processor"


def parser() -> str:
    """The language of the HTTP parser that gunicorn found."""
    return "C" if find_spec("gunicorn_h1c") else "Python"


def ratio_row(name: str, value: float, goal: str | None, *, met: bool | None) -> Row:
    return {"name": f"webhook: {name}", "value": round(value, 3), "unit": "ratio", "goal": goal, "met": met}


def compare(ours: Side, peer: Side, reviews: Reviews, clients: int) -> Comparison:
    """Both under the same load in turns; who goes first changes from round to round."""
    figures: dict[Side, list[Figures]] = {ours: [], peer: []}
    for number in range(ROUNDS):
        for side in (ours, peer) if number % 2 == 0 else (peer, ours):
            figures[side].append(one_round(side, reviews, clients))
    return Comparison(figures[ours], figures[peer])


def one_round(side: Side, reviews: Reviews, clients: int) -> Figures:
    before = spent_by_children(side.parent)
    load: Load = measure(side.port, reviews, clients, SECONDS)
    spent = (spent_by_children(side.parent) - before) / load.answers
    return Figures(load.p50, load.p99, load.rate, spent, load.client_spent)


def spent_by_children(parent: int) -> float:
    """Processor seconds of a process's children, in user and kernel mode (proc(5), stat)."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(values[1]) == parent:
            ticks += int(values[11]) + int(values[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def constant_answer(folder: Path) -> Iterator[Side]:
    """The peer, while it runs."""
    (folder / "constant.py").write_text(CONSTANT_ANSWER)
    authority = make_authority("bench", utc_now(), timedelta(days=1))
    leaf = make_leaf(authority, ("localhost",), utc_now(), timedelta(days=1))
    certificate, key = folder / "peer.crt", folder / "peer.key"
    certificate.write_bytes(leaf.certificate_pem)
    key.write_bytes(leaf.key_pem)
    port = free_port()
    command = [
        sys.executable, "-m", "gunicorn", "--chdir", str(folder), "--bind", f"127.0.0.1:{port}", "--workers",
        str(WORKERS), "--worker-class", "gthread", "--threads", "8", "--keep-alive", "120", "--certfile",
        str(certificate), "--keyfile", str(key), "--log-level", "error", "--no-control-socket", "constant:application",
    ]  # fmt: skip
    with ending(subprocess.Popen(command, start_new_session=True)) as process:
        yield Side(port, process.pid)
