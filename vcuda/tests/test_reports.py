"""nvidia-smi in the container, and the sidecar beside it, see the container's slice and what it used."""

import json
import struct
import subprocess
import sys
import zlib

from agent import Agent, Tenant
from node import MIB, Node, Share, asked, ended, until, uuid


def test_nvml_shows_the_slice_and_the_processes_in_it(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB), SIMGPU_HOST_PID_OFFSET="100000")
    other = node.container("b")
    with container.session() as ask, other.session() as neighbour:
        for tell in (ask, neighbour):
            assert [tell("init")[0], tell("ctx")[0], tell(f"alloc a {100 * MIB}")[0]] == [0, 0, 0]
        assert ask("nvml 0") == [0, 356 * MIB, 2048 * MIB]
        result, count, pid = ask("processes 0")
        assert (result, count) == (0, 1)
        assert pid < 100000  # the container's own number, not the host's


def test_a_container_sees_only_the_devices_that_it_was_given(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "3"
    container = node.container("a", Share(ordinal=2, memory=512 * MIB))
    with container.session() as ask:
        assert ask("init")[0] == 0
        assert ask("devices") == [0, 1, 0]
        assert ask("nvml 0") == [0, 0, 512 * MIB]
        assert ask("nvml 1")[0] != 0
        assert ask("ctx 0")[0] == 101  # CUDA_ERROR_INVALID_DEVICE
        assert ask("ctx 2")[0] == 0


PYNVML = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
processes = [[one.pid, one.usedGpuMemory] for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
rates = pynvml.nvmlDeviceGetUtilizationRates(device)
print(json.dumps([pynvml.nvmlDeviceGetCount(), memory.total, memory.used, memory.free, processes, rates.memory]))
"""


def test_nvidias_python_binding_of_nvml_shows_the_slice(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB), SIMGPU_HOST_PID_OFFSET="100000")
    other = node.container("b")
    with ended(container.start("actor")) as actor, other.session() as neighbour:
        for line in ("init", "ctx", f"alloc a {256 * MIB}"):
            assert asked(actor, line)[0] == neighbour(line)[0] == 0
        command = [sys.executable, "-c", PYNVML]
        done = subprocess.run(command, env=container.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = 512 * MIB
    assert json.loads(done.stdout) == [1, 2048 * MIB, used, 2048 * MIB - used, [[actor.pid, used]], 25]


def busy_ns(record: bytes) -> int:
    """GPU time of the first device in a usage record."""
    return int.from_bytes(record[48 + 48 :][:8], "little")


def test_usage_is_written_as_the_sidecar_reads_it(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        lines = ("init", "ctx", f"alloc a {2000 * MIB}", "launch spin_ms_20", "launch spin_ms_20")
        assert [ask(line)[0] for line in lines] == [0, 0, 2, 0, 0]
        until(lambda: container.usage.exists() and busy_ns(container.usage.read_bytes()) > 35_000_000)
    record = container.usage.read_bytes()
    assert len(record) == 2112
    assert container.usage.stat().st_mode & 0o777 == 0o644
    assert zlib.crc32(record[:-4]) == int.from_bytes(record[-4:], "little")
    magic, version, size, sequence, epoch, written, devices, _ = struct.unpack_from("<8sIIQQQII", record)
    assert (magic, version, size, devices) == (b"FGUSAGE\0", 1, 2112, 1)
    assert sequence >= 1
    assert 0 < epoch <= written
    name, busy, span, _, peak, _, limit, launches, oom = struct.unpack_from("<48s8Q", record, 48)
    assert name.rstrip(b"\0").decode() == uuid()
    assert busy <= span
    assert peak >= 256 * MIB
    assert (limit, launches, oom) == (1024 * MIB, 2, 1)


def test_a_limit_changed_on_the_page_counts_at_once(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0, limit=512 * MIB)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        until(lambda: ask("info")[2] == 512 * MIB)
        assert ask(f"alloc a {300 * MIB}")[0] == 2
