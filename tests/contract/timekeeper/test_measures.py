from __future__ import annotations

import socket
import urllib.request

from timekeeper.controller.metrics import JobMeasures, serve_measures


def test_a_client_that_says_nothing_keeps_no_probe_waiting() -> None:
    server = serve_measures("127.0.0.1", 0, JobMeasures(), lambda: True)
    try:
        with (
            socket.create_connection(("127.0.0.1", server.server_port)),
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/healthz", timeout=60) as answer,
        ):
            assert answer.read() == b'{"status":"ok"}'
    finally:
        server.shutdown()
        server.server_close()
