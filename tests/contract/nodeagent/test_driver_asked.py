"""The questions to NVML, and to the cgroups beside it. NVML itself is the hardware that is not there."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairgpu.cluster.api import Json
from nodeagent import nvml
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import GivenDevice, Record
from nodeagent.driver_figures import DriverSample, Figure
from nodeagent.gpu_watch import KILL_AFTER_SECONDS, GpuWatch, Node
from nodeagent.ledger_slots import Registered
from nodeagent.nvml import Figures, Nvml
from nodeagent.rounds import Container
from nodeagent.schedule_page import ACTIVITY, LEDGER_DEVICES_AT, LEDGER_HEAD, LEDGER_MAGIC, LEDGER_PAGE_SIZE
from nodeagent.turns import Policy
from tests.support.descriptors import open_below

MIB = 1 << 20
OWN = os.getpid()


def container(folder: Path, slot: int, policy: Policy = Policy.HARD) -> Container:
    cgroup = folder / str(slot)
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("")
    return Container(slot, 1000 + slot, 30, policy, str(folder / "ledger"), cgroup=cgroup)


def joins(one: Container, pid: int) -> None:
    assert one.cgroup is not None
    (one.cgroup / "cgroup.procs").write_text(f"{pid}\n")


def answer(pid: int, percent: float = 0.0) -> DriverSample:
    return DriverSample(7, 100 * MIB, {pid: 100 * MIB}, {pid: percent})


def test_a_process_that_joined_its_container_while_the_driver_was_asked_counts(tmp_path: Path) -> None:
    one = container(tmp_path, 0)

    def sample() -> DriverSample:
        joins(one, OWN)
        return answer(OWN)

    driver = Figures(sample)
    driver.look((one,), {0: 100 * MIB})
    assert driver.latest[0].driver_bytes == 100 * MIB


@pytest.mark.parametrize(
    ("policy", "permille"), [(Policy.HARD, 995), (Policy.ELASTIC, 1000), (Policy.BEST_EFFORT, 1000)]
)
def test_only_who_is_held_to_a_share_is_trimmed(tmp_path: Path, policy: Policy, permille: int) -> None:
    one = container(tmp_path, 0, policy)
    joins(one, OWN)
    driver = Figures(lambda: answer(OWN, percent=99.0))
    driver.latest = {0: Figure(busy_percent=99.0)}
    driver.look((one,), {0: 100 * MIB})
    assert driver.latest[0].trim_permille == permille


def library(
    processes: list[SimpleNamespace], asked_from: list[int], graphics: list[SimpleNamespace] | None = None
) -> SimpleNamespace:
    """NVML as nvidia-ml-py has it: these processes, and a sample of utilisation at each 1,000 us.

    It lists the processes of graphics apart, and refuses where they are None.
    """

    class NVMLError(Exception):
        value = 3

    def utilisation(_: object, since_us: int) -> list[SimpleNamespace]:
        asked_from.append(since_us)
        return [SimpleNamespace(pid=OWN, timeStamp=since_us + 1000, smUtil=50)]

    def of_graphics(_: object) -> list[SimpleNamespace]:
        if graphics is None:
            raise NVMLError("Not Supported")
        return graphics

    answers: dict[str, Callable[..., object]] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: processes,
        "nvmlDeviceGetGraphicsRunningProcesses": of_graphics,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=100 * MIB),
        "nvmlDeviceGetProcessUtilization": utilisation,
    }
    return SimpleNamespace(NVMLError=NVMLError, NVML_SUCCESS=0, NVML_ERROR_NOT_FOUND=6, **answers)


def test_each_sample_of_utilisation_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_from: list[int] = []
    held = [SimpleNamespace(pid=OWN, usedGpuMemory=100 * MIB)]
    monkeypatch.setitem(sys.modules, "pynvml", library(held, asked_from))
    driver = Nvml("GPU-1", clock_ns=count(0, 10**9).__next__)
    assert [driver.sample().percent_by_pid for _ in range(3)] == [{OWN: 50.0}] * 3
    assert asked_from == [0, 1000, 2000]


def test_a_program_that_asks_for_samples_takes_no_busy_gpu_for_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML may take one sample of utilisation a second, and gives none where there is no new one."""
    clock, second_us = SimpleNamespace(ns=0), 1_000_000

    def utilisation(_: object, since_us: int) -> list[SimpleNamespace]:
        last_us = clock.ns // 1000 // second_us * second_us
        return [SimpleNamespace(pid=OWN, timeStamp=last_us, smUtil=80)] if last_us > since_us else []

    fake = library([SimpleNamespace(pid=OWN, usedGpuMemory=MIB)], [])
    fake.nvmlDeviceGetProcessUtilization = utilisation
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    driver = Nvml("GPU-1", lambda: clock.ns, lambda: clock.ns)

    def answer_at(quarter: int) -> object:
        clock.ns = quarter * second_us * 1000 // 4
        return driver.sample().percent_by_pid

    assert [answer_at(quarter) for quarter in range(4, 20)] == [{OWN: 80.0}] * 16


