"""Present use from end to end: exporter, Prometheus, the leader's process, the REST API's, and the command."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fairgpu.commands import main
from tests.support.ports import free_port
from tests.support.processes import FAIRGPU, ending
from tests.support.servers.bad_server import hang, serving
from tests.support.servers.prometheus_server import exporter, prometheus
from tests.support.servers.rest_server import RestServer
from tests.support.waiting import LIMIT_S, wait_until

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer

NODE = {
    "metadata": {
        "name": "mig",
        "uid": "mig",
        "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"},
    },
    "status": {"capacity": {"nvidia.com/mig-3g.40gb": "2"}},
}

EVERY = 15
"""Seconds between two questions; a figure is shown for three times as long, whatever delays the next answer."""


def pod(name: str) -> dict[str, Any]:
    """A pod of the device plugin's, with a MIG instance."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    limits = {"nvidia.com/mig-3g.40gb": "1"}
    return {
        "metadata": {"uid": name, "name": name, "namespace": "team-a", "creationTimestamp": stamp},
        "spec": {"nodeName": "mig", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
        },
    }


def claiming(name: str, claim: str) -> dict[str, Any]:
    """A pod whose devices come by a claim."""
    item = pod(name)
    item["spec"]["containers"] = [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]
    item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return item


def claim(name: str, devices: int, *pods: str) -> dict[str, Any]:
    """A claim of Dynamic Resource Allocation that these pods share."""
    results = [
        {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "mig", "device": f"{name}-{at}"} for at in range(devices)
    ]
    reserved = [{"resource": "pods", "name": each, "uid": each} for each in pods]
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"uid": name, "name": name, "namespace": "team-a", "creationTimestamp": stamp},
        "status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved},
    }


@contextmanager
def jobs(folder: Path, port: int) -> Iterator[None]:
    """The process that leads, with the settings of the folder."""
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    settings["timekeeper"]["jobs"] = {"metrics_port": port, "metrics_host": "127.0.0.1"}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    command = [*FAIRGPU, "timekeeper", "jobs", "--standalone", str(folder)]
    log = (folder / "jobs.log").open("ab")
    with log, ending(subprocess.Popen(command, stdout=log, stderr=log)):
        yield


def metric(port: int, name: str) -> float | None:
    """A metric of the jobs; None before they serve it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return None
    return next((float(line.split()[-1]) for line in lines if line.rpartition(" ")[0] == name), None)


Objects = tuple[tuple[str, dict[str, Any]], ...]
"""Objects of a cluster, each with the name of its collection."""


def served(folder: Path, store: RedisServer, url: str, more: Objects = ()) -> RestServer:
    """A timekeeper that only looks, with two pods of the device plugin's."""
    for kind, item in (("nodes", NODE), ("pods", pod("busy")), ("pods", pod("quiet")), *more):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / f"{item['metadata']['uid']}.json").write_text(json.dumps(item))
    asked = {"url": url, "every_seconds": EVERY, "timeout_seconds": 60}
    return RestServer(folder, store.url, settings={"mode": "look", "prometheus": asked})


