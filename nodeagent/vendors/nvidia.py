"""Reads NVIDIA's GPUs through NVML and from the CDI specs of NVIDIA's container toolkit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from fairgpu.inventory import MAX_SLOTS, Device, Inventory, Link
from nodeagent.containers.cdi_spec import VendorSpecError, vendor_edits
from nodeagent.driver_figures import DriverSample
from nodeagent.faults import Faults
from nodeagent.nvml import Nvml
from nodeagent.offer import DriverReplacedError, Edits, Fault, Offer, fenced, xid_fault
from nodeagent.vendors.spec_files import Reading, SpecFiles

VENDOR = "nvidia"
KIND = "nvidia.com/gpu"
SPEC_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
PCI_DEVICES = Path("/sys/bus/pci/devices")
MIB = 1 << 20
EVENT_MILLISECONDS = 1000
REGISTER_SECONDS = 30.0
"""The time after which NVML is asked once more for the events of a GPU that it refused."""
MASKS, MASK_BITS = 16, 64
"""The number and the width of the masks in which NVML names NUMA nodes, one bit a node: as many nodes as Linux has at
most."""
MOST_LINKS = 18
"""The most NVLinks of one GPU (NVML's NVML_NVLINK_MAX_LINKS)."""
MPS = b"nvidia-cuda-mps"
"""The name of the programs nvidia-cuda-mps-control and nvidia-cuda-mps-server, as the kernel cuts it."""
TIERS = ((10, Link.ONE_SWITCH), (20, Link.SWITCHES), (40, Link.NODE))
"""Pairs of a topology level of NVML (nvmlGpuTopologyLevel_t) and a link. Two GPUs have the link of the first pair whose
level is not below theirs."""


@dataclass(frozen=True)
class Found:
    """A GPU as NVML describes it.

    Attributes:
        index: the GPU's index in NVML.
        minor: the minor number of its device node.
        uuid: its uuid.
        model: its model's name.
        memory_mib: its memory less the driver's reserve, in MiB.
        pci: its PCI address.
        numa: its NUMA node; None if neither NVML nor the kernel names one.
        refused: the reason why it cannot be shared; empty if it can.
    """

    index: int
    minor: int
    uuid: str
    model: str
    memory_mib: int
    pci: str
    numa: int | None
    refused: str = ""


class Nvidia:
    """The NVIDIA GPUs of this machine. NVML is opened at the first use, and again after a failure."""

    def __init__(
        self,
        faults: Faults,
        folders: Sequence[Path] = SPEC_FOLDERS,
        recover_seconds: float = 600.0,
        pci_devices: Path = PCI_DEVICES,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[], str] = lambda: "",
    ) -> None:
        """Begins without knowing a GPU.

        Args:
            faults: stores the faults of the GPUs.
            folders: the folders of the CDI specs of NVIDIA's toolkit.
            recover_seconds: for how many seconds a GPU is fenced after a fault.
            pci_devices: the folder in which the kernel lists PCI devices.
            clock: returns seconds of a monotonic clock.
            refused: returns which program on the node keeps all GPUs from being shared, as a reason for people; empty
                if none does.
        """
        self._specs = SpecFiles(folders, KIND)
        self._recover_seconds = recover_seconds
        self._pci_devices = pci_devices
        self._clock = clock
        self._refused = refused
        self._opened: Any = None
        self._had_library = False
        """Whether an earlier try loaded NVML's library, and found no driver of another version."""
        self._known: dict[str, Found] = {}
        self._faults = faults
        self._samplers: dict[str, Nvml] = {}

    def offer(self) -> Offer:
        """Reads the GPUs and the CDI specs of NVIDIA's toolkit; returns the GPUs to offer and those to withhold.

        A GPU that has answered before and no longer does is offered as fenced: its containers go on, and no other
        starts there. A GPU that has not answered since the agent started is withheld.

        Raises:
            OSError: NVML does not answer; the message contains NVML's.
            DriverReplacedError: the driver was replaced since this process loaded NVML's library, which is of another
                version.
        """
        nvml = self._library()
        try:
            count = int(nvml.nvmlDeviceGetCount())
            driver = str(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError as error:
            self._opened = None
            raise OSError(f"NVML: {error}") from error
        handles, unknown = self._read_devices(nvml, count)
        tiers = {
            (one, two): _link(nvml, handles[one], handles[two], self._known[two].pci)
            for one, two in combinations(handles, 2)
        }
        found_now = sorted(self._known.values(), key=lambda found: (found.index, found.uuid))
        offer = offered(driver, found_now, tiers, self._specs.read(), self._refused())
        now, faults = self._clock(), self._faults.by_uuid()
        devices = tuple(fenced(device, faults, now, self._recover_seconds) for device in offer.inventory.devices)
        inventory = replace(offer.inventory, devices=devices)
        return replace(offer, inventory=inventory, withheld={**offer.withheld, **unknown})

    def _read_devices(self, nvml: Any, count: int) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns NVML's handle of each GPU that answers, keyed by uuid, and why each other one is withheld.

        The reasons are keyed by `number INDEX` of the GPU. A GPU that has answered before and does not now gets a fault
        instead. Its index may be that of another GPU now, since NVML numbers the GPUs each time it is opened.
        """
        handles: dict[str, Any] = {}
        failed: dict[int, str] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found = self._device(nvml, index, handle)
            except nvml.NVMLError as error:
                failed[index] = f"it does not answer: {error}"
                continue
            self._known[found.uuid] = found
            handles[found.uuid] = handle
            self._look_for_faults(nvml, handle, found)
        for found in self._known.values():
            if found.uuid not in handles:
                self._fault(found.uuid, failed.pop(found.index, "NVML no longer names it"))
        return handles, {f"number {index}": why for index, why in failed.items()}

    def sample(self, uuid: str) -> DriverSample:
        """Returns NVML's present figures of the GPU with this uuid, and of the processes on it.

        Raises:
            OSError: NVML does not answer for this GPU.
        """
        sampler = self._samplers.get(uuid) or self._samplers.setdefault(uuid, Nvml(uuid))
        try:
            return sampler.sample()
        except OSError:
            self._samplers.pop(uuid, None)  # its handle may be of before the GPU was lost
            raise

    def watch(self, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Waits for Xid errors and double-bit ECC errors of the GPUs, and stores them as faults.

        Args:
            goes_on: returns whether to continue waiting; called at least every second.
            changed: called after each error, but for those that programs cause themselves.

        Raises:
            OSError: NVML does not answer, or reports no events or no more of them. Method `offer` still finds faults,
                from the GPUs' counters.
            DriverReplacedError: as for `offer`.
        """
        nvml = self._library()
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        try:
            self._follow(nvml, events, goes_on, changed)
        except nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)

    def _follow(self, nvml: Any, events: Any, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Stores the faults that a set of NVML's events reports, until `goes_on` returns false.

        It calls `changed` after each fault. GPUs that could not be added to the set are tried again every
        REGISTER_SECONDS.
        """
        followed: set[int] = set()
        asked = float("-inf")
        while goes_on():
            if self._clock() - asked >= REGISTER_SECONDS:
                asked = self._clock()
                _register(nvml, events, followed)
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_MILLISECONDS)
            except nvml.NVMLError_Timeout:
                continue
            if self._is_fault(nvml, event):
                changed()

    def _is_fault(self, nvml: Any, event: Any) -> bool:
        """Stores the fault that an event reports; returns whether the GPUs must be read again.

        It returns False for an error that a program causes itself, and else True.
        """
        try:
            uuid = str(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError:
            return True  # it has fallen off the bus: the next look finds that it does not answer
        if event.eventType == nvml.nvmlEventTypeDoubleBitEccError:
            self._fault(uuid, "a double-bit ECC error")
            return True
        fault = xid_fault(int(event.eventData), self._clock())
        if fault is not None:
            self._faults.note(uuid, fault)
        return fault is not None

    def _look_for_faults(self, nvml: Any, handle: Any, found: Found) -> None:
        """Stores the faults that a GPU's own counters show, such as those from before this process started.

        A counter that the GPU does not have shows none.
        """
        try:
            if nvml.nvmlDeviceGetRemappedRows(handle)[3]:
                self._fault(found.uuid, "a row of its memory could not be remapped: it needs to be replaced")
        except nvml.NVMLError:
            pass  # it remaps no rows
        try:
            errors = int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        except nvml.NVMLError:
            return  # it counts none
        self._faults.note_double_bit_errors(found.uuid, errors, Fault("a double-bit ECC error", self._clock()))

    def _fault(self, uuid: str, why: str) -> None:
        self._faults.note(uuid, Fault(why, self._clock()))

    def _library(self) -> Any:
        if self._opened is None:
            import pynvml  # noqa: PLC0415 (only where a GPU is to be asked)

            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError_LibRmVersionMismatch as error:
                # A process that finds this at its first try has the present library: another one would load the same.
                kind = DriverReplacedError if self._had_library else OSError
                raise kind(f"NVML: {error}") from error
            except pynvml.NVMLError_DriverNotLoaded as error:
                self._had_library = True
                raise OSError(f"NVML: {error}") from error
            except pynvml.NVMLError as error:
                raise OSError(f"NVML: {error}") from error
            self._opened, self._had_library = pynvml, True
        return self._opened

    def _device(self, nvml: Any, index: int, handle: Any) -> Found:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        pci = str(nvml.nvmlDeviceGetPciInfo(handle).busId)  # its domain has eight digits, and the kernel's four
        return Found(
            index=index,
            minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
            uuid=str(nvml.nvmlDeviceGetUUID(handle)),
            model=str(nvml.nvmlDeviceGetName(handle)),
            memory_mib=(int(memory.total) - int(memory.reserved)) // MIB,
            pci=pci,
            numa=_numa(nvml, handle, self._pci_devices / pci[-12:].lower()),
            refused=_refused(nvml, handle),
        )


def offered(
    driver: str,
    found: Sequence[Found],
    tiers: Mapping[tuple[str, str], Link],
    specs: Reading,
    refused: str = "",
) -> Offer:
    """Returns the GPUs to offer, and the reasons to withhold the others.

    A GPU is offered if it can be shared, has memory, and has an entry in the specs of NVIDIA's toolkit.

    Args:
        driver: the version of NVIDIA's driver, for the inventory.
        found: the GPUs, as NVML describes them.
        tiers: the link between two GPUs, keyed by their uuids in any order; GPUs without an entry count as far apart.
        specs: the toolkit's CDI specs.
        refused: the reason why none of the GPUs can be shared; empty if there is no reason that concerns all of them.
    """
    edits: dict[str, Edits] = {}
    withheld: dict[str, str] = {}
    for device in found:
        try:
            edits[device.uuid] = vendor_edits(specs.specs, device.uuid, device.index, device.minor)
        except VendorSpecError as error:
            withheld[device.uuid] = "; ".join([str(error), *specs.unread])
        why = device.refused or refused
        if why or device.memory_mib <= 0:
            edits.pop(device.uuid, None)
            withheld[device.uuid] = why or "NVML says that it has no memory"
    kept = [device for device in found if device.uuid in edits]
    devices = tuple(Device(device.uuid, device.model, device.memory_mib, device.numa, device.pci) for device in kept)

    def link(one: Found, two: Found) -> Link:
        if one.uuid == two.uuid:
            return Link.SELF
        return tiers.get((one.uuid, two.uuid), tiers.get((two.uuid, one.uuid), Link.SYSTEM))

    links = tuple(tuple(link(row, column) for column in kept) for row in kept)
    return Offer(Inventory(VENDOR, driver, MAX_SLOTS, devices, links), edits, withheld)


def mps_on_node(names: Mapping[int, bytes], is_trusted: Callable[[int], bool]) -> str:
    """Returns why no GPU of a node can be shared in turns, if NVIDIA's Multi-Process Service (MPS) runs there; else "".

    NVML names MPS only once MPS has a client. The daemon and the server of MPS are processes of the host, or of a
    privileged container such as NVIDIA's device plugin has for them (https://docs.nvidia.com/deploy/mps/). The GPUs
    that they share are named in their environment, which the agent has no right to read.

    Args:
        names: the names of the processes, as the kernel cuts them, keyed by process id.
        is_trusted: returns whether a process, given its id, belongs to the node's admin, so that its name is true.
    """
    if any(name == MPS and is_trusted(pid) for pid, name in names.items()):
        return "nvidia-cuda-mps-control runs on this node, and may share any of its GPUs through MPS: end it"
    return ""


def _register(nvml: Any, events: Any, followed: set[int]) -> None:
    """Adds the GPUs whose indexes are not in `followed` to a set of NVML's events, and their indexes to `followed`.

    Each GPU is registered only for events that NVML has for it. A GPU without ECC has no events of double-bit errors:
    if these were asked for, NVML would refuse all events of the GPU.

    Raises:
        NVMLError: NVML does not answer, or no GPU can be added and none was before.
    """
    kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
    failed = None
    for index in range(nvml.nvmlDeviceGetCount()):
        if index not in followed:
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                supported = kinds & int(nvml.nvmlDeviceGetSupportedEventTypes(handle))
                nvml.nvmlDeviceRegisterEvents(handle, supported or kinds, events)  # NVML says why it has none
                followed.add(index)
            except nvml.NVMLError as error:
                failed = error
    if failed is not None and not followed:
        raise failed


def tier(level: int) -> Link:
    """Returns the link between two GPUs, from NVML's topology level of their nearest common ancestor."""
    return next((link for most, link in TIERS if level <= most), Link.SYSTEM)


def _refused(nvml: Any, handle: Any) -> str:
    """Returns why a GPU cannot be shared in turns; empty if it can."""
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return "it is in MIG mode: FairGPU shares whole GPUs only (switch MIG off: nvidia-smi -mig 0)"
    except nvml.NVMLError:
        pass  # a GPU that knows no MIG
    try:
        if nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle):
            return "it is shared through MPS: end nvidia-cuda-mps-control on this node"
    except nvml.NVMLError:
        pass  # a driver that knows no MPS
    try:
        # NVIDIA advises it for MPS, and a user who wants a GPU alone sets it, too.
        if nvml.nvmlDeviceGetComputeMode(handle) != nvml.NVML_COMPUTEMODE_DEFAULT:
            return "its compute mode lets no two processes work on it (set another: nvidia-smi -c DEFAULT)"
    except nvml.NVMLError:
        pass  # a GPU without compute modes
    return ""


