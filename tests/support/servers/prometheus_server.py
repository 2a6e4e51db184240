"""A real Prometheus, and an exporter for it that writes metrics as NVIDIA's DCGM exporter does.

Names and labels are those of dcgm-exporter (etc/default-counters.csv and internal/pkg/transformation/const.go there):
`namespace`, `pod` and `container` name the holder of a GPU. Prometheus renames them to `exported_namespace` and so on
if the target has labels of these names and `honor_labels` is false, as for the target of the operator's monitor.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
import yaml

from tests.support.ports import free_port
from tests.support.processes import ending
from tests.support.waiting import LIMIT_S, wait_until

EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
"""The labels that the operator's monitor gives the target: those of the exporter itself."""
PATH = "/prometheus"


@dataclass
class Exporter:
    """An exporter on loopback; `lines` are its metrics as text."""

    port: int
    lines: list[str] = field(default_factory=list)

    def gpu(self, number: int, value: float, namespace: str = "", pod: str = "", **labels: str) -> None:
        """Writes the use of a GPU, in percent, and the pod that holds it, if any."""
        all_labels = {
            "gpu": str(number),
            "UUID": f"GPU-{number:08d}-0000-0000-0000-000000000000",
            "device": f"nvidia{number}",
            "modelName": "NVIDIA A100-SXM4-80GB",
            "Hostname": "n1",
        }
        if pod:
            all_labels |= {"container": "main", "namespace": namespace, "pod": pod}
        written = ",".join(f'{name}="{text}"' for name, text in {**all_labels, **labels}.items())
        self.lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{written}}} {value}")


@contextmanager
def exporter() -> Iterator[Exporter]:
    """Serves an exporter, to which the test adds metrics."""
    serving = Exporter(0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            head = ["# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).", "# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
            body = "\n".join([*head, *serving.lines, ""]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield serving
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


@dataclass(frozen=True)
class PrometheusServer:
    """A running Prometheus."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def wait_for(self, query: str) -> None:
        """Returns once a query has a result."""
        asked = urlencode({"query": query})

        def found() -> bool:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{PATH}/api/v1/query?{asked}") as response:
                    return bool(orjson.loads(response.read())["data"]["result"])
            except OSError:
                return False

        wait_until(found, f"{query} has a result")


@contextmanager
def prometheus(folder: Path, exporter_port: int, *, honor_labels: bool = False) -> Iterator[PrometheusServer]:
    """Runs a Prometheus that scrapes the exporter every second; it serves its API under PATH."""
    program = shutil.which("prometheus") or str(Path(sys.executable).with_name("prometheus"))
    port = free_port()
    target = {"targets": [f"127.0.0.1:{exporter_port}"], "labels": EXPORTER}
    job = {"job_name": "dcgm", "honor_labels": honor_labels, "static_configs": [target]}
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    options = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.external-url=http://127.0.0.1:{port}{PATH}",
    ]
    log = (folder / "prometheus.log").open("ab")
    with log, ending(subprocess.Popen([program, *options], stdout=log, stderr=log)) as process:
        server = PrometheusServer(port, process, Path(log.name))
        server.wait_for("up == 1")
        yield server