@pytest.mark.patient
def test_a_pod_without_a_sidecar_is_listed_with_how_busy_it_is(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    (tmp_path / "folder").mkdir()
    with exporter() as source:
        source.gpu(0, 83.6, "team-a", "busy", GPU_I_PROFILE="3g.40gb", GPU_I_ID="1")
        with (
            prometheus(tmp_path, source.port) as server,
            served(tmp_path / "folder", redis_server, server.url) as rest,
            jobs(rest.folder, port),
        ):

            def sessions() -> dict[str, Any] | None:
                """The sessions by pod, once the busy one is shown with its present use."""
                answer = rest.as_person("alice", "GET", "/v1/sessions?namespace=team-a")
                if answer.status != 200:
                    return None
                assert answer.document["presentUseFrom"] == "prometheus"
                found = {session["pod"]: session for session in answer.document["sessions"]}
                return found if found.get("busy", {}).get("presentUse") else None

            shown = wait_until(sessions, "its present use is shown")
            monkeypatch.setenv("FAIRGPU_SERVER", rest.url)
            monkeypatch.setenv("FAIRGPU_CA_FILE", str(rest.ca_file))
            monkeypatch.setenv("FAIRGPU_TOKEN", rest.signer.person("alice"))
            capsys.readouterr()
            assert main(["sessions", "-n", "team-a"]) == 0
            lines = capsys.readouterr().out.splitlines()
            series = 'fairgpu_timekeeper_present_use_series{outcome="metered"}'
            wait_until(lambda: metric(port, series) == 1, "the series that it comes of is counted")

    assert shown["busy"]["presentUse"]["percent"] == 83.6
    assert shown["busy"]["presentUse"]["source"] == "prometheus"
    assert shown["busy"]["used"] is None
    assert shown["quiet"]["presentUse"] is None
    assert lines[0].split()[-4:] == ["BUSY", "NOW", "AS", "OF"]
    busy, quiet = lines[1].split(), lines[2].split()
    assert (busy[1], busy[-3], busy[-1]) == ("busy", "84%", "ago")
    assert (quiet[1], quiet[-2:]) == ("quiet", ["-", "-"])
    assert lines[-1] == "BUSY NOW is by Prometheus, advisory, and no part of any bill."


@pytest.mark.patient
def test_a_claim_is_listed_with_how_busy_its_devices_are(
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    (tmp_path / "folder").mkdir()
    objects = (
        ("claims", claim("pair", 2, "trainer", "reader")),
        ("claims", claim("idle", 1)),
        ("pods", claiming("trainer", "pair")),
        ("pods", claiming("reader", "pair")),
    )
    with exporter() as source:
        for number, busy in enumerate((90.0, 40.0)):
            names = {"dra_claim_namespace": "team-a", "dra_claim_name": "pair", "dra_device_name": f"pair-{number}"}
            source.gpu(number, busy, "team-a", "trainer", **names)
            source.gpu(number, busy, "team-a", "reader", **names)
        with (
            prometheus(tmp_path, source.port) as server,
            served(tmp_path / "folder", redis_server, server.url, objects) as rest,
            jobs(rest.folder, port),
        ):

            def sessions() -> dict[str, Any]:
                answer = rest.as_person("alice", "GET", "/v1/sessions?namespace=team-a").document
                return {session["pod"]: session for session in answer["sessions"]}

            wait_until(lambda: sessions().get("resourceclaim/pair", {}).get("presentUse"), "its present use is shown")
            shown = sessions()
            monkeypatch.setenv("FAIRGPU_SERVER", rest.url)
            monkeypatch.setenv("FAIRGPU_CA_FILE", str(rest.ca_file))
            monkeypatch.setenv("FAIRGPU_TOKEN", rest.signer.person("alice"))
            capsys.readouterr()
            assert main(["sessions", "-n", "team-a"]) == 0
            rows = {line.split()[1]: line.split() for line in capsys.readouterr().out.splitlines() if "claim/" in line}

    assert shown.keys() == {"busy", "quiet", "resourceclaim/pair", "resourceclaim/idle"}
    assert shown["resourceclaim/pair"]["presentUse"]["percent"] == 65
    assert shown["resourceclaim/idle"]["presentUse"] is None
    assert (rows["resourceclaim/pair"][-3], rows["resourceclaim/pair"][-1]) == ("65%", "ago")
    assert rows["resourceclaim/idle"][-2:] == ["-", "-"]


@pytest.mark.patient
def test_a_prometheus_that_hangs_delays_no_settlement(redis_server: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    with (
        serving(hang) as server,
        served(tmp_path, redis_server, server.url) as rest,
        jobs(rest.folder, port),
    ):
        wait_until(lambda: server.requests, "Prometheus is asked")
        at = wait_until(lambda: metric(port, "fairgpu_timekeeper_settled_timestamp_seconds"), "it has settled")
        wait_until(
            lambda: (metric(port, "fairgpu_timekeeper_settled_timestamp_seconds") or 0) > at, "it has settled again"
        )
        assert metric(port, 'fairgpu_timekeeper_present_use_queries_total{outcome="timeout"}') == 0
