"""Reviews over real TLS and real HTTP, answered by the command that runs in a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.support.admission import apply, container, gpu_container, gpu_pod, pod, read_answer, review
from tests.support.field_tables import undescribed
from tests.support.processes import FAIRGPU
from tests.support.servers.webhook_server import WebhookServer
from tests.support.waiting import LIMIT_S, wait_until

MANIFESTS = """
apiVersion: v1
kind: Pod
metadata: {name: notebook}
spec:
  containers:
    - {name: main, image: example/notebook, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 4096}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      priorityClassName: urgent
      containers:
        - {name: main, image: example/train, resources: {limits: {fairgpu.io/gpu-core: 150}}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookServer]:
    with WebhookServer(tmp_path_factory.mktemp("webhook")) as started:
        yield started


def test_a_pod_is_mutated_and_then_valid(server: WebhookServer) -> None:
    status, body = server.ask("POST", "/mutate", review(gpu_pod()))
    assert status == 200
    stored = apply(gpu_pod(), read_answer(body).patch)
    assert stored["spec"]["schedulerName"] == "fairgpu-scheduler"
    status, body = server.ask("POST", "/validate", review(stored))
    assert status == 200
    assert read_answer(body).allowed


def test_the_sidecar_carries_the_timekeepers_authority(server: WebhookServer) -> None:
    _, body = server.ask("POST", "/mutate", review(gpu_pod()))
    stored = apply(gpu_pod(), read_answer(body).patch)
    environment = {item["name"]: item["value"] for item in stored["spec"]["initContainers"][0]["env"]}
    authority = server.folder / "certificates" / "timekeeper" / "ca.crt"
    assert environment["FAIRGPU_TIMEKEEPER_CA"] == authority.read_text()


def test_a_refusal_is_an_answer(server: WebhookServer) -> None:
    status, body = server.ask("POST", "/mutate", review(pod(gpu_container(core="150"))))
    assert status == 200
    assert not read_answer(body).allowed


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null", review({})[:-1]])
@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_bytes_that_are_no_review_get_400_with_a_problem_document(
    server: WebhookServer, path: str, body: bytes
) -> None:
    status, answered = server.ask("POST", path, body)
    assert status == 400
    assert orjson.loads(answered)["status"] == 400


def test_a_body_past_the_limit_gets_413(server: WebhookServer) -> None:
    status, _ = server.ask("POST", "/mutate", b" " * (9 << 20))
    assert status == 413


@pytest.mark.parametrize(("method", "path", "expected"), [("GET", "/mutate", 404), ("POST", "/elsewhere", 404)])
def test_other_routes_are_not_there(server: WebhookServer, method: str, path: str, expected: int) -> None:
    assert server.ask(method, path)[0] == expected


def test_metrics_are_those_of_all_workers_on_a_plain_port(server: WebhookServer) -> None:
    name = 'fairgpu_webhook_reviews_total{outcome="untouched",webhook="mutate"}'
    before = server.metrics()[name]
    for _ in range(10):
        server.ask("POST", "/mutate", review(pod(container())))
    wait_until(lambda: server.metrics()[name] >= before + 10, "all ten are counted")
    metrics = server.metrics()
    assert metrics[name] == before + 10
    assert metrics["fairgpu_webhook_certificate_expiry_timestamp_seconds"] > 1.7e9


def test_a_replica_that_is_ready_says_so_in_its_metrics(server: WebhookServer) -> None:
    wait_until(lambda: server.metrics()["fairgpu_webhook_ready"] == 1.0, "it says that it is ready")


def test_a_refusal_is_in_the_log_with_its_ids(server: WebhookServer) -> None:
    server.ask("POST", "/mutate", review(pod(gpu_container(core="175"))))
    events = [orjson.loads(line) for line in server.log().splitlines()]
    refused = [event for event in events if event["event"] == "refused" and "175" in event["faults"]]
    assert refused[0]["namespace"] == "team-a"
    assert refused[0]["name"] == "train"


def test_admit_asks_the_running_webhook(server: WebhookServer, tmp_path: Path) -> None:
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(MANIFESTS)
    command = [*FAIRGPU, "admit", "-f", str(manifests), "-n", "team-a", "-o", "json"]
    asked = [*command, "--webhook", server.url, "--ca-file", str(server.ca_file)]
    remote = subprocess.run(asked, capture_output=True, timeout=LIMIT_S, check=False)
    assert remote.returncode == 1, remote.stderr.decode()
    notebook, train = found = orjson.loads(remote.stdout)
    assert undescribed("fairgpu admit", found) == []
    assert notebook["outcome"] == "changed"
    assert train["outcome"] == "refused"
    assert "spec.priorityClassName" in train["message"]


def test_admit_says_when_no_webhook_answers(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests.yaml"
    manifests.write_text(MANIFESTS)
    command = [*FAIRGPU, "admit", "-f", str(manifests), "--webhook", "https://localhost:1"]
    asked = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert asked.returncode == 2
    assert b"https://localhost:1" in asked.stderr
