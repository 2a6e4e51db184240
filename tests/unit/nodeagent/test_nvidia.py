"""NVIDIA's GPUs as the agent sees them; NVML itself is the hardware that is not there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairgpu.inventory import Health, Link
from nodeagent.driver_figures import DriverSample
from nodeagent.faults import Faults
from nodeagent.offer import DriverReplacedError
from nodeagent.vendors.nvidia import REGISTER_SECONDS, Nvidia

MIB = 1 << 20


OF_ONE_GPU = "nvmlDevice"
"""The beginning of the names of calls that are about one GPU or two."""


class NVMLError(Exception):
    pass


class TimedOutError(NVMLError):
    pass


class MismatchError(NVMLError):
    pass


class NotLoadedError(NVMLError):
    pass


class Driver:
    """A driver of two GPUs, of which a test can break one."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.mig: set[int] = set()
        self.compute_mode = 0
        """The second GPU's compute mode (nvmlComputeMode_t)."""
        self.mps: list[object] = []
        """The clients of MPS on the second GPU."""
        self.affinity: dict[int, tuple[int, ...]] = {}
        """The masks of the NUMA nodes that NVML names for a GPU."""
        self.ecc = 0
        self.remap_failed = False
        self.xids: list[int] = []
        self.followed: set[int] = set()
        """The GPUs of which events are reported."""
        self.has_ecc = True
        """The second GPU reports events of ECC; False for a GPU without ECC, of which NVML has none."""
        self.event_sets = 0
        self.wait_fails = False
        self.gpus = [0, 1]
        """The GPUs in the order in which NVML counts them."""
        self.minors = {0: 0, 1: 1}
        self.replaced = False
        """Whether a driver of another version has been loaded, for which the library that is open is too old."""
        self.loaded = True
        self.last_call = ""
        """The call at which the second GPU is lost."""

    def handle(self, index: int) -> int:
        if index >= len(self.gpus):
            raise NVMLError("Invalid Argument")
        if self.gpus[index] in self.lost:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def init(self) -> None:
        if not self.loaded:
            raise NotLoadedError("Driver Not Loaded")
        if self.replaced:
            raise MismatchError("Driver/library version mismatch")

    def count(self) -> int:
        if self.replaced:
            raise NVMLError("Unknown Error")
        return len(self.gpus)

    def memory_affinity(self, handle: int, masks: int, _scope: int) -> tuple[int, ...]:
        if handle not in self.affinity:
            raise NVMLError("Not Supported")
        return (*self.affinity[handle], *(0,) * masks)[:masks]

    def wait(self, _events: object, _milliseconds: int) -> SimpleNamespace:
        if self.wait_fails:
            raise NVMLError("GPU is lost")
        if not self.xids or 1 not in self.followed:
            raise TimedOutError
        return SimpleNamespace(device=1, eventType=8, eventData=self.xids.pop(0))

    def event_kinds(self, handle: int) -> int:
        """NVML's events of a GPU: 8 for those of Xid errors, 2 for those of double-bit errors, and others."""
        return 8 + 2 * (self.has_ecc or handle != 1) + 64

    def register(self, handle: int, kinds: int, _events: object) -> None:
        if kinds & ~self.event_kinds(handle):
            raise NVMLError("Not Supported")
        self.followed.add(handle)

    def make_event_set(self) -> object:
        self.event_sets += 1
        return object()

    def free_event_set(self, _events: object) -> None:
        self.event_sets -= 1
        self.followed.clear()

    def losing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if name == self.last_call and 1 in arguments:
                raise NVMLError("GPU is lost")
            return call(*arguments, **named)

        return called

    def library(self) -> SimpleNamespace:
        calls = vars(self.calls())
        return SimpleNamespace(
            **{name: self.losing(name, call) if name.startswith(OF_ONE_GPU) else call for name, call in calls.items()}
        )

    def calls(self) -> SimpleNamespace:
        memory = SimpleNamespace(total=1000 * MIB, reserved=10 * MIB)
        return SimpleNamespace(
            NVMLError=NVMLError,
            NVMLError_Timeout=TimedOutError,
            NVMLError_LibRmVersionMismatch=MismatchError,
            NVMLError_DriverNotLoaded=NotLoadedError,
            NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
            NVML_VOLATILE_ECC=0,
            NVML_AFFINITY_SCOPE_NODE=0,
            NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
            nvmlMemory_v2=2,
            nvmlEventTypeXidCriticalError=8,
            nvmlEventTypeDoubleBitEccError=2,
            nvmlInit=self.init,
            nvmlDeviceGetCount=self.count,
            nvmlSystemGetDriverVersion=lambda: "580.1",
            nvmlDeviceGetHandleByIndex=self.handle,
            nvmlDeviceGetMemoryInfo=lambda _handle, **_version: memory,
            nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
            nvmlDeviceGetMinorNumber=lambda handle: self.minors[handle],
            nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
            nvmlDeviceGetMemoryAffinity=self.memory_affinity,
            nvmlDeviceGetName=lambda _handle: "NVIDIA A100",
            nvmlDeviceGetMigMode=lambda handle: [int(handle in self.mig), 0],
            nvmlDeviceGetMPSComputeRunningProcesses=lambda handle: self.mps if handle == 1 else [],
            nvmlDeviceGetComputeMode=lambda handle: self.compute_mode if handle == 1 else 0,
            NVML_COMPUTEMODE_DEFAULT=0,
            nvmlDeviceGetNvLinkState=lambda _handle, link: link == 1,
            nvmlDeviceGetNvLinkRemoteDeviceType=lambda _handle, _link: 0,
            nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, _link: SimpleNamespace(busId=f"0000:0{1 - handle}:00.0"),
            nvmlDeviceGetTopologyCommonAncestor=lambda _one, _two: 50,
            nvmlDeviceGetRemappedRows=lambda handle: [0, 0, 0, int(self.remap_failed and handle == 1)],
            nvmlDeviceGetTotalEccErrors=lambda handle, _kind, _counter: self.ecc if handle == 1 else 0,
            nvmlEventSetCreate=self.make_event_set,
            nvmlEventSetFree=self.free_event_set,
            nvmlDeviceGetSupportedEventTypes=self.event_kinds,
            nvmlDeviceRegisterEvents=self.register,
            nvmlEventSetWait_v2=self.wait,
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver.library())
    return driver