def test_a_sample_of_more_utilisation_than_there_is_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = library([SimpleNamespace(pid=OWN, usedGpuMemory=MIB)], [])
    samples = [SimpleNamespace(pid=OWN, timeStamp=1, smUtil=percent) for percent in (40, 4294967295, 60)]
    fake.nvmlDeviceGetProcessUtilization = lambda *_: samples
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert Nvml("GPU-1").sample().percent_by_pid == {OWN: 50.0}


@pytest.mark.parametrize(
    ("value", "found"),
    [(0, {}), (6, {}), (3, None), (4, None), (13, None), (999, None)],
    ids=["nothing to copy", "no sample", "not supported", "no permission", "no such function", "unknown"],
)
def test_a_driver_that_cannot_measure_the_time_of_processes_is_not_taken_for_an_idle_gpu(
    monkeypatch: pytest.MonkeyPatch, value: int, found: dict[int, float] | None
) -> None:
    fake = library([SimpleNamespace(pid=OWN, usedGpuMemory=MIB)], [])

    def refuse(*_: object) -> list[SimpleNamespace]:
        error = fake.NVMLError()
        error.value = value
        raise error

    fake.nvmlDeviceGetProcessUtilization = refuse
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert Nvml("GPU-1").sample().percent_by_pid == found


def test_a_clock_that_is_set_back_by_an_hour_hides_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's times are of the calendar, and its history still has the samples from before the clock was set."""
    now_us = hour_us = 3_600_000_000
    history = [SimpleNamespace(pid=OWN, timeStamp=now_us, smUtil=100)]
    fake = library([SimpleNamespace(pid=OWN, usedGpuMemory=MIB)], [])
    fake.nvmlDeviceGetProcessUtilization = lambda _, since_us: [each for each in history if each.timeStamp > since_us]
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    driver = Nvml("GPU-1", lambda: now_us * 1000, count(0, 10**9).__next__)
    assert driver.sample().percent_by_pid == {OWN: 100.0}
    now_us -= hour_us
    assert driver.sample().percent_by_pid == {}
    for percent in (30, 40):
        now_us += 1_000_000
        history.append(SimpleNamespace(pid=OWN, timeStamp=now_us, smUtil=percent))
        assert driver.sample().percent_by_pid == {OWN: percent}


def test_a_sample_without_the_memory_of_any_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library([SimpleNamespace(pid=OWN, usedGpuMemory=None)], []))
    with pytest.raises(OSError, match="the memory of no process"):
        Nvml("GPU-1").sample()


def test_a_process_whose_memory_nvml_does_not_give_is_named_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [SimpleNamespace(pid=OWN, usedGpuMemory=60 * MIB), SimpleNamespace(pid=1, usedGpuMemory=None)]
    monkeypatch.setitem(sys.modules, "pynvml", library(processes, []))
    sample = Nvml("GPU-1").sample()
    assert (sample.bytes_by_pid, sample.unmeasured) == ({OWN: 60 * MIB}, frozenset({1}))


