"""The models of requests and answers of the REST API.

Request models are strict: a wrong field is named, and no value is guessed. Numbers are bounded, so that they fit the
store's integers.
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
"""The most devices in one report, over all its containers; the sidecar sends no more."""
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
    """The base of bodies that a person writes: an unknown field is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class _Reported(BaseModel):
    """The base of bodies that a sidecar sends: unknown fields, of later versions, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class DeviceReport(_Reported):
    """One container's use of one device since its sidecar started.

    `busyNs` is GPU time, `spanNs` the wall time with queued work, `throttledNs` the time for which launches were held
    back, `launches` the number of kernel launches, and `oom` the number of refused allocations of memory.
    """

    uuid: Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]
    busyNs: Counter  # noqa: N815 - the wire's name
    spanNs: Counter  # noqa: N815 - as above
    throttledNs: Counter  # noqa: N815 - as above
    memoryPeakMiB: Counter  # noqa: N815 - as above
    launches: Counter
    oom: Counter


class ContainerReport(_Reported):
    """One container's use of each of its devices, in a report."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    devices: Annotated[list[DeviceReport], Field(max_length=MAX_DEVICES)]

    @model_validator(mode="after")
    def _no_device_twice(self) -> Self:
        if len({device.uuid for device in self.devices}) != len(self.devices):
            raise ValueError("a device stands twice in one container")
        return self


class Report(_Reported):
    """One report of a sidecar: `boot` names its start, `seq` grows with each report of that start.

    A report that is `last` is taken however soon it follows another, since its sidecar ends.
    `v` is the version of the format.
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

    Without `expires` it expires with the present period.
    """

    budget: Name
    gpuHours: SignedGpuHours  # noqa: N815 - the wire's name
    reason: Reason
    name: Name | None = None
    expires: Timestamp | None = None


class CorrectionRequest(_Given):
    """A correction of a budget's spending in the period of `effectivePeriod`; below 0, the budget has spent less."""

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
    """A pod's proof of life in the format of FairGPU's ancestor, an earlier project; `usage_factor` is not used."""

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
    """An amount, exact and in GPU-hours. One GPU-hour is 3,600,000,000 microGPU-seconds."""

    microGPUSeconds: Exact  # noqa: N815 - the wire's name
    gpuHours: float  # noqa: N815 - the wire's name


class Rate(Answer):
    """A rate of spending: exact per second, and as GPU-hours per hour, which is a number of GPUs."""

    microGPUSecondsPerSecond: Exact  # noqa: N815 - the wire's name
    gpus: float


class AccessAnswer(Answer):
    """The caller and the namespaces that the caller may read.

    `readsAll` is true for a caller who may list every budget; `namespaces` is empty then. Else it lists the namespaces
    that were found readable; if `complete` is false there may be more, which a client asks for by name. `grants` is
    true for a caller who may grant money.
    """

    name: str
    readsAll: bool  # noqa: N815 - the wire's name
    grants: bool
    namespaces: list[str]
    complete: bool


class LedgerEntryAnswer(Answer):
    """One ledger entry; it added `amount` to its period's spending or, if it is a grant, to the available money."""

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
    """A page of a ledger, oldest first. `cursor` asks for later entries; it is set even if none follow yet."""

    budget: str
    entries: list[LedgerEntryAnswer]
    cursor: str


class PresentUseAnswer(Answer):
    """The busy part of the GPUs that a pod holds now, in percent from 0 to 100; advisory, and no part of any bill.

    `source` measured it, and `at` is the time of its answer. For a GPU that pods share, it is the whole GPU's figure if
    the source has none for each pod.
    """

    percent: float
    at: datetime
    source: Literal["prometheus"] = "prometheus"


class SessionAnswer(Answer):
    """A pod's reservation on the meter; `end` is null while it runs, `amount` is its cost in the present period.

    The allocation of a claim of Dynamic Resource Allocation is one session, whose `pod` is `resourceclaim/` and the
    claim's name; `heldIdle` is true while no pod reserves it. `chargedByRule` has the causes for which the cluster's
    objects do not state what a pod holds by another stack, such as `model-unknown`: it is charged by a rule.

    `used` is the GPU time that its containers used, by its reports over all starts of its sidecar; null before the
    first report. It is not money. `presentUse` is null unless the pod has no reports and Prometheus knows it.
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
    """A page of open sessions; `cursor` is null on the last page.

    `presentUseFrom` names the source of the sessions' present use; null if the admin has configured none.
    """

    sessions: list[SessionAnswer]
    cursor: str | None
    presentUseFrom: Literal["prometheus"] | None  # noqa: N815 - the wire's name


class GrantAnswer(Answer):
    """A grant as it was ordered. The ledger holds it a moment later."""

    name: str
    budget: str
    gpuHours: str  # noqa: N815 - the wire's name
    reason: str
    requestedBy: str  # noqa: N815 - the wire's name
    expires: str | None = None


class CorrectionAnswer(Answer):
    """A correction as it was ordered. The ledger holds it a moment later."""

    name: str
    budget: str
    gpuHours: str  # noqa: N815 - the wire's name
    effectivePeriod: str  # noqa: N815 - the wire's name
    namespace: str | None
    reason: str
    requestedBy: str  # noqa: N815 - the wire's name


class ReportAnswer(Answer):
    """The answer to a report that was accepted, or was older than one; `interval_s` is the seconds until the next."""

    interval_s: int


class SafeAnswer(Answer):
    """The terms of safe admission; `committed` is the amount that admitted pods may still spend, in microGPU-seconds.

    `defaultCommitSeconds` is the assumed run time of a pod without a deadline; `hold` is true if a pod that does not
    fit waits.
    """

    committed: Exact
    defaultCommitSeconds: int  # noqa: N815 - the wire's name
    hold: bool


class ChargeAnswer(Answer):
    """The admin's settings for charging: a best-effort share's least percent, and an unknown device's memory."""

    bestEffortFloorPercent: int = 10  # noqa: N815 - the wire's name
    unknownDeviceMiB: int = 16384  # noqa: N815 - the wire's name