class Clock:
    """Seconds that a test moves on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpus(driver: Driver, clock: Clock, tmp_path: Path) -> Nvidia:
    assert driver.lost == set()
    devices: list[dict[str, Any]] = [{"name": f"GPU-{number}", "containerEdits": {}} for number in range(2)]
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (tmp_path / "nvidia.yaml").write_text(json.dumps(spec))  # JSON is YAML
    (tmp_path / "other.json").write_text("{")
    for file in tmp_path.iterdir():
        os.utime(file, (0, 0))  # as files that are not being written
    for number, node in enumerate("01"):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0" / "numa_node").write_text(node)
    (tmp_path / "refused").write_text("")
    return agents_gpus(tmp_path, clock)


def agents_gpus(folder: Path, clock: Clock) -> Nvidia:
    """The GPUs as an agent that has just started sees them."""
    return Nvidia(Faults(folder / "run" / "faults.json"), [folder], 60, folder, clock, (folder / "refused").read_text)


def health(gpus: Nvidia) -> dict[str, str]:
    return {device.uuid: device.why for device in gpus.offer().inventory.devices if device.health is Health.FENCED}


def test_gpus_are_offered_with_what_nvml_and_the_kernel_say_of_them(gpus: Nvidia) -> None:
    offer = gpus.offer()
    first, second = offer.inventory.devices
    assert (first.uuid, first.model, first.memory_mib, first.numa) == ("GPU-0", "NVIDIA A100", 990, 0)
    assert (second.numa, second.pci) == (1, "00000000:01:00.0")
    assert offer.inventory.links == ((Link.SELF, Link.NVLINK), (Link.NVLINK, Link.SELF))
    assert offer.inventory.driver == "580.1"


@pytest.mark.parametrize(
    ("masks", "node"),
    [((1 << 3,), 3), ((0, 1 << 1), 65), ((0,), 1), ((0b11,), 1)],
    ids=["one", "high", "none", "several"],
)
def test_the_numa_node_is_nvmls_where_it_names_one_and_else_the_kernels(
    gpus: Nvidia, driver: Driver, masks: tuple[int, ...], node: int
) -> None:
    driver.affinity = {1: masks}
    assert [device.numa for device in gpus.offer().inventory.devices] == [0, node]


def test_a_gpu_in_mig_mode_is_withheld(gpus: Nvidia, driver: Driver) -> None:
    driver.mig = {1}
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0"]
    assert "MIG mode" in offer.withheld["GPU-1"]


def test_a_gpu_with_a_client_of_mps_is_withheld(gpus: Nvidia, driver: Driver) -> None:
    driver.mps = [SimpleNamespace(pid=4711)]
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0"]
    assert "MPS" in offer.withheld["GPU-1"]


def test_every_gpu_may_be_withheld_for_what_runs_on_the_node(gpus: Nvidia, tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("a daemon of MPS runs")
    offer = gpus.offer()
    assert offer.inventory.devices == ()
    assert offer.withheld == dict.fromkeys(("GPU-0", "GPU-1"), "a daemon of MPS runs")
    (tmp_path / "refused").write_text("")
    assert [device.uuid for device in gpus.offer().inventory.devices] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("mode", [1, 2, 3], ids=["one thread", "none", "one process, as for MPS"])
def test_a_gpu_that_lets_no_two_processes_work_is_withheld_and_the_reason_says_what_to_do(
    gpus: Nvidia, driver: Driver, mode: int
) -> None:
    driver.compute_mode = mode
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0"]
    assert "nvidia-smi -c DEFAULT" in offer.withheld["GPU-1"]


def test_a_gpu_that_is_lost_is_fenced_and_the_others_stay(gpus: Nvidia, driver: Driver, clock: Clock) -> None:
    gpus.offer()
    driver.lost = {1}
    assert health(gpus) == {"GPU-1": "it does not answer: GPU is lost"}
    driver.lost = set()
    assert list(health(gpus)) == ["GPU-1"]
    clock.now += 60
    assert health(gpus) == {}


def test_a_gpu_that_nvml_no_longer_counts_is_fenced_and_the_one_in_its_place_is_not(
    gpus: Nvidia, driver: Driver
) -> None:
    gpus.offer()
    driver.gpus = [1]
    assert health(gpus) == {"GPU-0": "NVML no longer names it"}
    assert sorted(device.uuid for device in gpus.offer().inventory.devices) == ["GPU-0", "GPU-1"]


def test_a_gpu_that_comes_back_with_other_numbers_gets_the_device_node_of_now(
    gpus: Nvidia, driver: Driver, clock: Clock, tmp_path: Path
) -> None:
    devices = [
        {"name": str(number), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
        for number in range(3)
    ]
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (tmp_path / "nvidia.yaml").write_text(json.dumps(spec))
    os.utime(tmp_path / "nvidia.yaml", (0, 0))
    assert nodes(gpus) == {"GPU-0": "/dev/nvidia0", "GPU-1": "/dev/nvidia1"}
    driver.gpus = [1]
    gpus.offer()
    driver.gpus, driver.minors = [1, 0], {1: 0, 0: 1}
    clock.now += 60
    assert (health(gpus), nodes(gpus)) == ({}, {"GPU-0": "/dev/nvidia1", "GPU-1": "/dev/nvidia0"})


def test_a_driver_that_was_replaced_under_the_agent_takes_another_process(gpus: Nvidia, driver: Driver) -> None:
    gpus.offer()
    driver.replaced = True
    with pytest.raises(OSError, match="NVML: Unknown Error"):
        gpus.offer()
    with pytest.raises(DriverReplacedError, match="Driver/library version mismatch"):
        gpus.offer()


def test_a_driver_that_never_fitted_its_library_is_silent(gpus: Nvidia, driver: Driver) -> None:
    driver.replaced = True
    for _ in range(2):
        with pytest.raises(OSError, match="Driver/library version mismatch") as raised:
            gpus.offer()
        assert not isinstance(raised.value, DriverReplacedError), "another process would find the same"


def test_a_gpu_that_failed_is_sampled_by_a_new_handle(gpus: Nvidia, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle that NVML gave for a GPU before it was lost may be of no use once it is back."""
    good = DriverSample(1, 0, {})
    handles: list[Handle] = []

    class Handle:
        def __init__(self, uuid: str) -> None:
            self.uuid, self.answers = uuid, True
            handles.append(self)

        def sample(self) -> DriverSample:
            if not self.answers:
                raise OSError("NVML: GPU is lost")
            return good

    monkeypatch.setattr("nodeagent.vendors.nvidia.Nvml", Handle)
    assert [gpus.sample("GPU-0") for _ in range(2)] == [good, good]
    handles[0].answers = False
    with pytest.raises(OSError, match="GPU is lost"):
        gpus.sample("GPU-0")
    assert gpus.sample("GPU-0") == good
    assert [handle.uuid for handle in handles] == ["GPU-0", "GPU-0"]


