"""The reasons for which a node takes no new GPU pods. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SILENT_AFTER_SECONDS = 60.0
"""A driver that has not answered for so long hangs; a look at eight GPUs takes a fraction of a second."""


@dataclass(frozen=True)
class Reason:
    """One reason: the reason of the Node's event, and its message."""

    event: str
    message: str


def reasons(foreign: Sequence[str], silent_seconds: float, look_seconds: float) -> list[Reason]:
    """Returns why all GPUs of the node are withheld; none where they are offered.

    Args:
        foreign: the resources by which other plugins offer the same GPUs.
        silent_seconds: the time since the driver last answered.
        look_seconds: the interval at which the driver is asked.
    """
    found = []
    if foreign:
        message = (
            f"another plugin offers this node's GPUs as {', '.join(foreign)}: FairGPU offers nothing new here "
            "until it is switched off for this node"
        )
        found.append(Reason("ForeignDevicePlugin", message))
    if silent_seconds > max(SILENT_AFTER_SECONDS, 3 * look_seconds):
        message = (
            f"NVML has not answered for {int(silent_seconds)} seconds: FairGPU offers nothing new here until it does; "
            "running containers go on"
        )
        found.append(Reason("DriverSilent", message))
    return found