class StateAnswer(Answer):
    """The state of a namespace, which its next pod meets; amounts in microGPU-seconds, the rate per second.

    `enforced` is false if the budget is only observed; `safe` is there only if its admission is safe.
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

    `default` is the state of a namespace that is not listed. `prices` has the GPU-hours charged for an hour of a whole
    GPU, keyed by model; `*` is any other model. `charge` has the rules by which a webhook assumes what a pod costs.
    """

    cursor: str
    full: bool
    states: list[StateAnswer]
    default: BudgetState
    prices: dict[str, float]
    charge: ChargeAnswer = ChargeAnswer()


class GPUFigures(Answer):
    """A part of one GPU: its time in percent, its memory, and the containers that run on it at a time."""

    corePercent: int  # noqa: N815 - the wire's name
    memoryMiB: int  # noqa: N815 - the wire's name
    containers: int


class GPUHolder(GPUFigures):
    """A pod's part of one GPU."""

    namespace: str
    name: str
    uid: str


class GPUOfNode(Answer):
    """A GPU of a node, and the parts of it that pods hold; `why` is the reason why it is fenced, if it is.

    A fenced GPU takes no new containers.
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
    """The GPUs of a node; `fault` is the fault of its inventory, if any, and `slots` the most containers on one GPU."""

    fault: str | None
    vendor: str | None = None
    driver: str | None = None
    slots: int | None = None
    devices: list[GPUOfNode]


class ObjectMetadata(Answer):
    """The identity of a GPUNode or GPUPod, and the resourceVersion from which a watch continues."""

    resourceVersion: str  # noqa: N815 - the wire's name
    name: str
    namespace: str | None = None
    uid: str | None = None
    creationTimestamp: str | None = None  # noqa: N815 - the wire's name


class ListMetadata(Answer):
    """The resourceVersion of a list, from which a watch continues."""

    resourceVersion: str  # noqa: N815 - the wire's name


class GPUNodeAnswer(Answer):
    """A node and its GPUs."""

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
    """A container's share of one GPU."""

    uuid: str
    model: str
    corePercent: int  # noqa: N815 - the wire's name
    memoryMiB: int  # noqa: N815 - the wire's name


class GPUContainer(Answer):
    """The shares of GPUs that one container of a pod holds."""

    name: str
    devices: list[GPUShare]


class GPUWait(Answer):
    """A reason why a pod waits: a scheduling gate, or the words of kube-scheduler or of FairGPU's scheduler."""

    by: Literal["gate", "kube-scheduler", "fairgpu"]
    why: str


class GPUPodStatus(Answer):
    """A GPU pod's stage, its shares of GPUs, and the reasons why it waits.

    `fault` is the reason why its allocation counts for nothing. `gang`, `reclaimAt`, `evictionAt` and `earmark` are
    the pod's annotations as they are.
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
    """A pod that asks for a part of a GPU."""

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
    """A namespace's budget in the format of FairGPU's ancestor, an earlier project; in GPU-hours, null for no limit."""

    budget_available: bool
    budget: float | None
    budget_remaining: float | None


class AncestorVerdict(Answer):
    """The answer to `POST /budget/{ns}/report`, in the format of FairGPU's ancestor, an earlier project.

    `terminate` is true once the pod's other containers have ended.
    """

    terminate: bool


class Health(Answer):
    """A probe's answer."""

    status: str


class ProblemFault(Answer):
    """The fault of one field of a request: the given value, and the values that are allowed."""

    field: str
    given: str
    allowed: str


class Problem(Answer):
    """The answer to a request that is not served: a problem document (RFC 9457)."""

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


def ancestor_budget(figures: Summary | None) -> AncestorBudget:
    """Returns a namespace's figures in the format of FairGPU's ancestor, in GPU-hours.

    Args:
        figures: the figures of the account that pays for the namespace; None, or figures without a limit, give null
            amounts.
    """
    if figures is None or figures.available is None:
        return AncestorBudget(budget_available=True, budget=None, budget_remaining=None)
    usable = figures.state in (BudgetState.OPEN, BudgetState.GRACE, BudgetState.UNLIMITED)
    remaining = (figures.available - figures.spent) / GPU_HOUR
    return AncestorBudget(budget_available=usable, budget=figures.available / GPU_HOUR, budget_remaining=remaining)


