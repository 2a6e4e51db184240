"""A service without an address of its own answers at each one that its pod has, of IPv4 and of IPv6."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairgpu.serving.addresses import every_address, limited_address, plain_address
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.process_probe import serve_probe
from fairgpu.serving.server import GunicornServer
from scheduler.application import server_options as of_scheduler
from scheduler.settings import SchedulerSettings
from tests.contract.serving.served import serving
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.api.service import server_options as of_timekeeper
from timekeeper.settings import TimekeeperSettings
from webhook.service import server_options as of_webhook
from webhook.settings import Webhook

LOOPBACKS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
OF_SERVICES: dict[str, Callable[[], ServerOptions]] = {
    "webhook": lambda: of_webhook(Webhook(), standalone=False),
    "timekeeper": lambda: of_timekeeper(TimekeeperSettings(), standalone=False),
    "scheduler": lambda: of_scheduler(SchedulerSettings().extender),
}


def loopbacks() -> list[str]:
    """The loopback address of each family of which this machine has addresses, as it stands in a URL."""
    found = []
    for family, address in LOOPBACKS.items():
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            found.append(str(Address(address, 0)).removesuffix(":0"))
    return found


def binds(options: ServerOptions) -> list[str]:
    """The addresses that gunicorn is given."""
    server = GunicornServer(options, lambda _: pytest.fail("no worker starts here"), None)
    return [str(each) for each in server.cfg.bind]


def test_a_service_answers_reviews_and_probes_at_each_address(tmp_path: Path) -> None:
    with serving(tmp_path, "everywhere", "logged") as served:
        trusted = ssl.create_default_context(cadata=served.authority.certificate_pem.decode())
        trusted.check_hostname = False
        for host in loopbacks():
            connection = http.client.HTTPSConnection(host.strip("[]"), served.port, timeout=LIMIT_S, context=trusted)
            connection.request("POST", "/echo", b"x")
            assert connection.getresponse().read() == b"x"
            connection.close()
            with urllib.request.urlopen(f"http://{host}:{served.metrics_port}/metrics", timeout=LIMIT_S) as answer:
                assert answer.status == 200
        log = tmp_path / "log"
        wait_until(lambda: log.read_text().count('"/metrics"') == len(loopbacks()), "each scrape is logged")
        events = [json.loads(line) for line in log.read_text().splitlines() if '"/metrics"' in line]
        assert {event["client"] for event in events} == {host.strip("[]") for host in loopbacks()}


def test_a_process_without_a_service_answers_probes_at_each_address() -> None:
    port = free_port()
    server = serve_probe("", port, CollectorRegistry(), lambda: True)
    try:
        for host in loopbacks():
            for path in ("metrics", "healthz"):
                with urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=LIMIT_S) as answer:
                    assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("service", OF_SERVICES)
def test_the_default_of_each_service_is_every_address(monkeypatch: pytest.MonkeyPatch, service: str) -> None:
    monkeypatch.setattr("fairgpu.serving.server.every_address", lambda: ("::",))
    # kube-scheduler asks its extender in the same pod, and no other part of the cluster may.
    within_the_pod = ["127.0.0.1:8088"] if service == "scheduler" else ["[::]:8443"]
    assert binds(OF_SERVICES[service]()) == [*within_the_pod, "[::]:9090"]


def test_an_address_that_is_set_is_the_only_one() -> None:
    options = of_webhook(Webhook(serving={"host": "fd00::1"}), standalone=False)
    assert binds(options) == ["[fd00::1]:8443", "[fd00::1]:9090"]


def test_a_kernel_without_ipv6_is_listened_on_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_arguments: object) -> None:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuses)
    assert every_address() == ("0.0.0.0",)  # noqa: S104


class Apart(socket.socket):
    """A socket of a kernel that keeps IPv6 apart (net.ipv6.bindv6only)."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.family == socket.AF_INET6 and self.type == socket.SOCK_STREAM:
            with suppress(OSError):  # it is bound already
                self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


def test_a_kernel_that_keeps_ipv6_apart_is_listened_on_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Apart)
    server = GunicornServer(
        of_webhook(Webhook(), standalone=False), lambda _: pytest.fail("no worker starts here"), None
    )
    families = [f"{host}:" for host in ("0.0.0.0", "[::]")][: len(loopbacks())]  # noqa: S104
    assert [str(each) for each in server.cfg.bind] == [f"{each}{port}" for port in (8443, 9090) for each in families]
    assert server.application_listeners == len(families)


def test_a_probe_where_the_kernel_keeps_ipv6_apart_is_answered_at_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Apart)
    test_a_process_without_a_service_answers_probes_at_each_address()


@pytest.mark.parametrize(
    ("text", "plain"),
    [("::ffff:10.0.0.9", "10.0.0.9"), ("10.0.0.9", "10.0.0.9"), ("fd00::1", "fd00::1"), ("-", "-"), ("", "")],
)
def test_a_client_s_address_is_its_own(text: str, plain: str) -> None:
    assert plain_address(text) == plain


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("10.0.0.9", "10.0.0.9"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a proxy", "a proxy"),
    ],
)
def test_a_limit_by_address_counts_a_network_of_ipv6_as_one(text: str, counted: str) -> None:
    assert limited_address(text) == counted
