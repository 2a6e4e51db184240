"""What the REST API answers. The models are the schemas of /openapi.json, so that neither tells what the other denies.

Money is a decimal string of microGPU-seconds, which no JSON reader rounds, beside GPU-hours as a number for display.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fairgpu.states import BudgetState
from timekeeper.rest.figures import SessionFigures
from timekeeper.rules.money import GPU_HOUR, GPU_SECOND, gpu_hours
from timekeeper.rules.timestamps import to_datetime
from timekeeper.store.entries import LedgerEntry
from timekeeper.store.summaries import Summary

Exact = Annotated[str, Field(pattern=r"^-?[0-9]+$")]


class Answer(BaseModel):
    """Answers are made here, so that nothing is checked twice."""

    model_config = ConfigDict(frozen=True)


class Money(Answer):
    """An amount: exact, and for people. One GPU-hour is 3,600,000,000 microGPU-seconds."""

    microGPUSeconds: Exact  # noqa: N815 - the wire's name
    gpuHours: float  # noqa: N815 - the wire's name


class Rate(Answer):
    """What is being spent: exact a second, and as GPU-hours an hour, which is a number of GPUs."""

    microGPUSecondsPerSecond: Exact  # noqa: N815 - the wire's name
    gpus: float


class AccessAnswer(Answer):
    """Who asks, and whose figures they may read.

    `readsAll` is true for who may list every budget; then `namespaces` is empty, since it would name them all. Else it
    names those found that the caller may read; where `complete` is false there may be more, which a client asks for by
    name.
    """

    name: str
    readsAll: bool  # noqa: N815 - the wire's name
    grants: bool
    namespaces: list[str]
    complete: bool


class LedgerEntryAnswer(Answer):
    """One entry: what it added to the spend of its period, or for a grant to what is available there."""

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
    """A page of a ledger, oldest first. Ask with `cursor` for what follows; it is there even where nothing does yet."""

    budget: str
    entries: list[LedgerEntryAnswer]
    cursor: str


class SessionAnswer(Answer):
    """A pod's reservation on the meter; `end` is null while it runs, `amount` is that of the present period.

    `used` is the GPU time that its containers used, as its reports tell, over all starts of its sidecar; null before
    there is one. It is no money.
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


class SessionsAnswer(Answer):
    """A page of open sessions; `cursor` is null on the last page."""

    sessions: list[SessionAnswer]
    cursor: str | None


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
    """A report was taken, or was older than one that was; when to send the next, in seconds."""

    interval_s: int


class SafeAnswer(Answer):
    """What safe admission goes by: what pods that were let in may still spend, in microGPU-seconds, and its terms."""

    committed: Exact
    defaultCommitSeconds: int  # noqa: N815 - the wire's name
    hold: bool


class ChargeAnswer(Answer):
    """What the admin decides about charging: a best-effort share's least percent, and an unknown device's memory."""

    bestEffortFloorPercent: int = 10  # noqa: N815 - the wire's name
    unknownDeviceMiB: int = 16384  # noqa: N815 - the wire's name


class StateAnswer(Answer):
    """What the next pod of a namespace meets; amounts in microGPU-seconds, the rate per second.

    `enforced` is false where the budget is only observed; `safe` is there where its admission is.
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
    """States: all of them where `full`, else those that changed since the cursor that was asked with."""

    cursor: str
    full: bool
    states: list[StateAnswer]
    default: BudgetState
    prices: dict[str, float]
    charge: ChargeAnswer = ChargeAnswer()


class AncestorBudget(Answer):
    """A namespace's budget as the ancestor told it, in GPU-hours; null where nothing limits it."""

    budget_available: bool
    budget: float | None
    budget_remaining: float | None


class AncestorVerdict(Answer):
    """Whether the sidecar is to end, since the pod's other containers have."""

    terminate: bool


class Health(Answer):
    """A probe's answer."""

    status: str


class ProblemFault(Answer):
    """What is wrong with one field."""

    field: str
    given: str
    allowed: str


class Problem(Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemFault] | None = None


def money(amount: int) -> Money:
    """An amount as it is told."""
    return Money(microGPUSeconds=str(amount), gpuHours=gpu_hours(amount))


def ledger_entry(line: LedgerEntry) -> LedgerEntryAnswer:
    """A ledger's entry as it is told."""
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
    """A session as it is told."""
    session = figures.session
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
    )


def ancestor_budget(figures: Summary | None) -> AncestorBudget:
    """A namespace's budget as the ancestor told it."""
    if figures is None or figures.available is None:
        return AncestorBudget(budget_available=True, budget=None, budget_remaining=None)
    usable = figures.state in (BudgetState.OPEN, BudgetState.GRACE, BudgetState.UNLIMITED)
    remaining = (figures.available - figures.spent) / GPU_HOUR
    return AncestorBudget(budget_available=usable, budget=figures.available / GPU_HOUR, budget_remaining=remaining)


def rate(amount: int) -> Rate:
    """A rate as it is told."""
    return Rate(microGPUSecondsPerSecond=str(amount), gpus=amount / GPU_SECOND)


def moment(instant: int | None) -> datetime | None:
    """An instant in nanoseconds since 1970 as an answer tells it."""
    return None if instant is None else to_datetime(instant)
