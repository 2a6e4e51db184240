"""The models of requests and answers of the REST API.

Request models are strict: an error names the wrong field, and no value is guessed. Numbers are bounded, so that they
fit the store's integers. The docstrings of models are the descriptions in `/openapi.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
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

from fairgpu.states import BudgetState
from timekeeper.api.figures import SessionFigures
from timekeeper.domain.forecast import Burn, lasts_until
from timekeeper.domain.money import GPU_HOUR, GPU_SECOND, MAX_GPU_HOURS, Currency, gpu_hours
from timekeeper.domain.timestamps import to_datetime
from timekeeper.ledger.entries import LedgerEntry
from timekeeper.ledger.present_use import NamespaceUse
from timekeeper.ledger.totals import Summary

MAX_COUNTER = 2**63 - 1
MAX_SEQUENCE = 2**53 - 1
MAX_DEVICES = 256
"""The most devices in one report, summed over its containers; the sidecar sends no more."""
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
            "description": "GPU-hours, not 0: a number, or a decimal in quotes, of at most six places.",
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
    """The base of request bodies that a person writes: an unknown field is an error that names the field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class _Reported(BaseModel):
    """The base of request bodies that a sidecar sends: unknown fields are ignored, as later sidecars may send more."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class DeviceReport(_Reported):
    """One container's use of one device, as counters that only grow while the pod's sidecar runs.

    `busyNs` is GPU time, `spanNs` the wall time with queued work, and `throttledNs` the time for which launches were
    held back, each in nanoseconds. `memoryPeakMiB` is the most memory that the container had at one time, `launches`
    the number of kernel launches, and `oom` the number of refused allocations of memory. `earlierBusyNs` and
    `earlierSpanNs` are the parts of `busyNs` and `spanNs` that the sidecar found when it started: the sidecar may have
    reported them before it was restarted.
    """

    uuid: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]
    busyNs: Counter  # noqa: N815 - the wire's name
    spanNs: Counter  # noqa: N815 - as above
    throttledNs: Counter  # noqa: N815 - as above
    memoryPeakMiB: Counter  # noqa: N815 - as above
    launches: Counter
    oom: Counter
    earlierBusyNs: Counter = 0  # noqa: N815 - as above
    earlierSpanNs: Counter = 0  # noqa: N815 - as above


class ContainerReport(_Reported):
    """The use of devices by the container `name`, in a pod's report; `devices` has each of its devices at most once."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    devices: Annotated[list[DeviceReport], Field(max_length=MAX_DEVICES)]

    @model_validator(mode="after")
    def _no_device_twice(self) -> Self:
        if len({device.uuid for device in self.devices}) != len(self.devices):
            raise ValueError("a device stands twice in one container")
        return self


class Report(_Reported):
    """The body of `POST /v1/reports`: the GPU use of a pod's containers, as the pod's sidecar has seen it.

    `v` is the version of the format, and `boot` an id of the sidecar's start. A report is ignored if its `seq` is not
    above that of every earlier report of the same `boot`. A pod may report once a second; a sooner report is answered
    429. The first report of a `boot` need not wait, nor the final one, which has `last` true; only a few of these are
    taken in a row.
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
    """The body of `POST /v1/grants`: one-off money for a budget; with `gpuHours` below 0, the budget loses money.

    `name` names the GPUGrant to make; without it the header Idempotency-Key is required. By either, a request that is
    sent again gives no money again. `expires` is a future time; without it the grant expires with the present period.
    """

    budget: Name
    gpuHours: SignedGpuHours  # noqa: N815 - the wire's name
    reason: Reason
    name: Name | None = None
    expires: Timestamp | None = None


class CorrectionRequest(_Given):
    """The body of `POST /v1/corrections`: `gpuHours` are added to a budget's spending, or taken off it if below 0.

    The GPU-hours count in the period that contains the time `effectivePeriod`, and as use of `namespace`, if that is
    given. `name` names the GPUCorrection to make; without it the header Idempotency-Key is required.
    """

    budget: Name
    gpuHours: SignedGpuHours  # noqa: N815 - the wire's name
    effectivePeriod: Timestamp  # noqa: N815 - the wire's name
    reason: Reason
    namespace: (
        Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None
    ) = None
    name: Name | None = None


class IncreaseRequest(_Given):
    """A request for one-off money for a namespace's budget, in the format of FairGPU's ancestor, an earlier project."""

    gpu_hours: GpuHours
    reason: Reason


class PodReport(_Given):
    """A report that a pod runs, in the format of FairGPU's ancestor, an earlier project; `usage_factor` is unused."""

    usage_factor: Annotated[float, Field(ge=0, le=1e6)]
    pod_name: Name


