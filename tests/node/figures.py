"""Measures the node agent on a real kubelet with a hundred pods: `python -m tests.node.figures`, rows of JSON.

It needs the namespaces that tests/bench/node.py gives it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.nodeagent import AGE_GOAL_MS, START_GOAL_MS, ages_of, row
from tests.cluster.control_plane.control_plane import AUDIT_LOG
from tests.node import images
from tests.node.machine import SIMULATED, VCUDA, Machine, running_node, uuid
from tests.node.pods import Placed, container, place
from tests.support.processes import ending
from tests.support.waiting import wait_until

GPUS, MEMORY_MIB = 8, 81920
PODS, AT_ONCE = 100, 50
SLEEPS = "echo > /out/$0.done; exec sleep 86400"
MEMORY_GOAL_MIB = 96.0
REACTION_GOAL_S = 5.0
QUIET_S = float(os.environ.get("FAIRGPU_BENCH_QUIET_SECONDS", "60"))
AGENT = "system:serviceaccount:fairgpu-nodes:fairgpu-nodeagent"
METRICS = "http://127.0.0.1:9090/metrics"
SPIN = "fairgpu.test/spin:1"
SHARES = (30, 70)
SHARES_S = 20
SHARES_GOAL = 1.0


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """All figures of one node."""
    with running_node(folder, gpus=GPUS, memory_mib=MEMORY_MIB, settings={}, audited=True) as machine:
        namespace = machine.plane.create_namespace()
        yield from _shares(machine, namespace)
        _started(machine, namespace, range(AT_ONCE))
        yield from _starts(machine, namespace)
        yield _memory(machine)
        yield _calls(machine)
        yield _registration(machine)
        yield _fault(machine)
        machine.plane.remove_pods(namespace)


def _started(machine: Machine, namespace: str, numbers: Sequence[int]) -> None:
    pods = [
        place(machine, namespace, [container("main", 5, 1024, SLEEPS)], name=f"pod-{number}", gpu=number % GPUS)
        for number in numbers
    ]
    for pod in pods:
        wait_until(pod.file("main.done").exists, f"{pod.name} has started", 600.0)


def _starts(machine: Machine, namespace: str) -> Iterator[dict[str, Any]]:
    """Fifty containers that start at once beside fifty that run: their starts, and the pages meanwhile."""
    before = _buckets()
    writer = _writer(machine)
    waited, began = _delay_s(writer), time.monotonic()
    with _ages(machine.folder / "ages") as ages:
        _started(machine, namespace, range(AT_ONCE, PODS))
    late = 100 * (_delay_s(writer) - waited) / (time.monotonic() - began)
    starts = {limit: count - before.get(limit, 0.0) for limit, count in _buckets().items()}
    within = min(limit for limit, count in starts.items() if count >= 0.99 * AT_ONCE)
    context = (
        f"{AT_ONCE} PreStartContainer of a real kubelet at once, {PODS} pods on the node: at most, by the histogram"
    )
    yield row("node.start.p99", 1000 * within, "ms", START_GOAL_MS, context)
    oldest = sorted(ages)[int(0.999 * len(ages))]
    context = (
        f"{AT_ONCE} containers start at once on {GPUS} GPUs; the writer waited for a core {late:.2f} % of the time"
    )
    yield row("node.page.age.p99.9", oldest, "ms", AGE_GOAL_MS, context)


def _memory(machine: Machine) -> dict[str, Any]:
    agent = machine.servers["agent"].process.popen.pid
    pids = [agent, *_children(agent)]
    mib = sum(_pss_kib(pid) for pid in pids) / 1024
    return row("node.memory", mib, "MiB", MEMORY_GOAL_MIB, f"PSS of {len(pids)} processes, {GPUS} GPUs, {PODS} pods")


def _calls(machine: Machine) -> dict[str, Any]:
    before = _audited(machine)
    time.sleep(QUIET_S)
    made = _audited(machine) - before
    return row("node.calls", made, "calls", 0.0, f"to the API server, watches aside, in {QUIET_S:g} quiet seconds")


def _registration(machine: Machine) -> dict[str, Any]:
    with machine.servers["kubelet"].away():
        pass
    began = time.time()
    wait_until(lambda: machine.registered_since(began), "the kubelet knows the device plugin again")
    seconds = Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").stat().st_mtime - began
    wait_until(machine.is_ready, "the node is ready again")
    return row("node.registration", seconds, "s", REACTION_GOAL_S, "from the start of a kubelet's process")


def _fault(machine: Machine) -> dict[str, Any]:
    wanted = str(100 * (GPUS - 1))
    began = time.monotonic()
    machine.make_gpus(f"{GPUS - 1} xid 79")
    wait_until(lambda: machine.node()["status"]["capacity"]["fairgpu.io/gpu-core"] == wanted, "the GPU is taken out")
    return row("node.fault", time.monotonic() - began, "s", REACTION_GOAL_S, "from an Xid to the Node's capacity")


def _shares(machine: Machine, namespace: str) -> Iterator[dict[str, Any]]:
    """The shares of two containers under the agent's page, beside those of vcuda/bench/shares.py on this machine."""
    sys.path.insert(0, str(VCUDA.parent / "bench"))
    import shares  # noqa: PLC0415 - the bench is no package

    files = {f"bin/{name}": Path("/bin") / name for name in ("sh", "sleep")}
    spin = images.image(
        machine.folder / "spin.tar", SPIN, ["/bin/sh"], files | {"usr/bin/spin": VCUDA / "tests" / "spin"}
    )
    machine.import_image(spin)
    script = f"{{ until [ -e /out/go ]; do sleep 0.1; done; echo; }} | spin {SHARES_S + 10} 100 > /dev/null"
    pods = [_spinning(machine, namespace, core, script) for core in SHARES]
    for pod in pods:
        pod.wait_until("Running")
    for pod in pods:
        pod.file("go").touch()
    (machine.folder / "gpu").symlink_to(SIMULATED / "node")
    labels = [str(core) for core in SHARES]
    wait_until(lambda: all(shares.work_done(machine).get(label) for label in labels), "both work")
    here = []
    for _ in range(SHARES_S):
        before = shares.work_done(machine)
        time.sleep(1)
        after = shares.work_done(machine)
        here.append([(after[label] - before[label]) / 1e7 for label in labels])
    for pod in pods:
        pod.delete()
    tenants = [shares.hard(core, shares.SHORT) for core in SHARES]
    beside = [window.parts for window in shares.shares(machine.folder / "beside", tenants, SHARES_S, 1.0)]
    context = (
        f"points of error beyond that of vcuda/bench/shares.py ({_error(beside):.2f}, got {_means(beside)}), "
        f"of the work that both did; got {_means(here)}"
    )
    yield row("node.shares.30/70", _error(here) - _error(beside), "points", SHARES_GOAL, context)


