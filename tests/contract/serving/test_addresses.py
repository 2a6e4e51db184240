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
    monkeypatch.setattr("fairgpu.serving.server.every_address", lambda: "::")
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
    assert every_address() == "0.0.0.0"  # noqa: S104


def test_a_kernel_that_keeps_ipv6_apart_is_listened_on_by_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: 1)
    assert every_address() == "0.0.0.0"  # noqa: S104


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