def is_namespace(text: str) -> bool:
    """Returns whether a text can be a namespace's name: a DNS label (RFC 1123)."""
    return _NAMESPACE.fullmatch(text) is not None


Exact = Annotated[str, Field(pattern=r"^-?[0-9]+$")]


class Answer(BaseModel):
    """The base of answers. The service makes them, so they are not validated again."""

    model_config = ConfigDict(frozen=True)


class Money(Answer):
    """An amount: exact, and in GPU-hours for display. One GPU-hour is 3,600,000,000 microGPU-seconds."""

    microGPUSeconds: Exact  # noqa: N815 - the wire's name
    gpuHours: float  # noqa: N815 - the wire's name


class Rate(Answer):
    """A rate of spending: exact, and for display in GPU-hours per hour, which is a number of GPUs."""

    microGPUSecondsPerSecond: Exact  # noqa: N815 - the wire's name
    gpus: float


class AccessAnswer(Answer):
    """The answer to `GET /v1/access`: the caller's name, and the namespaces whose figures the caller may read.

    `readsAll` is true for a caller who may list every budget; `namespaces` is empty then. Else `namespaces` lists the
    namespaces that were found readable. If `complete` is false, the caller may read further namespaces, for which a
    client must ask by name. `grants` is true for a caller who may grant money.
    """

    name: str
    readsAll: bool  # noqa: N815 - the wire's name
    grants: bool
    namespaces: list[str]
    complete: bool


class LedgerEntryAnswer(Answer):
    """An entry of a budget's ledger: it added `amount` to the spending of the period that starts at `period`.

    An entry of `kind` grant, carry (money came from the preceding period) or lapse (a grant expired) added `amount` to
    the available money, and not to the spending. `session` is the uid of a session, and `pod` the name of the session's
    pod, of the grant or of the correction; these and `namespace` are empty if the entry concerns none. `note` is a text
    for people.
    """

    id: str
    time: datetime
    kind: str
    period: datetime
    amount: Money
    session: str
    namespace: str
    pod: str
    note: str


class LedgerAnswer(Answer):
    """A page of a budget's ledger, oldest entry first. `cursor` asks for later entries, even if there are none yet."""

    budget: str
    entries: list[LedgerEntryAnswer]
    cursor: str


class PresentUseAnswer(Answer):
    """The busy part of what a pod holds of GPUs now, in percent from 0 to 100; advisory, and no part of any bill.

    `source` measured it, and `at` is the time of the source's answer. If the source has no figures by pod for a GPU
    that pods share, `percent` is the figure of the whole GPU.
    """

    percent: float
    at: datetime
    source: Literal["prometheus"] = "prometheus"


