"""NVIDIA's GPUs as the agent sees them; NVML itself is the hardware that is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairgpu.inventory import Health, Link
from nodeagent.vendors.nvidia import Nvidia

MIB = 1 << 20


class NVMLError(Exception):
    pass


class TimedOutError(NVMLError):
    pass


class Driver:
    """A driver of two GPUs, of which a test can break one."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.mig: set[int] = set()
        self.ecc = 0
        self.remap_failed = False
        self.xids: list[int] = []

    def handle(self, index: int) -> int:
        if index in self.lost:
            raise NVMLError("GPU is lost")
        return index

    def wait(self, _events: object, _milliseconds: int) -> SimpleNamespace:
        if not self.xids:
            raise TimedOutError
        return SimpleNamespace(device=1, eventType=8, eventData=self.xids.pop(0))

    def library(self) -> SimpleNamespace:
        memory = SimpleNamespace(total=1000 * MIB, reserved=10 * MIB)
        return SimpleNamespace(
            NVMLError=NVMLError,
            NVMLError_Timeout=TimedOutError,
            NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
            NVML_VOLATILE_ECC=0,
            NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
            nvmlMemory_v2=2,
            nvmlEventTypeXidCriticalError=8,
            nvmlEventTypeDoubleBitEccError=2,
            nvmlInit=lambda: None,
            nvmlDeviceGetCount=lambda: 2,
            nvmlSystemGetDriverVersion=lambda: "580.1",
            nvmlDeviceGetHandleByIndex=self.handle,
            nvmlDeviceGetMemoryInfo=lambda _handle, **_version: memory,
            nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
            nvmlDeviceGetMinorNumber=lambda handle: handle,
            nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
            nvmlDeviceGetName=lambda _handle: "NVIDIA A100",
            nvmlDeviceGetMigMode=lambda handle: [int(handle in self.mig), 0],
            nvmlDeviceGetMPSComputeRunningProcesses=lambda _handle: [],
            nvmlDeviceGetNvLinkState=lambda _handle, link: link == 1,
            nvmlDeviceGetNvLinkRemoteDeviceType=lambda _handle, _link: 0,
            nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, _link: SimpleNamespace(busId=f"0000:0{1 - handle}:00.0"),
            nvmlDeviceGetTopologyCommonAncestor=lambda _one, _two: 50,
            nvmlDeviceGetRemappedRows=lambda handle: [0, 0, 0, int(self.remap_failed and handle == 1)],
            nvmlDeviceGetTotalEccErrors=lambda handle, _kind, _counter: self.ecc if handle == 1 else 0,
            nvmlEventSetCreate=object,
            nvmlDeviceRegisterEvents=lambda *_: None,
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
    for number, node in enumerate("01"):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
        (tmp_path / f"0000:0{number}:00.0" / "numa_node").write_text(node)
    return Nvidia([tmp_path], recover_seconds=60, pci_devices=tmp_path, clock=clock)


def health(gpus: Nvidia) -> dict[str, str]:
    return {device.uuid: device.why for device in gpus.offer().inventory.devices if device.health is Health.FENCED}


def test_gpus_are_offered_with_what_nvml_and_the_kernel_say_of_them(gpus: Nvidia) -> None:
    offer = gpus.offer()
    first, second = offer.inventory.devices
    assert (first.uuid, first.model, first.memory_mib, first.numa) == ("GPU-0", "NVIDIA A100", 990, 0)
    assert (second.numa, second.pci) == (1, "00000000:01:00.0")
    assert offer.inventory.links == ((Link.SELF, Link.NVLINK), (Link.NVLINK, Link.SELF))
    assert offer.inventory.driver == "580.1"


def test_a_gpu_in_mig_mode_is_withheld(gpus: Nvidia, driver: Driver) -> None:
    driver.mig = {1}
    offer = gpus.offer()
    assert [device.uuid for device in offer.inventory.devices] == ["GPU-0"]
    assert "MIG mode" in offer.withheld["GPU-1"]


def test_a_gpu_that_is_lost_is_fenced_and_the_others_stay(gpus: Nvidia, driver: Driver, clock: Clock) -> None:
    gpus.offer()
    driver.lost = {1}
    assert health(gpus) == {"GPU-1": "it does not answer: GPU is lost"}
    driver.lost = set()
    assert list(health(gpus)) == ["GPU-1"]
    clock.now += 60
    assert health(gpus) == {}


def test_a_gpu_that_was_lost_before_the_agent_came_is_not_offered(gpus: Nvidia, driver: Driver) -> None:
    driver.lost = {0}
    assert [device.uuid for device in gpus.offer().inventory.devices] == ["GPU-1"]


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_xid_that_a_program_causes_fences_nothing(gpus: Nvidia, driver: Driver, xid: int) -> None:
    driver.xids = [xid]
    gpus.watch(lambda: bool(driver.xids), lambda: None)
    assert health(gpus) == {}


def test_any_other_xid_fences_its_gpu_at_once(gpus: Nvidia, driver: Driver) -> None:
    driver.xids = [43, 79]
    changes: list[dict[str, str]] = []
    gpus.watch(lambda: bool(driver.xids), lambda: changes.append(health(gpus)))
    assert changes == [{}, {"GPU-1": "Xid 79"}]


def test_double_bit_errors_from_before_the_agent_fence_nothing_and_new_ones_do(gpus: Nvidia, driver: Driver) -> None:
    driver.ecc = 3
    assert health(gpus) == {}
    driver.ecc = 4
    assert health(gpus) == {"GPU-1": "a double-bit ECC error"}


def test_a_gpu_that_could_not_remap_a_row_stays_fenced(gpus: Nvidia, driver: Driver, clock: Clock) -> None:
    driver.remap_failed = True
    for _ in range(2):
        clock.now += 100
        assert list(health(gpus)) == ["GPU-1"]


def test_a_driver_without_nvml_is_an_error_that_says_so(gpus: Nvidia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", fail)
    with pytest.raises(OSError, match="NVML: Driver Not Loaded"):
        gpus.offer()