def nodes(gpus: Nvidia) -> dict[str, str]:
    """The device node that a container of each GPU gets."""
    return {uuid: edits["deviceNodes"][0]["path"] for uuid, (_, edits) in gpus.offer().edits.items()}


ESSENTIAL = ("HandleByIndex", "MemoryInfo", "PciInfo", "MinorNumber", "UUID", "Name")
CALLS = sorted(name for name in vars(Driver().calls()) if name.startswith("nvmlDeviceGet"))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "nvmlDeviceGetCount"])
def test_a_gpu_that_is_lost_between_two_calls_takes_no_other_with_it(gpus: Nvidia, driver: Driver, name: str) -> None:
    before = gpus.offer()
    driver.last_call = name
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0", "GPU-1"]
    assert offer.devices["GPU-0"] == before.devices["GPU-0"]
    is_essential = name.removeprefix("nvmlDeviceGet") in ESSENTIAL
    assert offer.devices["GPU-1"].health is (Health.FENCED if is_essential else Health.OK)


def test_a_gpu_that_was_lost_before_the_agent_came_is_not_offered(gpus: Nvidia, driver: Driver) -> None:
    driver.lost = {0}
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-1"]
    assert offer.withheld == {"number 0": "it does not answer: GPU is lost"}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_xid_that_a_program_causes_fences_nothing(gpus: Nvidia, driver: Driver, xid: int) -> None:
    driver.xids = [xid]
    looks: list[None] = []
    gpus.watch(lambda: bool(driver.xids), lambda: looks.append(None))
    assert (health(gpus), looks) == ({}, []), "a program that fails again and again causes no look each time"