class SessionAnswer(Answer):
    """A session: what a pod holds of GPUs from its binding to its end; `end` is null while it runs.

    `budget` is the account that pays at `rate`, and `amount` the session's cost in that account's present period. The
    allocation of a claim of Dynamic Resource Allocation is one session, whose `pod` is `resourceclaim/` and the claim's
    name; `heldIdle` is true while no pod reserves the claim. `chargedByRule` names the facts that the cluster's objects
    do not state about what a pod holds by another stack, such as `model-unknown`: a rule decides what is charged. It is
    empty if no such fact is missing.

    `used` is the GPU time that the pod's containers used, by all reports of the pod, and `reportedAt` the time of the
    last report; both are null before the first report. `presentUse` is null if the pod reports, or if its use is
    unknown.
    """

    uid: str
    namespace: str
    pod: str
    node: str
    budget: str
    start: datetime
    end: datetime | None
    rate: Rate
    amount: Money
    used: Money | None
    reportedAt: datetime | None  # noqa: N815 - the wire's name
    heldIdle: bool  # noqa: N815 - the wire's name
    chargedByRule: list[str]  # noqa: N815 - the wire's name
    presentUse: PresentUseAnswer | None  # noqa: N815 - the wire's name


class SessionsAnswer(Answer):
    """A page of open sessions, sorted by uid or, on request, by cost, the highest first.

    `cursor` is the cursor of the next page, null on the last page.

    `presentUseFrom` names the source of the sessions' present use; null if the admin has configured none.
    """

    sessions: list[SessionAnswer]
    cursor: str | None
    presentUseFrom: Literal["prometheus"] | None  # noqa: N815 - the wire's name


class GrantAnswer(Answer):
    """A GPUGrant as ordered; the ledger has it a moment later. `expires` is null for the end of the present period."""

    name: str
    budget: str
    gpuHours: str  # noqa: N815 - the wire's name
    reason: str
    requestedBy: str  # noqa: N815 - the wire's name
    expires: str | None = None


class CorrectionAnswer(Answer):
    """A GPUCorrection as ordered, of the period that contains `effectivePeriod`; the ledger has it a moment later."""

    name: str
    budget: str
    gpuHours: str  # noqa: N815 - the wire's name
    effectivePeriod: str  # noqa: N815 - the wire's name
    namespace: str | None
    reason: str
    requestedBy: str  # noqa: N815 - the wire's name


class ReportAnswer(Answer):
    """The answer to a report that was stored, or ignored as old; `interval_s` is the seconds until the next report."""

    interval_s: int


class SafeAnswer(Answer):
    """The terms of safe admission, by which the unspent money must pay for a new pod's whole run.

    `committed` is the amount, in microGPU-seconds, that is kept for admitted pods and for pods behind FairGPU's
    scheduling gate. `defaultCommitSeconds` is the assumed run time of a pod without activeDeadlineSeconds. `hold` is
    true if a pod whose run the money cannot pay for waits; else such a pod is admitted as over budget.
    """

    committed: Exact
    defaultCommitSeconds: int  # noqa: N815 - the wire's name
    hold: bool


class ChargeAnswer(Answer):
    """The admin's rules for the cost of a pod whose devices are not known yet, by which a webhook estimates it.

    A share without guaranteed GPU time (best effort) costs at least `bestEffortFloorPercent` percent of a whole GPU.
    `unknownDeviceMiB` is the memory, in MiB, that a device is assumed to have: the memory that a pod asks for is
    charged as a part of this memory.
    """

    bestEffortFloorPercent: int = 10  # noqa: N815 - the wire's name
    unknownDeviceMiB: int = 16384  # noqa: N815 - the wire's name


class StateAnswer(Answer):
    """The state that a namespace's next pod meets, with figures of the budget that pays: `budget`, empty if none pays.

    `available` is allowance and grants, and `remaining` the part not spent, below 0 once overspent; both are
    microGPU-seconds, and 0 without a limit. `rate` is what running pods cost, in microGPU-seconds per second.
    `enforced` is false if the budget is only observed, and absent otherwise. `safe` is absent unless the budget's
    admission is safe.
    """

    namespace: str
    budget: str
    state: BudgetState
    available: Exact
    remaining: Exact
    rate: Exact
    enforced: bool = True
    safe: SafeAnswer | None = None


