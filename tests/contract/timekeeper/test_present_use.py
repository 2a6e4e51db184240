"""Present use by a real Prometheus, beside what is reserved; and servers that answer nothing that can be used."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from fairgpu.leadership import Term
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.bad_server import Answering, drip, flood, hang, http_answer, serving
from tests.support.servers.prometheus_server import exporter, prometheus
from tests.support.servers.report_server import make_certificates
from timekeeper.api.figures import Book, SessionFigures
from timekeeper.api.models import budget_answer
from timekeeper.controller.metrics import PresentUseMeasures
from timekeeper.controller.present_use import IDLE_SECONDS, PresentUseReader
from timekeeper.domain.money import SECOND
from timekeeper.ledger import keys
from timekeeper.settings import PrometheusSettings

EVERY = 60


class Setup:
    """A leader with sessions, and one that reads how busy they are."""

    def __init__(self, harness: LedgerHarness) -> None:
        self.harness = harness
        self.registry = CollectorRegistry()
        self.measures = PresentUseMeasures(self.registry)
        self.term = Term(lambda: 0.0)
        self.term.hold(1, 1.0)
        self.clock = time.time_ns()
        harness.budget("vision", ["vision"])
        harness.pod("train-0", "vision")
        harness.pod("train-1", "vision")
        harness.reconcile()

    def sessions(self) -> Any:
        assert self.harness.reconciler is not None
        return self.harness.reconciler.books.pods.sessions.all()

    def reader(self, sessions: Callable[[], Any] | None = None, **settings: Any) -> PresentUseReader:
        given = PrometheusSettings(**{"every_seconds": EVERY, **settings})
        metered = sessions or (lambda: [each.session for each in self.sessions()])
        return PresentUseReader(given, self.harness.client, self.term, metered, self.measures)

    def ask(self, reader: PresentUseReader) -> str:
        """Lets it ask once; returns what became of the query."""
        before = self.outcomes()
        reader.step(time.time_ns)
        after = self.outcomes()
        (outcome,) = [name for name, count in after.items() if count != before[name]]
        return outcome

    def outcomes(self) -> dict[str, float]:
        return {
            sample.labels["outcome"]: sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == "fairgpu_timekeeper_present_use_queries_total"
        }

    def series(self, outcome: str) -> float | None:
        return self.registry.get_sample_value("fairgpu_timekeeper_present_use_series", {"outcome": outcome})

    def shown(self, after_seconds: float = 0) -> dict[str, SessionFigures]:
        book = Book(self.harness.client, lambda: time.time_ns() + int(after_seconds * SECOND))
        return {figures.session.pod: figures for figures in book.sessions("vision", "", 100)}

    def percents(self, after_seconds: float = 0) -> dict[str, float | None]:
        found = self.shown(after_seconds)
        return {pod: None if it.present_use is None else it.present_use.share / 100 for pod, it in found.items()}


@pytest.fixture
def setup(harness: LedgerHarness) -> Setup:
    return Setup(harness)


NONE = {"train-0": None, "train-1": None}


@pytest.mark.parametrize("honor_labels", [False, True])
def test_a_pod_is_as_busy_as_prometheus_says_whichever_way_it_scrapes(
    setup: Setup, tmp_path: Path, *, honor_labels: bool
) -> None:
    with exporter() as source:
        source.gpu(0, 80, "vision", "train-0")
        source.gpu(1, 40, "vision", "train-0")
        source.gpu(2, 99, "speech", "serve-0")
        source.gpu(3, 0)
        with prometheus(tmp_path, source.port, honor_labels=honor_labels) as server:
            server.wait_for("DCGM_FI_DEV_GPU_UTIL")

            assert setup.ask(setup.reader(url=server.url)) == "answered"

    assert setup.percents() == {"train-0": 60.0, "train-1": None}
    assert setup.series("metered") == 1
    assert setup.series("not-metered") == 2  # another stack's pod, and the exporter's own for a GPU that is free


def vector(*series: tuple[str, str, str], **fields: Any) -> Answering:
    """Answers as Prometheus does at that moment, with series of namespace, pod and value."""

    def answer(connection: socket.socket) -> None:
        at = time.time()
        result = [
            {"metric": {"namespace": namespace, "pod": pod}, "value": [at, value]} for namespace, pod, value in series
        ]
        document = {"status": "success", "data": {"resultType": "vector", "result": result}, **fields}
        http_answer("200 OK", json.dumps(document).encode())(connection)

    return answer


BUSY = vector(("vision", "train-0", "25"))


def test_a_figure_is_over_after_three_intervals_and_then_unknown_and_not_0(setup: Setup) -> None:
    with serving(vector(("vision", "train-0", "0"))) as server:
        assert setup.ask(setup.reader(url=server.url)) == "answered"

    assert setup.percents() == {"train-0": 0.0, "train-1": None}
    assert setup.percents(after_seconds=3 * EVERY - 30) == {"train-0": 0.0, "train-1": None}
    assert setup.percents(after_seconds=3 * EVERY + 30) == NONE


def test_a_pod_that_the_next_answer_lacks_is_unknown_at_once(setup: Setup) -> None:
    for answer, shown in ((BUSY, 25.0), (vector(("vision", "train-1", "9")), None)):
        with serving(answer) as server:
            assert setup.ask(setup.reader(url=server.url)) == "answered"
        assert setup.percents()["train-0"] == shown


def test_a_failure_takes_nothing_back_that_may_still_be_shown(setup: Setup) -> None:
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=server.url))
    with capture_logs() as logs:
        reader = setup.reader(url=server.url)
        assert [setup.ask(reader), setup.ask(reader)] == ["unreachable", "unreachable"]

    assert setup.percents() == {"train-0": 25.0, "train-1": None}
    assert {line["event"] for line in logs} == {"present use not read"}


def test_a_term_that_ends_during_a_query_takes_no_figure_back(setup: Setup) -> None:
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=server.url))
        answers = [[each.session for each in setup.sessions()], None]
        reader = setup.reader(lambda: answers.pop(0), url=server.url)
        reader.step(time.time_ns)
    assert setup.percents() == {"train-0": 25.0, "train-1": None}


@pytest.mark.parametrize("every", [30, 60, 3600])
def test_a_figure_stays_in_the_store_for_as_long_as_it_may_be_shown(setup: Setup, every: int) -> None:
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=server.url, every_seconds=every))
    left = setup.harness.client.ttl(keys.PRESENT_USE)
    assert isinstance(left, int)
    assert left > 3 * every


def test_the_token_and_the_ca_are_read_for_each_query_and_no_token_is_logged(setup: Setup, tmp_path: Path) -> None:
    token = tmp_path / "token"
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with serving(BUSY, context) as server, capture_logs() as logs:
        reader = setup.reader(url=server.url, ca_file=tmp_path / "ca.pem", token_file=token)
        assert setup.ask(reader) == "misconfigured"
        token.write_text("first\n")
        assert setup.ask(reader) == "answered"
        token.write_text("second\n")
        assert setup.ask(reader) == "answered"
        token.write_text("two words\n")
        assert setup.ask(reader) == "misconfigured"
        assert [b"Bearer first" in server.requests[0], b"Bearer second" in server.requests[1]] == [True, True]
        assert len(server.requests) == 2
        assert setup.ask(setup.reader(url=server.url)) == "unreachable"  # the system's CAs have not signed for it
        assert setup.ask(setup.reader(url=server.url, ca_file=token)) == "misconfigured"
        assert len(server.requests) == 2

    assert [line["event"] for line in logs[:2]] == ["present use not read", "present use read again"]
    assert "words" not in str(logs)


MIB = bytes(1 << 20)
PROBLEM = b'{"status":"error","errorType":"bad_data","error":"parse error: unexpected end"}'


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (hang, "timeout"),
        (drip(b"HTTP/1.1 200 OK\r\nA: "), "timeout"),
        (drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"), "timeout"),
        (drip(b"HTTP/1.1 200 OK\r\n\r\n"), "timeout"),
        (lambda _: None, "unreachable"),
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "unreadable"),
        (http_answer("500 Internal Server Error", b"<html>"), "refused"),
        (http_answer("401 Unauthorized", b""), "refused"),
        (http_answer("204 No Content", b""), "refused"),
        (http_answer("400 Bad Request", PROBLEM), "error"),
        (http_answer("200 OK", PROBLEM), "error"),
        (http_answer("302 Found", b"", "Location: https://example.com/"), "redirected"),
        (http_answer("200 OK", b"<html>"), "unreadable"),
        (http_answer("200 OK", b""), "unreadable"),
        (http_answer("200 OK", gzip.compress(bytes(50 << 20)), "Content-Encoding: gzip"), "unreadable"),
        (http_answer("200 OK", b'{"status":"success","data":{"resultType":"matrix","result":[]}}'), "no-vector"),
        (flood(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n", MIB), "too-large"),
        (flood(b"HTTP/1.1 200 OK\r\n\r\n", MIB), "too-large"),
        (flood(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + MIB + b"\r\n"), "too-large"),
        (flood(b"HTTP/1.1 500 No\r\n\r\n", MIB), "refused"),
        (flood(b"HTTP/1.1 200 OK\r\n", b"A: " + b"x" * 1000 + b"\r\n"), "unreadable"),
        (vector(), "empty"),
        (vector(("vision", "train-0", "NaN"), ("vision", "train-1", "400")), "answered"),
    ],
)  # fmt: skip
def test_a_server_that_says_nothing_of_use_leaves_all_pods_unknown(
    setup: Setup, answer: Answering, outcome: str
) -> None:
    with serving(answer) as server, capture_logs() as logs:
        # Only a server that is to be given up on is given little time.
        seconds = 0.5 if outcome == "timeout" else 60
        reader = setup.reader(url=server.url, timeout_seconds=seconds, max_answer_mib=1)
        assert setup.ask(reader) == outcome

    assert setup.percents() == NONE
    failures = [line for line in logs if line["event"] == "present use not read"]
    assert len(failures) == (0 if outcome in {"empty", "answered"} else 1)
    assert all(line["outcome"] == outcome and len(line["error"]) < 500 for line in failures)


def test_a_handshake_that_never_ends_is_cut(setup: Setup) -> None:
    with serving(hang) as server:
        reader = setup.reader(url=server.url.replace("http:", "https:"), timeout_seconds=0.5)
        assert setup.ask(reader) == "timeout"


def test_no_redirect_is_followed(setup: Setup) -> None:
    with (
        serving(BUSY) as other,
        serving(http_answer("307 Temporary Redirect", b"", f"Location: {other.url}/api/v1/query")) as server,
    ):
        assert setup.ask(setup.reader(url=server.url)) == "redirected"
        assert other.requests == []


def test_a_host_that_is_not_there_is_unreachable(setup: Setup) -> None:
    assert setup.ask(setup.reader(url="http://prometheus.invalid:9090")) == "unreachable"
    assert setup.ask(setup.reader(url=f"http://{'a' * 70}.invalid")) == "unreachable"


def test_the_query_is_sent_as_it_is_configured_with_the_time_for_it(setup: Setup) -> None:
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=f"{server.url}/select/0/prometheus/", query='a{b="c"} + 1 # \n', timeout_seconds=7))
    (request,) = server.requests
    assert request.startswith(
        b"GET /select/0/prometheus/api/v1/query?query=a%7Bb%3D%22c%22%7D+%2B+1+%23+%0A&timeout=7s "
    )
    assert b"Authorization" not in request


def test_a_replica_that_does_not_lead_asks_nothing(setup: Setup) -> None:
    setup.term.lose()
    with serving(BUSY) as server:
        assert setup.reader(url=server.url).step(time.time_ns) == IDLE_SECONDS
    assert server.requests == []
    assert setup.percents() == NONE


def test_a_pod_that_reports_itself_is_shown_by_its_reports_alone(setup: Setup) -> None:
    setup.harness.client.hset(keys.report("train-0"), mapping={"at": str(time.time_ns()), "used": "5"})
    with serving(vector(("vision", "train-0", "25"), ("vision", "train-1", "30"))) as server:
        setup.ask(setup.reader(url=server.url))

    assert setup.percents() == {"train-0": None, "train-1": 30.0}


def test_labels_that_name_other_pods_are_logged(setup: Setup) -> None:
    with serving(vector(("gpu-operator", "dcgm-1", "25"))) as server, capture_logs() as logs:
        assert setup.ask(setup.reader(url=server.url)) == "answered"

    (line,) = logs
    assert (line["event"], line["example"]) == ("present use names no metered pod", "gpu-operator/dcgm-1")
    assert (setup.series("metered"), setup.series("not-metered")) == (0, 1)


def test_warnings_are_logged_and_what_came_is_shown(setup: Setup) -> None:
    with serving(vector(("vision", "train-0", "25"), warnings=["a store is away"])) as server, capture_logs() as logs:
        assert setup.ask(setup.reader(url=server.url)) == "answered"

    assert setup.percents() == {"train-0": 25.0, "train-1": None}
    assert [(line["event"], line["warnings"]) for line in logs] == [
        ("present use may be incomplete", ["a store is away"])
    ]


def test_a_store_that_refuses_leaves_sessions_readable(setup: Setup) -> None:
    setup.harness.client.set(keys.PRESENT_USE, "something else")
    with serving(BUSY) as server:
        assert setup.ask(setup.reader(url=server.url)) == "not-stored"

    assert setup.percents() == NONE


def test_figures_that_cannot_be_read_are_unknown(setup: Setup) -> None:
    for text in ("", "1", "1 2", "1 9999999999999999999 -5", "x 9 9"):
        setup.harness.client.hset(keys.PRESENT_USE, "train-0", text)
        assert setup.percents() == NONE


def test_the_later_of_two_pods_of_one_name_has_it(setup: Setup) -> None:
    setup.harness.pass_time(60)
    old = setup.harness.source_pod("train-0")
    again = {**old, "metadata": {**old["metadata"], "uid": "again", "creationTimestamp": "2026-01-15T12:01:00Z"}}
    again["status"] = json.loads(json.dumps(old["status"]).replace("12:00:00", "12:01:00"))
    setup.harness.write_pod(again)
    setup.harness.reconcile()
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=server.url))

    found = {
        figures.session.uid: figures.present_use
        for figures in Book(setup.harness.client, time.time_ns).sessions("vision", "", 9)
    }
    assert found["train-0"] is None
    assert found["again"] is not None


def test_a_budget_shows_the_busy_gpus_of_those_pods_whose_use_is_known(setup: Setup) -> None:
    setup.harness.pod("half", "vision", core=50)
    setup.harness.pod("elsewhere", "speech")
    setup.harness.reconcile()
    book = Book(setup.harness.client, time.time_ns)
    figures = book.budget("vision")
    assert figures is not None
    assert budget_answer(figures, setup.harness.now, uses=book.present_use([figures])).presentUse is None

    busy = vector(("vision", "train-0", "25"), ("vision", "half", "100"), ("speech", "elsewhere", "90"))
    with serving(busy) as server:
        setup.ask(setup.reader(url=server.url))
    shown = budget_answer(figures, setup.harness.now, uses=book.present_use([figures])).presentUse
    assert shown is not None
    assert (shown.busy, shown.known) == (0.25 + 0.5, 1.5)  # train-1 is not known, and counts for nothing

    later = Book(setup.harness.client, lambda: time.time_ns() + 3 * EVERY * SECOND + SECOND)
    assert later.present_use([figures]) == {}
    setup.harness.client.delete(keys.PRESENT_USE)
    setup.harness.client.set(keys.PRESENT_USE, "something else")
    assert book.present_use([figures]) == {}


def test_no_amount_changes_by_it(setup: Setup) -> None:
    setup.harness.reconcile(3600)
    before = setup.harness.spent("vision")
    with serving(BUSY) as server:
        setup.ask(setup.reader(url=server.url))
    setup.harness.reconcile()

    assert setup.harness.spent("vision") == before > 0
