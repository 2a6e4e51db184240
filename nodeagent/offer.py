"""The GPUs that the node offers, with their CDI edits, and the reasons to withhold some or all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fairgpu.inventory import MAX_SLOTS, Device, Health, Inventory
from nodeagent.driver_figures import DriverSample

SILENT_AFTER_SECONDS = 60.0
"""The time without an answer after which a driver counts as hanging; a look at eight GPUs takes a fraction of a
second."""


class DriverReplacedError(OSError):
    """Raised if the driver was replaced, and no longer answers the version of its library that this process has loaded.

    Only a new process can ask the driver: it loads the present version of the library.
    """


Edits = tuple[str, Mapping[str, Any]]
"""The version of a CDI spec, and the edits that give a container one GPU."""


@dataclass(frozen=True)
class Offer:
    """The GPUs that the node offers now, and those that it withholds.

    Attributes:
        inventory: the GPUs that are offered, fenced ones among them.
        edits: the version of the vendor's CDI spec and the edits that give a container the GPU, keyed by the GPU's
            uuid.
        withheld: the reason why each other GPU is not offered, for events. It is keyed by the GPU's uuid, or by
            `number INDEX` if the GPU has not answered since the agent started.
    """

    inventory: Inventory
    edits: Mapping[str, Edits]
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> dict[str, Device]:
        """The GPUs that are offered, keyed by uuid."""
        return {device.uuid: device for device in self.inventory.devices}


class Vendor(Protocol):
    """The functions by which the agent uses a vendor's GPU driver."""

    def offer(self) -> Offer:
        """Reads the node's GPUs; returns those to offer and those to withhold.

        Raises:
            OSError: the driver does not answer; the message contains the driver's.
            DriverReplacedError: another driver has replaced it; this process cannot ask the new one.
        """

    def sample(self, uuid: str) -> DriverSample:
        """Returns the driver's present figures of the GPU with this uuid, and of the processes on it.

        Raises:
            OSError: the driver does not answer.
        """

    def watch(self, goes_on: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Waits for faults that the driver reports.

        Args:
            goes_on: returns whether to continue waiting.
            changed: called after each fault.

        Raises:
            OSError: the driver cannot report faults, or has stopped reporting them.
        """


def slot_ids(devices: int) -> tuple[str, ...]:
    """Returns the ids of the slots that the device plugin offers for a number of GPUs.

    A slot counts a container and stands for no GPU in particular.
    """
    return tuple(f"slot-{number}" for number in range(devices * MAX_SLOTS))


OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 109})
"""Xid errors that a program's own fault causes, and that leave the GPU intact."""


@dataclass(frozen=True)
class Fault:
    """A fault of a GPU.

    Attributes:
        why: the fault, in words.
        at_seconds: when it was last observed, in seconds of a monotonic clock.
    """

    why: str
    at_seconds: float


def xid_fault(number: int, now_seconds: float) -> Fault | None:
    """Returns the fault that one of NVIDIA's Xid errors reports; None for an error that a program causes itself.

    Args:
        number: the number of the Xid error.
        now_seconds: the present time, in seconds of a monotonic clock.
    """
    return None if number in OF_PROGRAMS else Fault(f"Xid {number}", now_seconds)


def fenced(device: Device, faults: Mapping[str, Fault], now_seconds: float, recover_seconds: float) -> Device:
    """Returns a GPU as it is offered: fenced for `recover_seconds` after its last fault, so that no container starts.

    Args:
        faults: the last fault of each GPU that had one, keyed by uuid.
        now_seconds: the present time, in seconds of a monotonic clock.
        recover_seconds: for how many seconds a GPU is fenced after a fault.
    """
    fault = faults.get(device.uuid)
    if fault is None or now_seconds - fault.at_seconds >= recover_seconds:
        return device
    return replace(device, health=Health.FENCED, why=fault.why)


NOT_APPLIED = "CDINotApplied"
"""The reason of the events of a runtime that ignores CDI."""
RUNTIME_SILENT = "RuntimeSilent"
"""The reason of the event of a runtime that has not answered since the agent's start."""
RUNTIME_REFUSES = "RuntimeRefuses"
"""The reason of the event of a runtime that has answered with nothing but errors since the agent's start."""
NOT_INSTALLED = "ShimNotInstalled"
"""The reason of the event of a host to which the agent cannot write the shim."""


@dataclass(frozen=True)
class Withholding:
    """A reason to offer none of the node's GPUs, for an event about the Node.

    Attributes:
        event: the event's reason, one word.
        message: the event's message.
    """

    event: str
    message: str


@dataclass(frozen=True)
class RuntimeFailure:
    """A failed attempt to learn from the container runtime how the runtime is configured.

    Attributes:
        error: the error, in gRPC's words.
        answers: whether the runtime itself answered with this error; false if it did not answer.
    """

    error: str
    answers: bool = False


def withholdings(
    foreign: Sequence[str],
    silent_seconds: float,
    look_seconds: float,
    *,
    applies_cdi: bool,
    runtime_failure: RuntimeFailure | None = None,
    shim_error: str = "",
) -> list[Withholding]:
    """Returns the reasons to offer none of the node's GPUs, for events about the Node; empty if there is none.

    Args:
        foreign: the names of the resources, or of other means, by which other plugins offer the same GPUs.
        silent_seconds: the seconds since the driver last answered.
        look_seconds: the seconds between two times at which the driver is asked.
        applies_cdi: false if the container runtime says that it does not apply the containers' CDI specs.
        runtime_failure: why the container runtime has not said how it is configured since the agent started; None if
            it has, or was not asked yet.
        shim_error: why the agent cannot write the shim to the host; empty if it has, or has not tried yet.
    """
    withheld = []
    if foreign:
        message = (
            f"another plugin offers this node's GPUs as {', '.join(foreign)}: FairGPU offers nothing new here "
            "until it is switched off for this node"
        )
        withheld.append(Withholding("ForeignDevicePlugin", message))
    limit_seconds = max(SILENT_AFTER_SECONDS, 3 * look_seconds)
    if silent_seconds > limit_seconds:
        # A message that changes with the time would be a new event at each look.
        message = (
            f"NVML has not answered for more than {limit_seconds:g} seconds: FairGPU offers nothing new here until it "
            "does; running containers go on"
        )
        withheld.append(Withholding("DriverSilent", message))
    if not applies_cdi:
        message = (
            "the runtime does not apply the CDI specs of FairGPU's containers: FairGPU offers nothing new here until "
            "enable_cdi and cdi_spec_dirs say so in containerd's CRI plugin; running containers go on"
        )
        withheld.append(Withholding(NOT_APPLIED, message))
    if runtime_failure is not None and runtime_failure.answers:
        message = (
            "what listens at nodeagent.runtime_socket answers the question whether it applies CDI with an error: "
            f"{runtime_failure.error}; FairGPU offers nothing new here until it answers; let the setting name the "
            "socket of a container runtime with CRI v1, and take cri out of disabled_plugins in containerd's "
            "configuration; running containers go on"
        )
        withheld.append(Withholding(RUNTIME_REFUSES, message))
    elif runtime_failure is not None:
        message = (
            "the container runtime has not answered since the node agent started, so that it is not known whether it "
            f"applies CDI: {runtime_failure.error}; FairGPU offers nothing new here until it answers at "
            "nodeagent.runtime_socket; running containers go on"
        )
        withheld.append(Withholding(RUNTIME_SILENT, message))
    if shim_error:
        message = (
            f"the node agent cannot write the shim to the host: {shim_error}; FairGPU offers nothing new here until it "
            "can; running containers go on with the shim that they have"
        )
        withheld.append(Withholding(NOT_INSTALLED, message))
    return withheld