class StatesAnswer(Answer):
    """The published states of namespaces: all if `full` is true, else only changes since the cursor in the request.

    `default` is the state of a namespace that a full answer does not list. If the default budget has safe admission,
    `unused` is that state without a namespace's name, with the amounts of a period in which nothing is spent yet; else
    it is absent. `prices` has the GPU-hours charged for an hour of a whole GPU, keyed
    by model; `*` is any other model. `charge` has the rules by which a webhook assumes what a pod costs.
    """

    cursor: str
    full: bool
    states: list[StateAnswer]
    default: BudgetState
    prices: dict[str, float]
    charge: ChargeAnswer = ChargeAnswer()
    unused: StateAnswer | None = None


class GPUFigures(Answer):
    """A part of one GPU: percent of its time, memory in MiB, and the most containers that run on it at a time."""

    corePercent: int  # noqa: N815 - the wire's name
    memoryMiB: int  # noqa: N815 - the wire's name
    containers: int


class GPUHolder(GPUFigures):
    """A pod and the part of one GPU that it holds: the most at any time of its life, init containers included."""

    namespace: str
    name: str
    uid: str


class GPUOfNode(Answer):
    """A GPU of a node: `held` is the part that all pods hold together, and `pods` has the part of each pod.

    `memoryMiB` is the memory that pods can hold in all, and `numa` the GPU's NUMA node, null if it is unknown. A GPU
    whose `health` is `fenced` takes no new containers; `why` is the reason, null for a GPU that is not fenced.
    """

    uuid: str
    model: str
    memoryMiB: int  # noqa: N815 - the wire's name
    numa: int | None
    pci: str
    health: Literal["ok", "fenced"]
    why: str | None
    held: GPUFigures
    pods: list[GPUHolder]


class GPUNodeStatus(Answer):
    """The GPUs of a node: `driver` is the driver's version, and `slots` the most containers on one GPU.

    `fault` is the reason why the node agent's list of GPUs is invalid, so that no pod is placed on the node; null for a
    valid list. With a fault `devices` is empty, and `vendor`, `driver` and `slots` are absent.
    """

    fault: str | None
    vendor: str | None = None
    driver: str | None = None
    slots: int | None = None
    devices: list[GPUOfNode]


class ObjectMetadata(Answer):
    """The identity of a GPUNode or GPUPod, and the resourceVersion from which a watch continues.

    A GPUPod has the identity of its Pod. A GPUNode has no `namespace`, `uid` and `creationTimestamp`.
    """

    resourceVersion: str  # noqa: N815 - the wire's name
    name: str
    namespace: str | None = None
    uid: str | None = None
    creationTimestamp: str | None = None  # noqa: N815 - the wire's name


class ListMetadata(Answer):
    """The resourceVersion of a list, from which a watch continues."""

    resourceVersion: str  # noqa: N815 - the wire's name


class GPUNodeAnswer(Answer):
    """A GPUNode: a node that offers GPUs, with the parts of each GPU that pods hold."""

    apiVersion: Literal["fairgpu.io/v1"]  # noqa: N815 - the wire's name
    kind: Literal["GPUNode"]
    metadata: ObjectMetadata
    status: GPUNodeStatus


class GPUNodesAnswer(Answer):
    """The nodes that offer GPUs, sorted by name."""

    apiVersion: Literal["fairgpu.io/v1"]  # noqa: N815 - the wire's name
    kind: Literal["GPUNodeList"]
    metadata: ListMetadata
    items: list[GPUNodeAnswer]


class GPUShare(Answer):
    """A container's share of one GPU: percent of the GPU's time, 0 for best effort (no time guaranteed), and MiB."""

    uuid: str
    model: str
    corePercent: int  # noqa: N815 - the wire's name
    memoryMiB: int  # noqa: N815 - the wire's name


class GPUContainer(Answer):
    """The shares of GPUs that one container of a pod holds."""

    name: str
    devices: list[GPUShare]


class GPUWait(Answer):
    """A reason why a pod waits: `why` is a scheduling gate's name, or the message of the scheduler that `by` names."""

    by: Literal["gate", "kube-scheduler", "fairgpu"]
    why: str


