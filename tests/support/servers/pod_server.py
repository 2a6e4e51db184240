"""An HTTP server in place of the API server for writes to pods; it fails for the pods that a test names."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from kubernetes import client

from fairgpu.cluster.api import KubernetesAPI


class PodServer(ThreadingHTTPServer):
    """An HTTP server that answers each write with the sent document, except for the pods that `answers` names."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {}
        """The status and the Status object with which writes to a pod are answered, keyed by the pod's name."""
        self.silent: dict[str, threading.Event] = {}
        """For each pod whose writes are answered late, the event that ends the delay; keyed by the pod's name."""
        self.waiting: set[str] = set()
        """The names of pods for which a write has come that is not answered yet."""
        self.asked: list[tuple[str, str]] = []
        """The pod or the collection, and the end of the path, of each write that has come, in order."""

    def api(self) -> KubernetesAPI:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self.server_port}"
        return KubernetesAPI(client.ApiClient(configuration))

    def asked_for(self, what: str = "") -> set[str]:
        """Returns the pods for which a write of one kind came: an empty text for patches, or `eviction`."""
        return {pod for pod, kind in self.asked if kind == what}

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in self.silent.values():
            event.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: PodServer
    protocol_version = "HTTP/1.1"

    def do_PATCH(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._say(404, {"reason": "NotFound", "message": "nothing is kept here"})

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = self.path.partition("?")[0].split("/")
        about = parts[parts.index("pods") + 1] if "pods" in parts else parts[-1]
        self.server.asked.append((about, "" if parts[-1] == about else parts[-1]))
        if about in self.server.silent:
            self.server.waiting.add(about)
            self.server.silent[about].wait()
            self.server.waiting.discard(about)
        status, document = self.server.answers.get(about, (200, {"sent": json.loads(body)}))
        self._say(status, document)

    def _say(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:
            self.close_connection = True  # who asked has given up

    def log_message(self, *_arguments: Any) -> None:
        """Requests are kept, not printed."""