def test_a_program_that_computes_by_vulkan_is_named_as_one_by_cuda_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML lists it among the processes of graphics alone, and a program with both kinds of context in both lists."""
    both, vulkan, hidden = 2, 3, 4
    compute = [SimpleNamespace(pid=OWN, usedGpuMemory=60 * MIB), SimpleNamespace(pid=both, usedGpuMemory=5 * MIB)]
    graphics = [
        SimpleNamespace(pid=both, usedGpuMemory=7 * MIB),
        SimpleNamespace(pid=vulkan, usedGpuMemory=9 * MIB),
        SimpleNamespace(pid=hidden, usedGpuMemory=None),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", library(compute, [], graphics))
    sample = Nvml("GPU-1").sample()
    assert sample.bytes_by_pid == {OWN: 60 * MIB, both: 7 * MIB, vulkan: 9 * MIB}
    assert sample.unmeasured == {hidden}


def test_a_display_whose_memory_nvml_does_not_give_hides_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library([], [], [SimpleNamespace(pid=2, usedGpuMemory=None)]))
    sample = Nvml("GPU-1").sample()
    assert (sample.bytes_by_pid, sample.unmeasured) == ({}, {2})


def test_a_sample_that_is_asked_for_is_taken_before_the_next_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "INTERVAL_SECONDS", 3600.0)
    taken, stop = threading.Event(), threading.Event()

    def sample() -> DriverSample:
        taken.set()
        return answer(OWN)

    driver = Figures(sample)
    driver.listed = ((container(tmp_path, 0),), {0: 0})
    watching = threading.Thread(target=driver.watch, args=(stop,))
    watching.start()
    try:
        for _ in range(2):
            driver.ask(time.monotonic_ns())
            assert taken.wait(120)
            taken.clear()
    finally:
        stop.set()
        driver.ask(time.monotonic_ns())
        watching.join()


def test_a_program_that_asked_before_the_last_sample_has_been_answered(tmp_path: Path) -> None:
    driver = Figures(lambda: answer(OWN))
    asked_ns = time.monotonic_ns()
    driver.look((container(tmp_path, 0),), {0: 0})
    driver.ask(asked_ns)
    assert not driver._wanted.is_set()
    driver.ask(time.monotonic_ns())
    assert driver._wanted.is_set()


def watched_container(folder: Path) -> tuple[GpuWatch, Path]:
    """The watch of a node with one container on two GPUs, and the container's ledger, which does not exist yet."""
    given = tuple(GivenDevice(f"GPU-{number}", 30, 1024, 0, 7) for number in range(2))
    record = Record("team", "a", "uid", "main", frozenset({"slot"}), 1, False, Policy.HARD, 1, given)
    folders = Folders(folder / "root", folder / "shim", folder / "cdi")
    folders.start(record).mkdir(parents=True)
    watch = GpuWatch(Node(lambda: [record], list, list, lambda _: answer(OWN)), folders)
    return watch, Path(folders.ledger(record))


def asks(ledger: Path, device: int, at_ns: int) -> None:
    """Writes the ledger of a program that asked at some time what is free on one of its GPUs."""
    content = bytearray(LEDGER_PAGE_SIZE)
    LEDGER_HEAD.pack_into(content, 0, LEDGER_MAGIC, 1)
    ACTIVITY.pack_into(content, LEDGER_DEVICES_AT + device * ACTIVITY.size, 0, 0, 0, 0, 0, 0, at_ns)
    ledger.write_bytes(content)


@pytest.mark.parametrize(("device", "before_look", "is_wanted"), [(0, False, True), (1, False, True), (1, True, False)])
def test_the_agent_looks_sooner_where_a_ledger_asks_for_a_newer_sample(
    tmp_path: Path, *, device: int, before_look: bool, is_wanted: bool
) -> None:
    watch, ledger = watched_container(tmp_path)
    before_ns = time.monotonic_ns()
    watch.look(0.0)
    asks(ledger, device, before_ns if before_look else time.monotonic_ns() + 1)
    assert watch.is_wanted() is is_wanted