class GPUPodStatus(Answer):
    """A GPU pod's stage, its shares of GPUs, and the reasons why it waits.

    `stage` is `gated` behind a scheduling gate, `waits` for a node, `placed`, or `ended`; a pod that was deleted before
    it was placed has ended, too. `node` is null before the pod is placed; `containers` is empty if the pod is not
    placed, and `waits` is empty once it is. `fault` is the reason why a placed pod's allocation is invalid, so that the
    pod holds no GPU; null for none. The other fields are the pod's annotations, null if absent: `gang` names the pods
    to place together (NAME/SIZE), `reclaimAt` the time of the pod's eviction for another pod, `evictionAt` the time of
    its eviction for its spent budget, and `earmark` the devices that are freed and kept for the pod while it waits, as
    JSON.
    """

    stage: Literal["gated", "waits", "placed", "ended"]
    node: str | None
    containers: list[GPUContainer]
    fault: str | None
    waits: list[GPUWait]
    priorityClass: str | None  # noqa: N815 - the wire's name
    gang: str | None
    reclaimAt: str | None  # noqa: N815 - the wire's name
    evictionAt: str | None  # noqa: N815 - the wire's name
    earmark: str | None


class GPUPodAnswer(Answer):
    """A GPUPod: a pod that asks for GPUs or parts of them, with what it holds, or why it waits."""

    apiVersion: Literal["fairgpu.io/v1"]  # noqa: N815 - the wire's name
    kind: Literal["GPUPod"]
    metadata: ObjectMetadata
    status: GPUPodStatus


class GPUPodsAnswer(Answer):
    """The GPU pods, sorted by namespace and name."""

    apiVersion: Literal["fairgpu.io/v1"]  # noqa: N815 - the wire's name
    kind: Literal["GPUPodList"]
    metadata: ListMetadata
    items: list[GPUPodAnswer]


class AncestorBudget(Answer):
    """A namespace's budget in the format of FairGPU's ancestor, an earlier project.

    `budget` is the period's allowance and grants, and `budget_remaining` the part not spent, in GPU-hours; null for no
    limit. `budget_available` is false once the money, and the grace after it, are spent.
    """

    budget_available: bool
    budget: float | None
    budget_remaining: float | None


class AncestorVerdict(Answer):
    """The answer to `POST /budget/{namespace}/report`, in the format of FairGPU's ancestor, an earlier project.

    `terminate` is true once the pod's containers other than the caller and FairGPU's sidecar have ended: the caller may
    end, too.
    """

    terminate: bool


class Health(Answer):
    """The answer of a probe that succeeds: `status` is `ok` from `/healthz` and `ready` from `/readyz`."""

    status: str


class ProblemFault(Answer):
    """A field or parameter at fault: its name, the given value as text, and the allowed values as a phrase."""

    field: str
    given: str
    allowed: str


