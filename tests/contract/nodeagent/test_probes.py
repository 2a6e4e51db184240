"""The kubelet's probes reach the agent, whatever family of addresses the cluster has."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from fairgpu.commands import CommandError
from nodeagent.measures import every_address
from nodeagent.settings import read_settings
from tests.support.ports import free_port

LOOPBACKS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
NAMED = {"FAIRGPU_NODEAGENT_NODE": "n1"}


def families() -> list[socket.AddressFamily]:
    """The families of which this machine has addresses."""
    found = []
    for family, address in LOOPBACKS.items():
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            found.append(family)
    return found


def test_an_agent_without_an_address_answers_at_each_one_that_its_pod_has() -> None:
    port = free_port()
    server, thread = start_http_server(port, every_address(), CollectorRegistry())
    try:
        for family in families():
            host = LOOPBACKS[family] if family is socket.AF_INET else f"[{LOOPBACKS[family]}]"
            with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
                assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_kernel_without_ipv6_is_listened_on_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert every_address() == "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_an_address_that_the_kubelet_cannot_reach_stops_the_start(host: str) -> None:
    with pytest.raises(CommandError, match=r"nodeagent\.metrics_host.*the kubelet's probes ask there"):
        read_settings({**NAMED, "FAIRGPU_NODEAGENT_METRICS_HOST": host}, Path("/dev/null"))


@pytest.mark.parametrize("host", ["", "10.1.2.3", "fd00::1", "::", "0.0.0.0"])  # noqa: S104
def test_an_address_of_the_pod_is_taken(host: str) -> None:
    settings = read_settings({**NAMED, "FAIRGPU_NODEAGENT_METRICS_HOST": host}, Path("/dev/null"))
    assert settings.metrics_host == host
