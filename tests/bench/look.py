"""The mode `look` on 50,000 pods and 2,000 nodes: memory of the leading process, time to the first figures, requests.

A small server stands in for the API server and for Prometheus, whose own work is not measured: it answers lists in
pages, keeps watches open, and says how busy each pod is. Its pods are as large as those of a real cluster, with
volumes, environment and managed fields.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.other_stacks import OWN_LINE, STACKS
from tests.support.ports import free_ports
from tests.support.processes import FAIRGPU, end
from tests.support.servers.redis_server import RedisServer
from timekeeper.ledger import keys, reading
from timekeeper.sources.base import CHECKPOINT_SHARDS

PODS, NODES, CLAIMED = 50_000, 2_000, 5_000
PAGE = 500
GOAL_MIB, GOAL_SECONDS = 400, 60
STAMP = "2026-01-15T12:00:00Z"
TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """Memory and time of a leader that begins with so many pods."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-look-") as folder, RedisServer(Path(folder)) as store:
        server = _serve()
        asked: Counter[str] = server.asked  # type: ignore[attr-defined]
        process = _leader(Path(folder), server.server_port, store.url)
        began = time.monotonic()
        try:
            with store.client() as client:
                while reading.watched(client) is None:
                    if process.poll() is not None:
                        raise RuntimeError((Path(folder) / "leader.log").read_text()[-3000:])
                    time.sleep(0.2)
                first = time.monotonic() - began
                spent = _processor_seconds(process.pid)
                # What sessions hold is in all checkpoints: the leader has done each of its tasks once.
                while sum("checkpoints" in path for path in list(server.kept)) < CHECKPOINT_SHARDS:  # type: ignore[attr-defined]
                    time.sleep(0.2)
                settled = _mib(process.pid, "VmHWM")
                while not client.exists(keys.PRESENT_USE):
                    time.sleep(0.2)
                sessions = len(reading.open_sessions(client, "", 10 * PODS))
            peak = _mib(process.pid, "VmHWM")
            read = Counter(asked)
        finally:
            server.shutdown()
            end(process)
    yield {
        "name": "memory of the leader that looks at 50,000 pods, at its highest",
        "value": peak,
        "unit": "MiB",
        "goal": f"<= {GOAL_MIB}",
        "met": peak <= GOAL_MIB,
        "context": f"{NODES} nodes, {CLAIMED} claims; {sessions} sessions",
    }
    yield {
        "name": "… before it has read how busy each pod is, by Prometheus",
        "value": settled,
        "unit": "MiB",
        "goal": None,
        "met": None,
        "context": "the rest is the answer of 50,000 series, and what it is stored by",
    }
    yield {
        "name": "time from its start to the first figures of 50,000 pods",
        "value": first,
        "unit": "s",
        "goal": f"<= {GOAL_SECONDS}",
        "met": first <= GOAL_SECONDS,
        "context": f"{spent:.0f} s of processor time; {sum(read.values())} requests",
    }
    lists = max(read[path] / -(-count // PAGE) for path, count in COUNTED.items())
    single = sum(count for path, count in read.items() if path.startswith(tuple(f"{kind}/" for kind in LISTS)))
    yield {
        "name": "lists of each kind until then, its pages counted as one",
        "value": lists,
        "unit": "lists",
        "goal": "<= 1",
        "met": lists <= 1 and single == 0,
        "context": f"and {single} requests for a single pod, node, claim or slice; watches do the rest",
    }


def _leader(folder: Path, port: int, store: str) -> subprocess.Popen[bytes]:
    kubeconfig = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(document))
    environ = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "FAIRGPU_TIMEKEEPER_MODE": "look",
        "FAIRGPU_TIMEKEEPER_OTHER_STACKS_RESOURCES": json.dumps({"example.com/npu": OWN_LINE}),
        "FAIRGPU_TIMEKEEPER_REDIS_URL": store,
        "FAIRGPU_TIMEKEEPER_PROMETHEUS_URL": f"http://127.0.0.1:{port}",
        "FAIRGPU_TIMEKEEPER_JOBS_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_TIMEKEEPER_JOBS_METRICS_PORT": str(free_ports(1)[0]),
    }
    command = [*FAIRGPU, "timekeeper", "jobs"]
    with (folder / "leader.log").open("wb") as log:
        return subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)