class Problem(Answer):
    """The answer to a request that is not served: a problem document (RFC 9457).

    `type` is stable, for programs, and `detail` is for people. `errors` is absent if no field or parameter is at fault.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemFault] | None = None


def money(amount: int) -> Money:
    """Returns an amount in microGPU-seconds as REST answers show it."""
    return Money(microGPUSeconds=str(amount), gpuHours=gpu_hours(amount))


def ledger_entry(line: LedgerEntry) -> LedgerEntryAnswer:
    """Returns a ledger entry in the form of REST answers."""
    return LedgerEntryAnswer(
        id=line.id,
        time=to_datetime(line.at),
        kind=line.kind,
        period=to_datetime(line.period),
        amount=money(line.amount),
        session=line.session,
        namespace=line.namespace,
        pod=line.pod,
        note=line.note,
    )


def session_answer(figures: SessionFigures) -> SessionAnswer:
    """Returns a session as REST answers show it."""
    session, use = figures.session, figures.present_use
    return SessionAnswer(
        uid=session.uid,
        namespace=session.namespace,
        pod=session.pod,
        node=session.node,
        budget=figures.account,
        start=to_datetime(session.start),
        end=moment(session.end),
        rate=rate(figures.rate),
        amount=money(figures.amount),
        used=None if figures.used is None else money(figures.used),
        reportedAt=moment(figures.reported_at),
        heldIdle=session.idle,
        chargedByRule=list(session.doubts),
        presentUse=None if use is None else PresentUseAnswer(percent=use.share / 100, at=to_datetime(use.at)),
    )


def ancestor_budget(figures: Summary | None, state: BudgetState) -> AncestorBudget:
    """Returns a namespace's figures in the format of FairGPU's ancestor, in GPU-hours.

    Args:
        state: the namespace's state.
        figures: the figures of the account that pays for the namespace; None, or figures without a limit, give null
            amounts.
    """
    usable = state in (BudgetState.OPEN, BudgetState.GRACE, BudgetState.UNLIMITED)
    if figures is None or figures.available is None:
        return AncestorBudget(budget_available=usable, budget=None, budget_remaining=None)
    remaining = (figures.available - figures.spent) / GPU_HOUR
    return AncestorBudget(budget_available=usable, budget=figures.available / GPU_HOUR, budget_remaining=remaining)


def rate(amount: int) -> Rate:
    """Returns a rate in microGPU-seconds a second as REST answers show it."""
    return Rate(microGPUSecondsPerSecond=str(amount), gpus=amount / GPU_SECOND)


def moment(instant: int | None) -> datetime | None:
    """Converts an instant to a datetime; None stays None."""
    return None if instant is None else to_datetime(instant)


class PeriodAnswer(Answer):
    """An accounting period of a budget: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class CurrencyAnswer(Answer):
    """The admin's currency: `code` by ISO 4217, and the cost of a billed GPU-hour, which includes models' prices."""

    code: str
    perGpuHour: float  # noqa: N815 - the wire's name


class CostsAnswer(Answer):
    """A budget's amounts in the admin's currency, rounded to a hundredth for display.

    `available` and `remaining` are null if nothing limits the spending.
    """

    granted: float
    available: float | None
    spent: float
    remaining: float | None


class StretchAnswer(Answer):
    """A budget's spending between two instants, and the time at which its money runs out at the same rate.

    `spent` is exact, and below 0 if corrections took back more than pods cost. `rate` is the mean rate of `spent`, but
    never below 0. `exhaustion` is null if the money lasts to the period's end, has no limit, or is spent already.
    """

    since: datetime
    until: datetime
    spent: Money
    rate: Rate
    exhaustion: datetime | None


class ForecastAnswer(Answer):
    """Forecasts from a budget's spending in the last hour and the last day; each is null without two samples of it."""

    lastHour: StretchAnswer | None  # noqa: N815 - the wire's name
    lastDay: StretchAnswer | None  # noqa: N815 - the wire's name


class ExpiringAnswer(Answer):
    """A grant with an expiry of its own, and its unspent money. Spending uses the grant that expires soonest first."""

    grant: str
    remaining: Money
    expires: datetime


class GraceAnswer(Answer):
    """The grace of a budget whose money is spent: the money that may still be overspent, and the end of the grace.

    Each is null if the admin has set no such limit.
    """

    remaining: Money | None
    ends: datetime | None


class BudgetUseAnswer(Answer):
    """The number of GPUs that a budget's pods keep busy now; advisory, and no part of any bill.

    `known` is the number of GPUs held by the pods whose use is known, and `busy` the busy part of `known`. A pod that
    holds half of a GPU's time counts as half a GPU, whatever the price. `source` measured both; `at` is the time of the
    oldest answer of the source among them.
    """

    busy: float
    known: float
    at: datetime
    source: Literal["prometheus"] = "prometheus"


