"""The sidecar's cost to its pod: memory after 1,000 reports, processor time a minute."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sidecar.archive import build
from tests.support.servers.report_server import report_server
from tests.support.usage_writer import Device, usage_record, write_usage
from tests.support.waiting import LIMIT_S

REPORTS = 1000
MEMORY_GOAL_MIB = 24
PROCESSOR_GOAL_MILLI = 1.0
INTERVAL_SECONDS = 60
SAMPLES_PER_INTERVAL = 12

PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import os
from sidecar import reporter
from sidecar.delivery import Accepted, deliver, tls_context
from sidecar.settings import from_environment

def cost(work, count):
    before = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - before) / count

settings = from_environment(os.environ)
context = tls_context(settings.ca_pem)
subject = reporter.Reporter(settings, lambda body: deliver(settings, context, body), "bench")
sample = cost(subject.sample, 1000)

def report():
    subject._start_delivery()
    event = subject._events.get(timeout=10)
    assert isinstance(event.outcome, Accepted), event
    subject._settle(event.outcome)

first = cost(report, 1)
each = cost(report, int(sys.argv[2]) - 1)
memory = {line.split(":")[0]: int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("Vm")}
print(memory["VmRSS"], memory["VmHWM"], sample, each)
"""


def rows() -> Iterator[dict[str, Any]]:
    """Memory and processor time of the archive under `python -I -S`, two containers of two devices each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = folder / "sidecar.pyz"
        build(archive)
        (folder / "token").write_text("x" * 1000)
        for container in ("main", "helper"):
            devices = (Device("GPU-a", busy_ns=2**50), Device("GPU-b", busy_ns=2**50))
            write_usage(folder / "run" / container / "usage", usage_record(*devices))
        with report_server(folder / "tls") as server:
            environment = {
                "FAIRGPU_TIMEKEEPER_URL": server.url,
                "FAIRGPU_TIMEKEEPER_CA": server.ca_pem,
                "FAIRGPU_TOKEN_FILE": str(folder / "token"),
                "FAIRGPU_USAGE_FOLDER": str(folder / "run"),
                "FAIRGPU_REPORT_INTERVAL_SECONDS": "1",
            }
            memory_kib, peak_kib, sample_seconds, report_seconds = _measure(archive, environment)
            start_seconds = _start_cost(archive, environment)
    context = f"{REPORTS} reports over TLS, Python {sys.version.split()[0]}"
    mebibytes = max(memory_kib, peak_kib) / 1024
    yield _row("sidecar: memory at its highest", mebibytes, "MiB RSS", MEMORY_GOAL_MIB, context)
    milli = 1000 * (report_seconds + SAMPLES_PER_INTERVAL * sample_seconds) / INTERVAL_SECONDS
    note = f"a report {report_seconds * 1e3:.2f} ms, a sample {sample_seconds * 1e6:.0f} us"
    yield _row(f"sidecar: processor at {INTERVAL_SECONDS} s", milli, "mCPU", PROCESSOR_GOAL_MILLI, note)
    yield {
        **_row("sidecar: start to first report", start_seconds, "CPU s", 0, "once in a pod"),
        "goal": None,
        "met": None,
    }


def _measure(archive: Path, environment: dict[str, str]) -> list[float]:
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(archive), str(REPORTS)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def _start_cost(archive: Path, environment: dict[str, str]) -> float:
    process = subprocess.Popen([sys.executable, "-I", "-S", archive], env=environment, stdout=subprocess.PIPE)
    deadline = time.monotonic() + LIMIT_S
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode != 0 or time.monotonic() > deadline:
        raise RuntimeError(f"the sidecar ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def _row(name: str, value: float, unit: str, goal: float, context: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "goal": f"at most {goal:g}",
        "met": value <= goal,
        "context": context,
    }