def _mib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _serve() -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    server.asked = Counter()  # type: ignore[attr-defined]
    server.kept = {}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _pod(at: int) -> str:
    template = _template(at % (200 * len(STACKS)) if at >= CLAIMED else -1 - at)
    alike = NODES // len(STACKS)
    node = at // len(STACKS) % alike * len(STACKS) + at % len(STACKS)  # one of its stack
    named = template.replace("@AT", str(at)).replace("@NODE", f"node-{node}")
    stamp = f"2026-01-15T{at % 12:02}:{at // 12 % 60:02}:{at // 720 % 60:02}Z"
    return named.replace("@UID", f"00000000-0000-4000-8000-{at:012x}").replace(STAMP, stamp)


@cache
def _template(kind: int) -> str:
    return json.dumps(_pod_object(kind))


def _pod_object(kind: int) -> Row:
    """A pod of which only names are left open; a kind below 0 holds its devices by a claim."""
    at = kind if kind >= 0 else -1 - kind
    stack = STACKS[at % len(STACKS)]
    asking = list(stack.pods.values())[at % len(stack.pods)]
    claims = [{"name": "gpu", "resourceClaimName": f"claim-{at}"}] if kind < 0 else []
    containers = [
        {
            "name": f"c{number}",
            "image": "registry.example.org/team/train:1",
            "command": ["python", "-m", "train", "--config", "/etc/train/config.yaml"],
            "env": [{"name": f"VARIABLE_{each}", "value": "x" * 40} for each in range(20)],
            "resources": {"limits": {} if claims else limits, "requests": {} if claims else limits},
            "volumeMounts": [{"name": f"v{each}", "mountPath": f"/mnt/{each}"} for each in range(6)],
        }
        for number, limits in enumerate(asking.limits)
    ]
    ready = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": STAMP}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    running = [{"name": item["name"], "state": {"running": {"startedAt": STAMP}}, "ready": True} for item in containers]
    fields: dict[str, dict[str, Any]] = {f"f:field-{each}": {"f:value": {}} for each in range(60)}
    return {
        "metadata": {
            "name": "pod-@AT",
            "namespace": f"team-{at % 200}",
            "uid": "@UID",
            "resourceVersion": "1",
            "creationTimestamp": STAMP,
            "labels": {"app": f"app-{at % 500}", "pod-template-hash": "5d9c", **asking.labels},
            "annotations": asking.annotations,
            "ownerReferences": [{"kind": "Job", "name": f"job-{at % 5000}", "controller": True, "uid": "u"}],
            "managedFields": [{"manager": "kube-controller-manager", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": "@NODE",
            "containers": containers,
            "resourceClaims": claims,
            "schedulerName": asking.scheduler or "default-scheduler",
            "volumes": [{"name": f"v{each}", "emptyDir": {}} for each in range(6)],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}] * 3,
        },
        "status": {"phase": "Running", "conditions": ready, "startTime": STAMP, "containerStatuses": running},
    }


def _node(at: int) -> str:
    return json.dumps(_node_object(at))


def _node_object(at: int) -> Row:
    stack = STACKS[at % len(STACKS)]
    more = {f"feature.node.kubernetes.io/cpu-{each}": "true" for each in range(60)}
    return {
        "metadata": {
            "name": f"node-{at}",
            "uid": f"node-{at}",
            "labels": {**more, **stack.labels},
            "annotations": stack.annotations,
        },
        "status": {
            "capacity": stack.capacity,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": STAMP}],
            "images": [{"names": [f"registry.example.org/{each}"], "sizeBytes": 1} for each in range(50)],
        },
    }


def _claim(at: int) -> str:
    return json.dumps(_claim_object(at))


def _claim_object(at: int) -> Row:
    result = {"request": "gpus", "driver": "gpu.nvidia.com", "pool": f"node-{at % 500}", "device": f"gpu-{at % 8}"}
    uid = f"00000000-0000-4000-8000-{at:012x}"
    return {
        "metadata": {
            "name": f"claim-{at}",
            "namespace": f"team-{at % 200}",
            "uid": f"claim{at}",
            "creationTimestamp": STAMP,
        },
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": 1}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": f"pod-{at}", "uid": uid}],
        },
    }