@pytest.mark.parametrize(
    ("asks_in", "stops_in", "waits"),
    [(None, None, 4), (1, None, 1), (3, None, 3), (None, 1, 1), (None, 3, 3)],
    ids=["no program asks", "one asks at once", "one asks later", "the agent stops at once", "the agent stops later"],
)
def test_a_program_that_asks_waits_for_a_quarter_of_a_second_at_most_and_else_a_second_passes(
    tmp_path: Path, asks_in: int | None, stops_in: int | None, waits: int
) -> None:
    watch, ledger = watched_container(tmp_path)
    watch.look(0.0)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == asks_in:
            asks(ledger, 0, time.monotonic_ns())
        return len(waited) == stops_in

    assert watch.stops_before_the_next_look(wait) is (stops_in is not None)
    assert waited == [0.25] * waits


UID, CONTAINER_ID = "01234567-89ab-cdef-0123-456789abcdef", "c" * 64


def with_status(container: str) -> Json:
    """The pod whose status names that container."""
    status = {"name": container, "containerID": f"containerd://{CONTAINER_ID}"}
    return {"metadata": {"uid": UID}, "status": {"containerStatuses": [status]}}


def watched_process(folder: Path, node: Node) -> GpuWatch:
    """The watch of a node on which process 300 is in the pod's container."""
    process = folder / "proc" / "300"
    process.mkdir(parents=True)
    (process / "stat").write_text(f"300 (python) S {' '.join(map(str, range(4, 22)))} 50 0\n")
    (process / "status").write_text("NSpid:\t300\t1\n")
    (process / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER_ID}\n")
    return GpuWatch(node, Folders(folder / "root", folder / "shim", folder / "cdi"), folder / "proc")


def test_a_process_of_a_container_whose_record_cannot_be_read_is_neither_reported_nor_ended(tmp_path: Path) -> None:
    pods: list[Json] = []
    unread = [(UID, "main")]
    node = Node(list, lambda: pods, lambda: ["GPU-0"], lambda _: answer(300), lambda: unread)
    watch = watched_process(tmp_path, node)
    watch.look(0.0)
    watch.look(KILL_AFTER_SECONDS)
    assert (watch.reportable(), watch.overdue()) == ([], []), "its container's name is not known yet"
    pods.append(with_status("main"))
    for at_seconds in (1.0, 2.0):
        watch.look(at_seconds * KILL_AFTER_SECONDS)
        assert (watch.reportable(), watch.overdue()) == ([], [])
    unread.clear()
    for at_seconds in (3.0, 4.0):
        watch.look(at_seconds * KILL_AFTER_SECONDS)
    assert [process.pid for process in watch.overdue()] == [300], "the container has no piece of the GPU"


def test_a_process_is_reported_by_its_containers_name_which_the_status_may_state_later(tmp_path: Path) -> None:
    pods: list[Json] = []
    watch = watched_process(tmp_path, Node(list, lambda: pods, lambda: ["GPU-0"], lambda _: answer(300)))
    watch.look(0.0)
    assert watch.reportable() == []
    pods.append(with_status("main"))
    watch.look(1.0)
    assert [(gpu, each.container) for gpu, each in watch.reportable()] == [("GPU-0", "main")]
    pods.clear()
    watch.look(KILL_AFTER_SECONDS)
    assert [each.container for _, each in watch.reportable()] == [""]
    assert [process.pid for process in watch.overdue()] == [300], "it is reported by the time that it is ended"


def test_a_look_names_the_gpus_whose_time_the_driver_measures(tmp_path: Path) -> None:
    def sample(gpu: str) -> DriverSample:
        if gpu == "GPU-silent":
            raise OSError("NVML: Unknown Error")
        return DriverSample(7, 100 * MIB, {300: 100 * MIB}, None if gpu == "GPU-unmeasured" else {})

    device = (GivenDevice("GPU-unmeasured", 100, 1024, 0, 7),)
    record = Record("team", "train", UID, "main", frozenset({"slot"}), 1, True, Policy.HARD, 1, device)
    uuids = ["GPU-silent", "GPU-unmeasured", "GPU-idle"]
    node = Node(lambda: [record], lambda: [with_status("main")], lambda: uuids, sample)
    seen = watched_process(tmp_path, node).look(0.0)
    assert set(seen.timed) == {"GPU-idle"}
    assert seen.figures[UID, "main", "GPU-unmeasured"].driver_bytes == 100 * MIB