def test_any_other_xid_fences_its_gpu_at_once(gpus: Nvidia, driver: Driver) -> None:
    driver.xids = [43, 79]
    changes: list[dict[str, str]] = []
    gpus.watch(lambda: bool(driver.xids), lambda: changes.append(health(gpus)))
    assert changes == [{"GPU-1": "Xid 79"}]


def test_an_xid_fences_a_gpu_without_ecc_too(gpus: Nvidia, driver: Driver) -> None:
    """NVML refuses to report any event of a GPU if one of those that are asked for is not supported there."""
    driver.has_ecc = False
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert health(gpus) == {"GPU-1": "Xid 79"}


def test_a_gpu_that_is_lost_hides_no_fault_of_the_others(gpus: Nvidia, driver: Driver) -> None:
    driver.lost = {0}
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert health(gpus) == {"GPU-1": "Xid 79"}


def test_a_gpu_that_comes_back_is_followed_again(gpus: Nvidia, driver: Driver, clock: Clock) -> None:
    driver.lost = {1}
    driver.xids = [79]

    def goes_on() -> bool:
        if driver.followed == {0}:
            driver.lost = set()
            clock.now += REGISTER_SECONDS
        return bool(driver.xids)

    gpus.watch(goes_on, lambda: None)
    assert list(health(gpus)) == ["GPU-1"]


def test_a_driver_that_reports_no_faults_of_any_gpu_says_so(gpus: Nvidia, driver: Driver) -> None:
    driver.lost = {0, 1}
    with pytest.raises(OSError, match="NVML: GPU is lost"):
        gpus.watch(lambda: True, lambda: None)