def _slice(at: int) -> str:
    devices = [
        {"name": f"gpu-{each}", "attributes": {"productName": {"string": "NVIDIA H100"}}, "capacity": {}}
        for each in range(8)
    ]
    pool = {"name": f"node-{at}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": f"node-{at}", "pool": pool, "devices": devices}
    return json.dumps({"metadata": {"name": f"slice-{at}", "uid": f"slice-{at}"}, "spec": spec})


def _busy() -> bytes:
    """An answer of Prometheus to the default query, in which DCGM exporter names each pod."""
    now = time.time()
    result = [
        {
            "metric": {
                "exported_namespace": f"team-{at % 200}",
                "exported_pod": f"pod-{at}",
                "namespace": "gpu-operator",
                "pod": f"nvidia-dcgm-exporter-{at % NODES:05d}",
            },
            "value": [now, f"{at % 100}.25"],
        }
        for at in range(PODS)
    ]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


LISTS = {
    "/api/v1/pods": (_pod, PODS),
    "/api/v1/nodes": (_node, NODES),
    "/apis/resource.k8s.io/v1/resourceclaims": (_claim, CLAIMED),
    "/apis/resource.k8s.io/v1/resourceslices": (_slice, 500),
}
COUNTED = {
    **{path: count for path, (_, count) in LISTS.items()},
    "/api/v1/namespaces": 1,
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": 1,
}
"""The collections of the cluster that are read, with the number of their objects; one page where there are none."""


class _Answers(BaseHTTPRequestHandler):
    """Answers lists in pages, watches with silence, and keeps what is written as it came."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Writes nothing."""

    def do_GET(self) -> None:
        """A list, a watch, the group's versions, or an object that was written before."""
        parts = urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if query.get("watch") == "true" or query.get("allowWatchBookmarks"):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            time.sleep(float(query.get("timeoutSeconds", 60)))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.server.asked[parts.path] += 1  # type: ignore[attr-defined]
        if parts.path == "/api/v1/query":
            self._send(_busy(), 200)
        elif parts.path == "/apis/resource.k8s.io":
            self._answer({"versions": [{"version": "v1"}]})
        elif parts.path in LISTS:
            make, count = LISTS[parts.path]
            start = int(query.get("continue", "0"))
            end = min(start + min(int(query.get("limit", PAGE)), PAGE), count)
            metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < count else {})}
            items = ",".join(make(at) for at in range(start, end))
            self._send(f'{{"metadata": {json.dumps(metadata)}, "items": [{items}]}}'.encode(), 200)
        elif parts.path.rpartition("/")[2] in {"namespaces", "leases", "configmaps"}:
            self._answer({"metadata": {"resourceVersion": "1"}, "items": []})
        else:
            found = self.server.kept.get(parts.path)  # type: ignore[attr-defined]
            self._answer(found or {"kind": "Status", "code": 404, "reason": "NotFound"}, 200 if found else 404)

    def do_POST(self) -> None:
        """Creates an object."""
        body = self._body()
        self._keep(f"{urlsplit(self.path).path}/{body['metadata']['name']}", body, 201)

    def do_PUT(self) -> None:
        """Replaces an object."""
        self._keep(urlsplit(self.path).path, self._body(), 200)

    def do_PATCH(self) -> None:
        """Changes nothing of an object that exists."""
        self._body()
        found = self.server.kept.get(urlsplit(self.path).path)  # type: ignore[attr-defined]
        self._answer(found or {"kind": "Status", "code": 404, "reason": "NotFound"}, 200 if found else 404)

    def _keep(self, path: str, body: Any, status: int) -> None:
        body["metadata"]["resourceVersion"] = str(time.monotonic_ns())
        self.server.kept[path] = body  # type: ignore[attr-defined]
        self._answer(body, status)

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, document: Any, status: int = 200) -> None:
        self._send(json.dumps(document).encode(), status)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