def test_a_gpu_that_is_offered_no_more_is_measured_as_long_as_a_container_holds_it(tmp_path: Path) -> None:
    device = (GivenDevice("GPU-0", 100, 1024, 0, 7),)
    record = Record("team", "train", UID, "main", frozenset({"slot"}), 1, True, Policy.HARD, 1, device)
    node = Node(lambda: [record], lambda: [with_status("main")], list, lambda _: answer(300, percent=80.0))
    seen = watched_process(tmp_path, node).look(0.0)
    assert seen.busy_percent == {(UID, "main", "GPU-0"): 80.0}
    assert set(seen.timed) == {"GPU-0"}


def test_the_use_of_a_whole_gpu_is_not_known_while_the_containers_of_its_processes_are_not(tmp_path: Path) -> None:
    """The agent learns a restarted container's name from the API server, which may be away for an hour."""
    device = (GivenDevice("GPU-0", 100, 1024, 0, 7),)
    record = Record("team", "train", UID, "main", frozenset({"slot"}), 1, True, Policy.HARD, 1, device)
    pods: list[Json] = []
    watch = watched_process(tmp_path, Node(lambda: [record], lambda: pods, list, lambda _: answer(300, percent=80.0)))
    assert set(watch.look(0.0).timed) == set()
    pods.append(with_status("main"))
    assert set(watch.look(1.0).timed) == {"GPU-0"}


def test_a_process_on_two_gpus_is_one_process_of_its_container(tmp_path: Path) -> None:
    devices = tuple(GivenDevice(f"GPU-{number}", 100, 1024, 0, 7) for number in range(2))
    record = Record("team", "train", UID, "main", frozenset({"slot"}), 1, True, Policy.HARD, 1, devices)
    node = Node(lambda: [record], lambda: [with_status("main")], list, lambda _: answer(300))
    assert watched_process(tmp_path, node).look(0.0).processes == {(UID, "main"): 1}


def test_the_agent_keeps_no_ledger_open_of_a_container_that_has_ended(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "root", tmp_path / "shim", tmp_path / "cdi")
    device = (GivenDevice("GPU-0", 30, 1024, 0, 7),)
    records = [
        Record("team", name, f"uid-{name}", "main", frozenset({name}), 1, False, Policy.HARD, 1, device)
        for name in "ab"
    ]
    for record in records:
        folders.start(record).mkdir(parents=True)
        Path(folders.ledger(record)).write_bytes(bytes(LEDGER_PAGE_SIZE))
    watch = GpuWatch(Node(lambda: list(records), list, lambda: ["GPU-0"], lambda _: answer(OWN)), folders)
    watch.look(0.0)
    assert not watch.is_wanted()
    assert open_below(tmp_path, "ledger") == ["ledger", "ledger"]
    del records[0]
    watch.look(1.0)
    assert open_below(tmp_path, "ledger") == ["ledger"]
    records.clear()
    watch.look(2.0)
    assert open_below(tmp_path, "ledger") == []


def test_a_containers_ledger_is_read_once_a_look_however_many_processes_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading takes a millisecond where the container has filled its ledger."""
    device = (GivenDevice("GPU-0", 30, 1024, 0, 7),)
    record = Record("team", "train", UID, "main", frozenset({"slot"}), 1, False, Policy.HARD, 1, device)
    sample = DriverSample(7, 100 * MIB, {300: 50 * MIB, 301: 50 * MIB})
    node = Node(lambda: [record], lambda: [with_status("main")], lambda: ["GPU-0"], lambda _: sample)
    watch = watched_process(tmp_path, node)
    shutil.copytree(tmp_path / "proc" / "300", tmp_path / "proc" / "301")
    read: list[str] = []

    def registered(ledger: str) -> Registered:
        read.append(ledger)
        return Registered()

    monkeypatch.setattr("nodeagent.gpu_watch.registered", registered)
    for _ in range(2):
        assert len(watch.look(0.0).strays) == 2
    assert len(read) == 2