def _numa(nvml: Any, handle: Any, pci_device: Path) -> int | None:
    """Returns the NUMA node next to a GPU: NVML's, or the kernel's if NVML names none or several.

    It is None if the kernel names none either. The kernel names the node in a file of the folder `pci_device`.
    """
    try:
        masks = nvml.nvmlDeviceGetMemoryAffinity(handle, MASKS, nvml.NVML_AFFINITY_SCOPE_NODE)
    except nvml.NVMLError:
        masks = ()  # a driver that does not know
    near = [at * MASK_BITS + bit for at, mask in enumerate(masks) for bit in range(MASK_BITS) if mask >> bit & 1]
    if len(near) == 1:
        return near[0]
    try:
        node = int((pci_device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _link(nvml: Any, one: Any, two: Any, pci_of_two: str) -> Link:
    """Returns the nearest link between two GPUs, given by NVML's handles; SYSTEM, the farthest, if NVML knows none.

    `pci_of_two` is the PCI address of the second GPU.
    """
    for number in range(MOST_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(one, number):
                kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(one, number)
                remote = nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, number)
                if kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH or str(remote.busId)[-12:] == pci_of_two[-12:]:
                    return Link.NVLINK
        except nvml.NVMLError:
            break
    try:
        return tier(int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, two)))
    except nvml.NVMLError:
        return Link.SYSTEM
