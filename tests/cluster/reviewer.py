"""A webhook that does as a test says: it notes what it is sent, allows it, and patches it."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cluster.control_plane.certificates import Authority


@dataclass
class Reviewer:
    """A running webhook. `requests` are the AdmissionRequests so far, each with the `path` that it came to."""

    port: int
    authority: bytes
    operations: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ca_bundle(self) -> str:
        """The reviewer's authority in the form of a webhook configuration's caBundle."""
        return base64.b64encode(self.authority).decode()

    def answer(self, path: str, review: dict[str, Any]) -> dict[str, Any]:
        self.requests.append({**review["request"], "path": path})
        response: dict[str, Any] = {"uid": review["request"]["uid"], "allowed": True}
        if self.operations:
            patch = base64.b64encode(json.dumps(self.operations).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
        return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


@contextmanager
def running_reviewer(
    folder: Path, hosts: Sequence[str] = ("127.0.0.1",), operations: Sequence[dict[str, Any]] = ()
) -> Iterator[Reviewer]:
    """Serve on a free loopback port with a certificate for `hosts`, whose authority and key go into `folder`."""
    authority = Authority(folder)
    files = authority.server("reviewer", hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    reviewer = Reviewer(0, authority.certificate.read_bytes(), list(operations))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(reviewer.answer(self.path.partition("?")[0], review)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Does nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True  # the API server keeps its connections open
        server.block_on_close = False
        server.socket = context.wrap_socket(server.socket, server_side=True)
        reviewer.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield reviewer
        finally:
            server.shutdown()
            thread.join()