def test_nothing_of_a_watch_stays_in_the_driver(gpus: Nvidia, driver: Driver) -> None:
    gpus.watch(iter([True, False]).__next__, lambda: None)
    driver.wait_fails = True
    with pytest.raises(OSError, match="NVML: GPU is lost"):
        gpus.watch(lambda: True, lambda: None)
    assert driver.event_sets == 0


def test_double_bit_errors_from_before_the_agent_fence_nothing_and_new_ones_do(gpus: Nvidia, driver: Driver) -> None:
    driver.ecc = 3
    assert health(gpus) == {}
    driver.ecc = 4
    assert health(gpus) == {"GPU-1": "a double-bit ECC error"}


def test_a_fault_outlives_the_agent_until_the_gpu_has_recovered(
    gpus: Nvidia, driver: Driver, clock: Clock, tmp_path: Path
) -> None:
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    clock.now += 59
    again = agents_gpus(tmp_path, clock)
    assert health(again) == {"GPU-1": "Xid 79"}
    clock.now += 1
    assert health(again) == {}


def test_a_double_bit_error_while_no_agent_ran_fences_its_gpu(
    gpus: Nvidia, driver: Driver, clock: Clock, tmp_path: Path
) -> None:
    assert health(gpus) == {}
    driver.ecc = 1
    assert health(agents_gpus(tmp_path, clock)) == {"GPU-1": "a double-bit ECC error"}


def test_an_admin_who_removes_the_file_of_faults_has_the_gpus_offered_again(
    gpus: Nvidia, driver: Driver, tmp_path: Path
) -> None:
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert list(health(gpus)) == ["GPU-1"]
    (tmp_path / "run" / "faults.json").unlink()
    assert health(gpus) == {}
    driver.lost = {1}
    assert list(health(gpus)) == ["GPU-1"], "one that still fails is fenced again"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"faults": 1}',
        '{"faults": {"GPU-1": {}}, "doubleBitErrors": {}}',
        '{"faults": {"GPU-1": {"why": "Xid 79", "atSeconds": 1.0}}, "doubleBitErrors": {"GPU-1": 1e999}}',
    ],
)
def test_a_file_of_faults_that_is_damaged_counts_as_none(
    gpus: Nvidia, driver: Driver, tmp_path: Path, content: str
) -> None:
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert list(health(gpus)) == ["GPU-1"]
    (tmp_path / "run" / "faults.json").write_text(content)
    assert health(gpus) == {}


def test_a_gpu_stays_fenced_while_the_host_cannot_read_the_file_of_faults(
    gpus: Nvidia, driver: Driver, tmp_path: Path
) -> None:
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    file = tmp_path / "run" / "faults.json"
    kept = file.read_bytes()
    file.unlink()
    file.mkdir()
    assert list(health(gpus)) == ["GPU-1"]
    file.rmdir()
    file.write_bytes(kept)
    assert list(health(gpus)) == ["GPU-1"]


def test_a_fault_that_the_host_has_no_room_for_is_kept_and_written_later(
    gpus: Nvidia, driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("in place of the folder")
    driver.xids = [79]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert list(health(gpus)) == ["GPU-1"]
    (tmp_path / "run").unlink()
    assert list(health(gpus)) == ["GPU-1"]
    assert "Xid 79" in (tmp_path / "run" / "faults.json").read_text()


def test_a_gpu_that_could_not_remap_a_row_stays_fenced(gpus: Nvidia, driver: Driver, clock: Clock) -> None:
    driver.remap_failed = True
    for _ in range(2):
        clock.now += 100
        assert list(health(gpus)) == ["GPU-1"]


def test_a_driver_that_another_version_replaces_before_it_is_loaded_takes_another_process(
    gpus: Nvidia, driver: Driver
) -> None:
    driver.loaded = False  # as in an upgrade, which no agent survives that has opened NVML
    with pytest.raises(OSError, match="Driver Not Loaded"):
        gpus.offer()
    driver.loaded, driver.replaced = True, True
    with pytest.raises(DriverReplacedError, match="version mismatch"):
        gpus.offer()


def test_a_driver_without_nvml_is_an_error_that_says_so(gpus: Nvidia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", fail)
    with pytest.raises(OSError, match="NVML: Driver Not Loaded"):
        gpus.offer()