def _error(windows: list[list[float]]) -> float:
    """The mean difference from the shares in points, of the work that a busy machine let the two do together."""
    errors = [
        abs(100 * part / sum(parts) - core) for parts in windows for part, core in zip(parts, SHARES, strict=True)
    ]
    return sum(errors) / len(errors)


def _means(windows: list[list[float]]) -> str:
    """Returns the mean share of the GPU's time of each pod, in percent."""
    return "/".join(f"{sum(parts[i] for parts in windows) / len(windows):.1f}" for i in range(len(SHARES)))


def _spinning(machine: Machine, namespace: str, core: int, script: str) -> Placed:
    environment = [{"name": "SIMGPU_LABEL", "value": str(core)}]
    spinning = container("main", core, 8192, script, image=SPIN, env=environment)
    return place(machine, namespace, [spinning], name=f"spin-{core}")


@contextmanager
def _ages(file: Path) -> Iterator[list[float]]:
    """The ages of all pages, in ms, read in a process of its own until the end; there after it."""
    command = [sys.executable, "-m", "tests.node.figures", str(file)]
    ages: list[float] = []
    with ending(subprocess.Popen(command, stdout=subprocess.DEVNULL)):
        wait_until(file.exists, "the pages are read")
        yield ages
    ages.extend(map(float, file.read_text().split()))


def _read_ages(file: Path) -> None:
    pages = [Path("/run/fairgpu-nodeagent/gpus", uuid(number), "schedule") for number in range(GPUS)]
    wait_until(lambda: all(page.exists() for page in pages), "the pages are there")
    with file.open("w", buffering=1) as out:
        while True:
            out.writelines(f"{age:.3f}\n" for age in ages_of(pages))
            time.sleep(0.005)


def _writer(machine: Machine) -> int:
    (pid,) = _children(machine.servers["agent"].process.popen.pid)
    return pid


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _delay_s(pid: int) -> float:
    """The time for which a process could run, and had no core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _audited(machine: Machine) -> int:
    """The agent's requests so far, without watches."""
    with (machine.plane.folder / AUDIT_LOG).open() as log:
        entries = (json.loads(line) for line in log if AGENT in line)
        return sum(entry["stage"] == "ResponseComplete" and entry["verb"] != "watch" for entry in entries)


def _buckets() -> dict[float, float]:
    """The agent's starts so far, by the longest time that each took, in seconds."""
    name = "fairgpu_nodeagent_start_duration_seconds_bucket"
    with urllib.request.urlopen(METRICS, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.removeprefix(f'{name}{{le="').split('"} ') for line in lines if line.startswith(name))
    return {float(limit): float(count) for limit, count in samples}


if __name__ == "__main__":
    if sys.argv[1:]:
        _read_ages(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="fairgpu-node-", ignore_cleanup_errors=True) as name:
        for each in rows(Path(name)):
            sys.stdout.write(json.dumps(each) + "\n")
            sys.stdout.flush()
