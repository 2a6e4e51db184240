"""No client notices that the CA and the certificate change under load."""

from __future__ import annotations

import http.client
import ssl
import time
from pathlib import Path

import pytest

from tests.support.admission import gpu_pod, read_answer, review
from tests.support.servers.webhook_server import WebhookServer
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.patient

# A leaf has a third of its life left when it is renewed, and a bundle is out for `spread_seconds` before it is needed:
# that is how long a busy machine may stand still here without anybody being at fault.
ROTATING = {
    "certificates": {"authority_seconds": 30, "leaf_seconds": 20, "check_seconds": 0.2, "spread_seconds": 5},
}
BEHIND_SECONDS = 2.0
PAUSE_SECONDS = 0.4
BODY = review(gpu_pod())


def mutate_on(connection: http.client.HTTPSConnection) -> None:
    connection.request("POST", "/mutate", BODY)
    assert read_answer(connection.getresponse().read()).allowed


def served_certificate(connection: http.client.HTTPSConnection) -> bytes:
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert(binary_form=True)
    assert certificate
    return certificate


def test_both_change_while_requests_go_on_and_none_fails_even_of_who_learns_late(tmp_path: Path) -> None:
    with WebhookServer(tmp_path / "server", settings=ROTATING) as server:
        first_authority = server.ca_file.read_bytes()
        late = tmp_path / "late.crt"
        late.write_bytes(first_authority)
        copied_at = time.monotonic()
        kept = server.connect()
        mutate_on(kept)
        kept_socket = kept.sock
        certificates, bundles = set(), set()
        deadline = time.monotonic() + 2 * LIMIT_S
        while first_authority in server.ca_file.read_bytes() or len(certificates) < 3:
            assert time.monotonic() < deadline
            # What an API server does: trust the bundle as it is or was, connect anew, and go on with old connections.
            bundles.add(server.ca_file.read_bytes().count(b"BEGIN CERTIFICATE"))
            for trusted in (server.ca_file, late):
                fresh = server.connect(trusted)
                mutate_on(fresh)
                certificates.add(served_certificate(fresh))
                fresh.close()
            mutate_on(kept)
            if time.monotonic() - copied_at > BEHIND_SECONDS:
                late.write_bytes(server.ca_file.read_bytes())
                copied_at = time.monotonic()
            time.sleep(PAUSE_SECONDS)
        assert bundles == {1, 2}
        assert kept.sock is kept_socket
        kept.close()


def test_a_restart_goes_on_with_the_same_certificates(tmp_path: Path) -> None:
    with WebhookServer(tmp_path) as server:
        authority = server.ca_file.read_bytes()
    with WebhookServer(tmp_path) as server:
        assert server.ca_file.read_bytes() == authority