class BudgetAnswer(Answer):
    """A budget in its present period, or the own account, `namespace:NAME`, of a namespace that no budget names.

    `granted` sums the period's grants and the money carried over from earlier periods; with the allowance it is
    `available`. `available` and `remaining` are null if nothing limits the spending. `rate` is what running pods cost
    now. `exhaustedAt` is the time when spending reached `available`; null before that. `enforcement` is observe,
    enforce or evict, and empty without a budget. `state` is the state that pods meet; `computedState` is the state that
    they would meet if the budget were enforced. `admission` is simple or safe. With safe admission `committed` is the
    amount that admitted pods may still spend; it is 0 with simple admission. `expiring` are the grants that expire on
    their own, the soonest first. `grace` is null unless the budget is in grace. `currency` and `costs` are null if the
    admin has set no currency. `presentUse` is null if it is unknown.
    """

    name: str
    namespaces: list[str]
    state: BudgetState
    enforcement: str
    period: PeriodAnswer
    granted: Money
    available: Money | None
    spent: Money
    remaining: Money | None
    rate: Rate
    exhaustedAt: datetime | None  # noqa: N815 - the wire's name
    computedState: BudgetState  # noqa: N815 - the wire's name
    admission: str
    committed: Money
    expiring: list[ExpiringAnswer]
    forecast: ForecastAnswer
    grace: GraceAnswer | None = None
    currency: CurrencyAnswer | None = None
    costs: CostsAnswer | None = None
    presentUse: BudgetUseAnswer | None = None  # noqa: N815 - the wire's name


class NamespaceAnswer(Answer):
    """The budget that pays for a namespace, or the namespace's own account if no budget names it.

    `budget` is null if there is no budget and no pod of the namespace was ever metered. `state` is then the state of a
    default budget of which nothing is spent, or unlimited without a default budget.
    """

    namespace: str
    budget: BudgetAnswer | None
    state: BudgetState


class BudgetsAnswer(Answer):
    """A page of budgets, sorted by name; `cursor` is null on the last page."""

    budgets: list[BudgetAnswer]
    cursor: str | None


def currency_answer(currency: Currency | None) -> CurrencyAnswer | None:
    """Returns a currency as REST answers show it; None for None."""
    return None if currency is None else CurrencyAnswer(code=currency.code, perGpuHour=float(currency.per_gpu_hour))


def budget_answer(
    figures: Summary, now: int, currency: Currency | None = None, uses: Mapping[str, NamespaceUse] | None = None
) -> BudgetAnswer:
    """Returns the REST answer about a budget.

    Args:
        figures: the budget's figures.
        now: the instant of the forecast.
        currency: the currency of amounts beside GPU-hours; None for none.
        uses: keyed by namespace, how busy the namespace's pods keep their GPUs now; None if no use is known.
    """
    available = figures.available
    return BudgetAnswer(
        name=figures.name,
        namespaces=list(figures.namespaces),
        state=figures.state,
        enforcement=figures.enforcement,
        period=PeriodAnswer(start=to_datetime(figures.period_start), end=to_datetime(figures.period_end)),
        granted=money(figures.granted),
        available=None if available is None else money(available),
        spent=money(figures.spent),
        remaining=None if available is None else money(available - figures.spent),
        rate=rate(figures.rate),
        exhaustedAt=moment(figures.exhausted_at),
        currency=currency_answer(currency),
        costs=None if currency is None else _costs(figures, currency),
        computedState=figures.computed or figures.state,
        admission=figures.admission,
        committed=money(figures.committed),
        expiring=[
            ExpiringAnswer(grant=credit.name, remaining=money(left), expires=to_datetime(credit.expires))
            for credit, left in figures.expiring
        ],
        grace=_grace(figures),
        presentUse=_present_use([uses[name] for name in figures.namespaces if name in uses] if uses else []),
        forecast=ForecastAnswer(
            lastHour=_stretch(figures.burns.hour, figures, now), lastDay=_stretch(figures.burns.day, figures, now)
        ),
    )


def _present_use(uses: Sequence[NamespaceUse]) -> BudgetUseAnswer | None:
    if not uses:
        return None
    busy, known = (sum(rates) / GPU_SECOND for rates in zip(*((use.busy, use.known) for use in uses), strict=True))
    return BudgetUseAnswer(busy=busy, known=known, at=to_datetime(min(use.at for use in uses)))


