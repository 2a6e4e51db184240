"""What clients may send: strict models, so that a wrong field is named and nothing is guessed.

Numbers are bounded where they are read: what passes here fits the store's integers.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from timekeeper.rules.money import MAX_GPU_HOURS

MAX_COUNTER = 2**63 - 1
MAX_SEQUENCE = 2**53 - 1
MAX_DEVICES = 256
"""Devices in one report, over all its containers: what the sidecar holds itself to."""
MAX_REPORT_BYTES = 128 * 1024
MAX_BODY_BYTES = 256 * 1024

Counter = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNTER)]
Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
"""A name of a Kubernetes object: a DNS subdomain (RFC 1123)."""
GpuHours = Annotated[
    StrictInt | StrictFloat | StrictStr,
    WithJsonSchema(
        {
            "description": "GPU-hours above 0: a number, or a decimal in quotes, of at most six places.",
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_GPU_HOURS},
                {"type": "string", "pattern": "^(0|[1-9][0-9]{0,8})([.][0-9]{1,6})?$"},
            ],
        }
    ),
]
SignedGpuHours = Annotated[
    StrictInt | StrictFloat | StrictStr,
    WithJsonSchema(
        {
            "description": "GPU-hours but 0, below 0 to take away: a number, or a decimal in quotes, of six places.",
            "anyOf": [
                {"type": "number", "minimum": -MAX_GPU_HOURS, "maximum": MAX_GPU_HOURS},
                {"type": "string", "pattern": "^-?(0|[1-9][0-9]{0,8})([.][0-9]{1,6})?$"},
            ],
        }
    ),
]
Timestamp = Annotated[
    StrictStr, StringConstraints(max_length=64), WithJsonSchema({"type": "string", "format": "date-time"})
]
Reason = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=1024, pattern=r"\S")]

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class _Given(BaseModel):
    """What a person writes: an unknown field is a mistake that is named."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class _Reported(BaseModel):
    """What a sidecar sends: the fields of a later one are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class DeviceReport(_Reported):
    """What one container used of one device since its sidecar started; nanoseconds, MiB and counts."""

    uuid: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]
    busyNs: Counter  # noqa: N815 - the wire's name
    spanNs: Counter  # noqa: N815 - as above
    throttledNs: Counter  # noqa: N815 - as above
    memoryPeakMiB: Counter  # noqa: N815 - as above
    launches: Counter
    oom: Counter


class ContainerReport(_Reported):
    """One container and its devices."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    devices: Annotated[list[DeviceReport], Field(max_length=MAX_DEVICES)]

    @model_validator(mode="after")
    def _no_device_twice(self) -> Self:
        if len({device.uuid for device in self.devices}) != len(self.devices):
            raise ValueError("a device stands twice in one container")
        return self


class Report(_Reported):
    """One report of a sidecar: `boot` names its start, `seq` grows with each report of that start.

    One that is `last` is taken at once: its sidecar ends.
    """

    v: Literal[1]
    boot: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9-]{1,64}$")]
    seq: Annotated[int, Field(strict=True, ge=0, le=MAX_SEQUENCE)]
    containers: Annotated[list[ContainerReport], Field(max_length=MAX_DEVICES)]
    last: StrictBool = False

    @model_validator(mode="after")
    def _bounded_and_distinct(self) -> Self:
        if len({container.name for container in self.containers}) != len(self.containers):
            raise ValueError("a container stands twice")
        if sum(len(container.devices) for container in self.containers) > MAX_DEVICES:
            raise ValueError(f"more than {MAX_DEVICES} devices")
        return self


class GrantRequest(_Given):
    """One-off money for a budget, or from it. A name makes the request repeatable; so does the header Idempotency-Key.

    Without `expires` it lapses with the present period.
    """

    budget: Name
    gpuHours: SignedGpuHours  # noqa: N815 - the wire's name
    reason: Reason
    name: Name | None = None
    expires: Timestamp | None = None


class CorrectionRequest(_Given):
    """What a budget spent more or less than its ledger says, in the period that holds `effectivePeriod`."""

    budget: Name
    gpuHours: SignedGpuHours  # noqa: N815 - the wire's name
    effectivePeriod: Timestamp  # noqa: N815 - the wire's name
    reason: Reason
    namespace: (
        Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None
    ) = None
    name: Name | None = None


class IncreaseRequest(_Given):
    """One-off money as the ancestor's clients ask for it."""

    gpu_hours: GpuHours
    reason: Reason


class PodReport(_Given):
    """A proof of life as the ancestor's sidecars send it."""

    usage_factor: Annotated[float, Field(ge=0, le=1e6)]
    pod_name: Name


def is_namespace(text: str) -> bool:
    """Whether it can be a namespace's name: a DNS label (RFC 1123)."""
    return _NAMESPACE.fullmatch(text) is not None
