"""nvidia-smi in the container, and the sidecar beside it, see the container's slice and what it used."""

import json
import struct
import subprocess
import sys
import zlib

from agent import Agent, Tenant
from node import MIB, Container, Node, Share, asked, ended, until, uuid


def test_nvml_shows_the_slice_and_the_processes_in_it(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB), SIMGPU_HOST_PID_OFFSET="100000")
    other = node.container("b")
    with container.session() as ask, other.session() as neighbour:
        for each in (ask, neighbour):
            assert [each("init")[0], each("ctx")[0], each(f"alloc a {100 * MIB}")[0]] == [0, 0, 0]
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


INSUFFICIENT_SIZE = 7
NOT_FOUND = 6
COMPUTE, GRAPHICS, MPS, ALL = range(4)


def test_every_form_of_nvmls_lists_shows_the_containers_processes_alone(node: Node) -> None:
    container, other = node.container("a", SIMGPU_HOST_PID_OFFSET="100000"), node.container("b")
    with container.session() as ask, other.session() as neighbour:
        for each in (ask, neighbour):
            assert [each("init")[0], each("ctx")[0], each("launch spin_ms_20")[0]] == [0, 0, 0]
        pid = ask("pid")[1]
        for form in ("compute1 0 64", "compute2 0 64", "compute3 0 64", f"detail 0 64 {COMPUTE}", f"detail 0 64 {ALL}"):
            assert ask(form) == [0, 1, pid], form
        for form in ("compute1 0 0", "compute2 0 0", "compute3 0 0", f"detail 0 0 {COMPUTE}"):
            assert ask(form) == [INSUFFICIENT_SIZE, 1, 0], form
        for form in ("graphics1", "graphics2", "graphics3", "mps1", "mps2", "mps3"):
            assert ask(f"{form} 0 64") == [0, 0, 0], form
        assert ask(f"detail 0 64 {GRAPHICS}") == ask(f"detail 0 64 {MPS}") == [0, 0, 0]


def test_both_forms_of_nvmls_memory_show_the_slice_and_add_up(node: Node) -> None:
    container = node.container("a", Share(memory=2048 * MIB))
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert ask("nvml 0") == [0, 256 * MIB, 2048 * MIB]
        assert ask("nvml2 0") == [0, 256 * MIB, 0]


def test_memory_that_a_dead_process_held_is_used_and_its_process_is_none(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert container.run("init", "ctx", "exit 0") == [[0, 0, 0], [0, 0, 0]]
        until(lambda: (ask("compute3 0 64")[1], container.charged()) == (1, 512 * MIB))


def test_a_slice_larger_than_what_the_gpu_has_shows_no_more_than_that(node: Node) -> None:
    node.settings["SIMGPU_MEMORY_MIB"] = "4096"
    container = node.container("a", Share(memory=8192 * MIB))
    assert container.run("init", "ctx", "info", "total 0", "nvml 0")[2:] == [
        [0, 3840 * MIB, 4096 * MIB],
        [0, 4096 * MIB, 0],
        [0, 256 * MIB, 4096 * MIB],
    ]


def test_a_device_of_somebody_else_is_found_by_no_name(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    container = node.container("a", Share(ordinal=1))
    with container.session() as ask:
        assert ask("init")[0] == 0
        for verb in ("byuuid", "byuuidv"):
            assert [ask(f"{verb} - {uuid(0)}")[0], ask(f"{verb} - {uuid(1)}")[0]] == [NOT_FOUND, 0]
        assert [ask("bybus - 00000000:01:00.0")[0], ask("bybus - 00000000:02:00.0")[0]] == [NOT_FOUND, 0]


def test_nvml_tells_how_busy_the_container_is_and_how_full(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0], ask("rates 0")[0]] == [0, 0, 0]
        until(lambda: ask("launch spin_ms_400")[0] == 0 and ask("rates 0")[1] > 50)
        assert ask("rates 0")[2] == 25
        assert ask("samples 0") == ask("samples2 0") == [NOT_FOUND, 0, 0], "they are named by the host's pids"
        until(lambda: ask("rates 0")[1] == 0)


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
    name, busy, span, _, most, now, limit, launches, oom = struct.unpack_from("<48s8Q", record, 48)
    assert name.rstrip(b"\0").decode() == uuid()
    assert busy <= span
    assert most >= now >= 256 * MIB
    assert (limit, launches, oom) == (1024 * MIB, 2, 1)


def peak(container: Container) -> int:
    """Bytes that the container held at most, by its usage record."""
    record = container.usage.read_bytes() if container.usage.exists() else b""
    return int.from_bytes(record[48 + 48 + 24 :][:8], "little")


def test_the_most_that_was_held_is_reported_after_it_was_freed(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        for line in ("init", "ctx", f"alloc a {500 * MIB}", "free a", "launch spin_ms_20"):
            assert ask(line)[0] == 0
        until(lambda: peak(container) == 756 * MIB)


def test_the_most_that_was_held_is_what_the_driver_held(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    with Agent(node, page, Tenant("a", 0)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        until(lambda: peak(container) >= 256 * MIB)


def test_a_limit_changed_on_the_page_counts_at_once(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(schedule=str(page)))
    with Agent(node, page, Tenant("a", 0, limit=512 * MIB)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        until(lambda: ask("info")[2] == 512 * MIB)
        assert ask(f"alloc a {300 * MIB}")[0] == 2


def test_a_limit_below_what_is_held_leaves_nothing_free(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    with Agent(node, page, Tenant("a", 0, limit=128 * MIB)), container.session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0], "it takes more than the node measured"
        until(lambda: ask("info") == [0, 0, 128 * MIB])
        assert ask("nvml 0") == [0, 128 * MIB, 128 * MIB]
        assert ask("nvml2 0") == [0, 128 * MIB, 0]
