"""Every service that has metrics, running, with enough to do that each metric has a sample; and what they then tell."""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.admission import gpu_pod, review
from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.periods import month_midway
from tests.support.ports import free_port
from tests.support.processes import FAIRGPU, ending
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from tests.support.servers.webhook_server import WebhookServer
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.domain.money import SECOND

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="')

Families = dict[str, set[str]]
"""By the name of a sample: its labels."""


def read_samples(text: str) -> Families:
    """The samples of a scrape, and the counters that it announces without any."""
    found: Families = {}
    for name in re.findall(r"^# TYPE (\w+) counter$", text, re.MULTILINE):
        found.setdefault(name, set())
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is not None and not line.startswith("#"):
            found.setdefault(match[1], set()).update(_LABEL.findall(match[2] or ""))
    return found


@contextmanager
def running_services(folder: Path) -> Iterator[list[int]]:
    """The webhook, the REST API and the jobs, on a Redis of their own; the ports of their metrics."""
    with RedisServer(make(folder / "redis")) as store, store.client() as client:
        harness = LedgerHarness(make(folder / "timekeeper"), client)
        harness.now = time.time_ns() - 7200 * SECOND
        harness.budget("research", ["team-a"], 3, period=month_midway())
        pod = harness.pod(str(uuid.uuid4()), "team-a")["metadata"]
        for _ in range(12):  # what was spent over the last hour is known once an hour was watched
            harness.reconcile(590)
        jobs_port = free_port()
        with (
            RestServer(harness.folder, store.url) as rest,
            WebhookServer(make(folder / "webhook")) as webhook,
            jobs(harness.folder, jobs_port),
        ):
            wait_until(lambda: "fairgpu_budget_state" in scrape(jobs_port), "the states of budgets are shown")
            rest.wait_for("/readyz")
            ask_everything(rest, webhook, pod)
            store.stop()
            failures = "fairgpu_timekeeper_job_failures_total"
            wait_until(lambda: bool(scrape(jobs_port).get(failures)), "a job failed")
            yield [jobs_port, rest.metrics_port, webhook.metrics_port]


def ask_everything(rest: RestServer, webhook: WebhookServer, pod: dict[str, str]) -> None:
    """One request of each kind that is counted."""
    rest.ask("GET", "/v1/budgets")  # without a token: a problem
    token = rest.signer.pod(pod["namespace"], pod["name"], pod["uid"])
    rest.ask("POST", "/v1/reports", token, {"v": 1, "boot": "b", "seq": 1, "containers": []})
    webhook.ask("POST", "/mutate", review(gpu_pod()))


@contextmanager
def jobs(folder: Path, port: int) -> Iterator[None]:
    """The process that keeps the books."""
    settings = {"JOBS_METRICS_PORT": str(port), "PROMETHEUS_URL": "http://127.0.0.1:9"}  # nothing listens there
    environment = {**os.environ, **{f"FAIRGPU_TIMEKEEPER_{name}": value for name, value in settings.items()}}
    command = [*FAIRGPU, "timekeeper", "jobs", "--standalone", str(folder)]
    log = (folder / "jobs.log").open("ab")
    with log, ending(subprocess.Popen(command, stdout=log, stderr=log, env=environment)):
        yield


def scrape(port: int) -> Families:
    """Returns a service's present metrics; nothing while it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as response:
            return read_samples(response.read().decode())
    except OSError:
        return {}


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