def _grace(figures: Summary) -> GraceAnswer | None:
    if (figures.computed or figures.state) is not BudgetState.GRACE or figures.available is None:
        return None
    amount, duration, since = figures.grace_amount, figures.grace_duration, figures.exhausted_at
    return GraceAnswer(
        remaining=None if amount is None else money(max(figures.available + amount - figures.spent, 0)),
        ends=None if duration is None or since is None else to_datetime(since + duration),
    )


def _stretch(burn: Burn | None, figures: Summary, now: int) -> StretchAnswer | None:
    if burn is None:
        return None
    remaining = 0 if figures.available is None else figures.available - figures.spent
    return StretchAnswer(
        since=to_datetime(burn.since),
        until=to_datetime(burn.until),
        spent=money(burn.spent),
        rate=rate(burn.rate),
        exhaustion=moment(lasts_until(remaining, burn, now, figures.period_end)),
    )


def _costs(figures: Summary, currency: Currency) -> CostsAnswer:
    available = figures.available
    return CostsAnswer(
        granted=currency.worth(figures.granted),
        available=None if available is None else currency.worth(available),
        spent=currency.worth(figures.spent),
        remaining=None if available is None else currency.worth(available - figures.spent),
    )


class WindowAnswer(Answer):
    """A window of time: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class ExpectedAnswer(Answer):
    """The amount expected to be billed by the forecast's end; `cost` is null if the admin has set no currency."""

    billed: Money
    cost: float | None


class ItemForecastAnswer(Answer):
    """The amounts expected for an item of usage, at the pace of the last hour and of the last day.

    Each amount is null while less than ten minutes of its window were metered, or nothing was settled for ten minutes.
    It is also null if an account that pays a part of the item's use is in `notSettled` of the answer's `forecast`.
    """

    lastHour: ExpectedAnswer | None  # noqa: N815 - the wire's name
    lastDay: ExpectedAnswer | None  # noqa: N815 - the wire's name


class UsageForecastAnswer(Answer):
    """The end of a forecast, and the windows of past use that it extrapolates.

    `lastHour` or `lastDay` is null if its window is shorter than ten minutes, or ended more than ten minutes ago.
    `notSettled` names the accounts whose settlement has failed for more than ten minutes: items of the answer that
    contain use of these accounts have no forecast.
    """

    end: datetime
    lastHour: WindowAnswer | None  # noqa: N815 - the wire's name
    lastDay: WindowAnswer | None  # noqa: N815 - the wire's name
    notSettled: list[str]  # noqa: N815 - the wire's name


class UsageItem(Answer):
    """The figures of one key in one step: `key` maps each dimension in `aggregate` to its value.

    `billed` is what the ledger charged, with prices and corrections. `core` is the reserved GPU time, and `memory` the
    reserved part of device memory times the duration, both without a price. `used` is the GPU time that reports state,
    null without reports. `cost` is `billed` in the admin's currency, null if the admin has set none. In `key` the value
    `__idle__` stands for capacity that no pod held, and `__idle__ MODEL` for such capacity of one model. `forecast` is
    absent unless the request asks for it.
    """

    start: datetime
    end: datetime
    key: dict[str, str]
    billed: Money
    core: Money
    memory: Money
    used: Money | None
    cost: float | None
    forecast: ItemForecastAnswer | None = None


class UsageAnswer(Answer):
    """A page of usage, sorted by start and then by key; `next` is the cursor of the next page, null on the last.

    `step` is the length of each item's time, null if each item covers the whole window; `aggregate` names the
    dimensions of the keys. `currency` is null if the admin has set none. `forecast` is absent unless the request asks
    for it.
    """

    window: WindowAnswer
    step: str | None
    aggregate: list[str]
    currency: CurrencyAnswer | None
    items: list[UsageItem]
    next: str | None
    forecast: UsageForecastAnswer | None = None
