"""The CA and the certificate change under load, and nobody notices."""

from __future__ import annotations

import http.client
import ssl
import time
from pathlib import Path

from tests.admission import gpu_pod, read_answer, review
from tests.webhook_server import WebhookServer

LIMIT_SECONDS = 60.0
ROTATING = {
    "certificates": {"authority_seconds": 12, "leaf_seconds": 8, "check_seconds": 0.2, "spread_seconds": 1.5},
}
BODY = review(gpu_pod())


def mutate_on(connection: http.client.HTTPSConnection) -> None:
    connection.request("POST", "/mutate", BODY)
    assert read_answer(connection.getresponse().read()).allowed


def served_certificate(connection: http.client.HTTPSConnection) -> bytes:
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert(binary_form=True)
    assert certificate
    return certificate


def test_both_change_while_requests_go_on_and_none_fails(tmp_path: Path) -> None:
    with WebhookServer(tmp_path, settings=ROTATING) as server:
        first_authority = server.ca_file.read_bytes()
        kept = server.connect()
        mutate_on(kept)
        kept_socket = kept.sock
        certificates, bundles = set(), set()
        deadline = time.monotonic() + LIMIT_SECONDS
        while first_authority in server.ca_file.read_bytes() or len(certificates) < 3:
            assert time.monotonic() < deadline
            # What an API server does: trust the bundle as it stands, connect anew, and go on with old connections.
            bundles.add(server.ca_file.read_bytes().count(b"BEGIN CERTIFICATE"))
            fresh = server.connect()
            mutate_on(fresh)
            certificates.add(served_certificate(fresh))
            fresh.close()
            mutate_on(kept)
        assert bundles == {1, 2}
        assert kept.sock is kept_socket
        kept.close()


def test_a_client_that_learns_of_the_bundle_late_still_trusts_what_is_served(tmp_path: Path) -> None:
    with WebhookServer(tmp_path / "server", settings=ROTATING) as server:
        late = tmp_path / "late.crt"
        late.write_bytes(server.ca_file.read_bytes())
        copied_at = time.monotonic()
        seen = set()
        deadline = copied_at + LIMIT_SECONDS
        while len(seen) < 4:
            assert time.monotonic() < deadline
            # A second behind, where the settings allow one and a half.
            if time.monotonic() - copied_at > 1.0:
                late.write_bytes(server.ca_file.read_bytes())
                copied_at = time.monotonic()
            connection = server.connect(late)
            mutate_on(connection)
            seen.add(served_certificate(connection))
            connection.close()


def test_a_restart_goes_on_with_the_same_certificates(tmp_path: Path) -> None:
    with WebhookServer(tmp_path) as server:
        authority = server.ca_file.read_bytes()
    with WebhookServer(tmp_path) as server:
        assert server.ca_file.read_bytes() == authority