def rate(amount: int) -> Rate:
    """Returns a rate in microGPU-seconds a second as REST answers show it."""
    return Rate(microGPUSecondsPerSecond=str(amount), gpus=amount / GPU_SECOND)


def moment(instant: int | None) -> datetime | None:
    """Converts an instant (nanoseconds since 1970) to a datetime; None stays None."""
    return None if instant is None else to_datetime(instant)


class PeriodAnswer(Answer):
    """An accounting period: start inclusive, end exclusive."""

    start: datetime
    end: datetime


class CurrencyAnswer(Answer):
    """The cost of a GPU-hour at price 1 in the admin's currency, whose `code` is from ISO 4217."""

    code: str
    perGpuHour: float  # noqa: N815 - the wire's name


class CostsAnswer(Answer):
    """A budget's amounts in the currency, to a hundredth: for display."""

    granted: float
    available: float | None
    spent: float
    remaining: float | None


class StretchAnswer(Answer):
    """The exact amount spent between two instants, and the exhaustion that follows if the rate stays the same.

    `exhaustion` is null if it is not before the period's end, and if nothing is left already.
    """

    since: datetime
    until: datetime
    spent: Money
    rate: Rate
    exhaustion: datetime | None


class ForecastAnswer(Answer):
    """Forecasts from the spending of the last hour and of the last day; null until an account was settled twice."""

    lastHour: StretchAnswer | None  # noqa: N815 - the wire's name
    lastDay: StretchAnswer | None  # noqa: N815 - the wire's name


class ExpiringAnswer(Answer):
    """A grant with an expiry of its own, and the money left of it; spending burns the soonest to expire first."""

    grant: str
    remaining: Money
    expires: datetime


class GraceAnswer(Answer):
    """The grace of an exhausted budget: the money and the time left of it; null for a limit that is not set."""

    remaining: Money | None
    ends: datetime | None


class BudgetUseAnswer(Answer):
    """The present use of the GPUs that a budget's pods hold; advisory, and no part of any bill.

    `known` is the number of these GPUs whose use is known, and `busy` the busy part of it; both are without prices.
    `source` measured them, and `at` is the time of its answer.
    """

    busy: float
    known: float
    at: datetime
    source: Literal["prometheus"] = "prometheus"


class BudgetAnswer(Answer):
    """A budget in its present period. `available` and `remaining` are null if nothing limits the spending.

    `currency` and `costs` are null if the admin has set no currency. `state` is the state that pods meet;
    `computedState` is the one that they would meet if the budget were enforced. `committed` is the amount that admitted
    pods may still spend, if `admission` is safe. `expiring` are the grants that expire on their own, the soonest first.
    `grace` is null unless the budget is in grace. `presentUse` is null if it is unknown.
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
    """The budget that pays for a namespace; null if none does, and then the state is unlimited."""

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
        now: the instant of the forecast and of the grace, in nanoseconds since 1970.
        currency: the currency of amounts beside GPU-hours; None for none.
        uses: keyed by namespace, its present use; None if no use is known.
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
    """The amount that is expected to be billed; `cost` is in the display currency, null if there is no currency."""

    billed: Money
    cost: float | None


class ItemForecastAnswer(Answer):
    """The amounts expected for a key at the forecast's end, at the pace of the last hour and of the last day.

    They are null while less than ten minutes were metered, or nothing has been settled for ten minutes, and if an
    account that pays a part of the key's use is in the forecast's `notSettled`.
    """

    lastHour: ExpectedAnswer | None  # noqa: N815 - the wire's name
    lastDay: ExpectedAnswer | None  # noqa: N815 - the wire's name


class UsageForecastAnswer(Answer):
    """The end of a forecast, and the windows of past use that it extrapolates.

    `lastHour` or `lastDay` is null if its window is too short or too long ago. `notSettled` names the accounts whose
    settlement has failed for more than ten minutes: items of the answer that contain their use have no forecast.
    """

    end: datetime
    lastHour: WindowAnswer | None  # noqa: N815 - the wire's name
    lastDay: WindowAnswer | None  # noqa: N815 - the wire's name
    notSettled: list[str]  # noqa: N815 - the wire's name


class UsageItem(Answer):
    """The figures of one key in one step.

    `billed` is money as in the ledger; `core` and `memory` are what was reserved of GPU time and of device memory,
    without a price; `used` is the GPU time of reports, null if there are none; `cost` is `billed` in the display
    currency, null if there is none. The key `__idle__` is capacity that no pod held, and
    `__idle__ MODEL` such capacity of one model. `forecast` is there if the request asks for it: the amount that was
    billed in the window, and what pods add to it.
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

    `forecast` is there only if the request asks for it.
    """

    window: WindowAnswer
    step: str | None
    aggregate: list[str]
    currency: CurrencyAnswer | None
    items: list[UsageItem]
    next: str | None
    forecast: UsageForecastAnswer | None = None
