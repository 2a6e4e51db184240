"""Composes the status documents of GPUBudgets, GPUGrants and GPUCorrections: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from timekeeper.controller.state.accounts import Account, Checkpoint
from timekeeper.controller.state.figures import Figures
from timekeeper.domain.budgets import Budget
from timekeeper.domain.credits import OWN, Credit, burn
from timekeeper.domain.forecast import Burn, lasts_until, runs_out_early
from timekeeper.domain.money import GPU_SECOND, SECOND, display
from timekeeper.domain.orders import Correction, Grant
from timekeeper.domain.periods import Period
from timekeeper.domain.state import Admission, Enforcement, OnExhausted
from timekeeper.domain.timestamps import Instant, format_exact, format_instant

Json = dict[str, Any]
THRESHOLDS = (("HalfSpent", 50), ("MostlySpent", 80), ("Exhausted", 100))

PASSING = ("spent", "remaining", "expiring", "burnRate", "projectedExhaustion", "forecast", "committed")
"""The fields of a status that change every second; a change of these alone is written only at intervals."""


def budget_status(account: Account, figures: Figures, now: Instant) -> Json:
    """Returns a budget's figures and checkpoint as its status, without conditions."""
    period_credits = account.credits.get(figures.period.start, {})
    status: Json = {
        "observedGeneration": account.budget.generation,
        "spent": _money(figures.spent),
        "granted": _money(figures.granted),
        "state": figures.state.value,
        "burnRate": f"{figures.rate / GPU_SECOND:.2f}",
        **checkpoint_status(account, figures, now),
    }
    if period_credits:
        expiring = account.expiring(figures.period).values()
        left = burn(account.own_money(figures.period), expiring, figures.period.end, figures.spent)
        status["expiring"] = [
            {"grant": name, **_money(amount), "expires": format_instant(period_credits[name].expires)}
            for name, amount in sorted(
                left.credits.items(), key=lambda item: (period_credits[item[0]].expires, item[0])
            )
            if not period_credits[name].expired
        ]
    if figures.limits.available is not None:
        status["available"] = _money(figures.limits.available)
        status["remaining"] = _money(figures.remaining)
        exhaustion = projected_exhaustion(figures, now)
        if exhaustion is not None:
            status["projectedExhaustion"] = format_instant(exhaustion)
    if account.budget.admission is Admission.SAFE:
        status["committed"] = {**_money(figures.committed), "lapsedPods": figures.overdue}
    forecast = _forecast(figures, now)
    if forecast:
        status["forecast"] = forecast
    return status


def checkpoint_status(account: Account, figures: Figures, now: Instant) -> Json:
    """Returns the checkpoint of an account in the form of a GPUBudget's status.

    The leader restores the account from it after the store was emptied.

    Args:
        now: the instant of the figures.
    """
    totals, period_credits = account.period_totals[figures.period.start], account.credits.get(figures.period.start, {})
    checkpoint: Json = {
        "period": format_instant(figures.period.start),
        "time": format_exact(now),
        "closedMicroGPUSeconds": str(totals.finalized),
        "version": totals.version,
    }
    if totals.previous_spent is not None:
        checkpoint["previousMicroGPUSeconds"] = str(totals.previous_spent)
        checkpoint["previousCorrectedMicroGPUSeconds"] = str(account.corrected_before(figures.period.start))
    if period_credits:
        checkpoint["pots"] = [_credit(credit) for _, credit in sorted(period_credits.items())]
    period = {"start": format_instant(figures.period.start), "end": format_instant(figures.period.end)}
    exhausted = {} if figures.exhausted_at is None else {"exhaustedAt": format_exact(figures.exhausted_at)}
    return {"period": period, "checkpoint": checkpoint, **exhausted}


def checkpoint_of(account: Account, figures: Figures, now: Instant) -> Checkpoint:
    """Returns the checkpoint of an account in the form in which the leader keeps it in memory.

    Args:
        now: the instant of the figures.
    """
    totals, period_credits = account.period_totals[figures.period.start], account.credits.get(figures.period.start, {})
    return Checkpoint(
        figures.period,
        now,
        totals.finalized,
        figures.exhausted_at,
        tuple(period_credits.values()),
        totals.previous_spent,
        totals.version,
        account.corrected_before(figures.period.start),
    )


def projected_exhaustion(figures: Figures, now: Instant) -> Instant | None:
    """Returns the instant at which a budget's money runs out at its present rate.

    Args:
        now: the instant of the figures.

    Returns:
        None if the money lasts for the period or is spent already, or if the budget has no limit.
    """
    if figures.remaining <= 0 or figures.rate <= 0:
        return None
    moment = now + figures.remaining * SECOND // figures.rate
    return moment if moment < figures.period.end else None


def conditions_of(
    figures: Figures | None,
    conflicts: Mapping[str, str],
    fault: Exception | None,
    now: Instant = 0,
    *,
    yields: bool = True,
    idle_quotas: Collection[str] = (),
) -> list[Json]:
    """Returns the conditions of a budget for its status.

    The conditions state whether the budget is valid, whether it pays for all its namespaces, the share of its money
    that is spent, and whether its money lasts. The last two are left out without figures, or without a limit.

    Args:
        figures: the budget's figures; None if there are none yet.
        conflicts: the namespaces that the budget names but another budget pays for, each with the name of that budget.
        fault: the reason why the budget is invalid; None if it is valid.
        now: the instant of the figures.
        yields: False if the budget should give its pods a lower priority but the settings forbid priority classes; the
            condition NothingYields is then added.
        idle_quotas: the budget's namespaces in which a quota on FairGPU's own resources counts no pod.
    """
    conditions = [
        _condition("Ready", fault is None, "Invalid" if fault else "Accepted", str(fault or "The budget is applied.")),
        _condition(
            "Conflict",
            bool(conflicts),
            "NamespaceTaken" if conflicts else "NoConflict",
            "; ".join(f"{namespace} is paid for by the older budget {payer}" for namespace, payer in conflicts.items())
            or "Every namespace is paid for by this budget.",
        ),
    ]
    if figures is not None and figures.limits.available is not None:
        for kind, percent in THRESHOLDS:
            reached = figures.spent * 100 >= figures.limits.available * percent
            reason = "Reached" if reached else "NotReached"
            message = f"{'At least' if reached else 'Less than'} {percent} percent of what is available is spent."
            conditions.append(_condition(kind, reached, reason, message))
        conditions.append(_runs_out_early(figures, now))
    if not yields:
        message = (
            "onExhausted: deprioritize acts on no pod where the mode is account and existing.classes is never: no "
            "pod gets a priority class there. Write onExhausted: hold, or enforcement: evict."
        )
        conditions.append(_condition("NothingYields", True, "NoPriorityClasses", message))
    if idle_quotas:
        message = (
            f"A quota on fairgpu.io/* counts nothing in {', '.join(sorted(idle_quotas))}: pods ask their stack "
            "for GPUs there. Write it for requests.nvidia.com/gpu, or for the stack's own resource."
        )
        conditions.append(_condition("QuotaCountsNothing", True, "ResourcesOfAnotherStack", message))
    return conditions


def deprioritizes(budget: Budget) -> bool:
    """Returns whether a budget, once its money is spent, lowers new pods' priority and neither holds nor evicts pods.

    False for a budget without an allowance.
    """
    return (
        budget.allowance is not None
        and budget.on_exhausted is OnExhausted.DEPRIORITIZE
        and budget.enforcement is Enforcement.ENFORCE
    )


def _runs_out_early(figures: Figures, now: Instant) -> Json:
    """Returns the condition RunsOutEarly of a budget: whether its money runs out before the period ends."""
    kind = "RunsOutEarly"
    if figures.remaining <= 0:
        return _condition(kind, True, "Spent", "All that is available is spent before the period's end.")
    if runs_out_early(figures.remaining, figures.burns, now, figures.period.end):
        message = "At the rate of the last hour, and at that of the last day, nothing is left before the period's end."
        return _condition(kind, True, "AtTheRateOfHourAndDay", message)
    message = "At the rate of the last hour, or at that of the last day, the money outlasts the period."
    return _condition(kind, False, "OutlastsThePeriod", message)


def _forecast(figures: Figures, now: Instant) -> Json:
    stretches: dict[str, Burn | None] = {"lastHour": figures.burns.hour, "lastDay": figures.burns.day}
    return {name: _stretch(burn, figures, now) for name, burn in stretches.items() if burn is not None}


def _stretch(burn: Burn, figures: Figures, now: Instant) -> Json:
    stretch = {
        "since": format_instant(burn.since),
        "spent": _money(burn.spent),
        "burnRate": f"{burn.rate / GPU_SECOND:.2f}",
    }
    exhaustion = lasts_until(figures.remaining, burn, now, figures.period.end)
    return stretch if exhaustion is None else {**stretch, "projectedExhaustion": format_instant(exhaustion)}


def with_conditions(status: Json, conditions: Iterable[Json], before: Json, generation: int, now: Instant) -> Json:
    """Returns a status with conditions added, and in each condition the time at which it last changed.

    Args:
        status: the other fields of the status.
        conditions: the type, status, reason and message of each condition.
        before: the status that the object has now.
        generation: the generation of the spec that the conditions describe.
    """
    earlier = {item.get("type"): item for item in before.get("conditions") or []}
    stamped = []
    for condition in conditions:
        last = earlier.get(condition["type"], {})
        same = last.get("status") == condition["status"]
        since = last["lastTransitionTime"] if same and last.get("lastTransitionTime") else format_instant(now)
        stamped.append({**condition, "observedGeneration": generation, "lastTransitionTime": since})
    return {**status, "conditions": stamped}


def lasting(status: Json) -> Json:
    """Returns a budget's status without the parts whose changes may be written later: PASSING, times, versions."""
    return {key: value for key, value in timeless(status).items() if key not in PASSING}


def timeless(status: Json) -> Json:
    """Returns a budget's status without the times and versions in its checkpoint and forecast, which always change.

    Forecasts with a burn rate of 0 are left out as well.
    """
    rest = dict(status)
    if "checkpoint" in rest:
        rest["checkpoint"] = {**rest["checkpoint"], "time": "", "version": 0}
    if rest.setdefault("forecast", {}):
        spending = {name: forecast for name, forecast in rest["forecast"].items() if forecast["burnRate"] != "0.00"}
        rest["forecast"] = {name: {**forecast, "since": ""} for name, forecast in spending.items()}
    return rest


def grant_status(grant: Grant, period: Instant | None, generation: int, now: Instant, before: Json) -> Json:
    """Returns the status of a grant that was applied, or whose period was over before it could be applied.

    Args:
        period: the start of its period; None if the grant was not applied.
        generation: the generation of the GPUGrant's spec.
        before: the status that the GPUGrant has now.
    """
    if period is None:
        message = "The period in which this grant was made is over and was never metered: nothing was added."
        lapsed = [_condition("Applied", False, "Lapsed", message)]
        return with_conditions({"applied": False, "observedGeneration": generation}, lapsed, before, generation, now)
    status = {
        "observedGeneration": generation,
        "applied": True,
        "period": format_instant(period),
        "appliedAt": format_exact(now),
        "microGPUSeconds": str(grant.amount),
    }
    until = "" if grant.expires is None else f" until {format_instant(grant.expires)}"
    done = "added to" if grant.amount > 0 else "taken from"
    message = f"{display(abs(grant.amount))} GPU-hours were {done} {grant.budget}{until}."
    applied = [_condition("Applied", True, "Added" if grant.amount > 0 else "Taken", message)]
    return with_conditions(status, applied, before, generation, now)


def correction_status(correction: Correction, period: Period, generation: int, now: Instant, before: Json) -> Json:
    """Returns the status of a correction that the ledger holds.

    Args:
        period: the period whose spending is corrected.
        generation: the generation of the GPUCorrection's spec.
        before: the status that the GPUCorrection has now.
    """
    status = {
        "observedGeneration": generation,
        "applied": True,
        "period": format_instant(period.start),
        "appliedAt": format_exact(now),
        "microGPUSeconds": str(correction.amount),
    }
    more = "more" if correction.amount > 0 else "less"
    message = (
        f"{correction.budget} has spent {display(abs(correction.amount))} GPU-hours {more} in the period from "
        f"{format_instant(period.start)}."
    )
    return with_conditions(status, [_condition("Applied", True, "Corrected", message)], before, generation, now)


def refused_order(reason: str, message: str, generation: int, now: Instant, before: Json) -> Json:
    """Returns the status of a grant or a correction that was refused, is invalid or lacks its budget.

    Args:
        reason: the reason as one word, for programs.
        message: the reason for people.
        generation: the generation of the object's spec.
        before: the status that the object has now.
    """
    condition = _condition("Applied", False, reason, message)
    return with_conditions({"applied": False, "observedGeneration": generation}, [condition], before, generation, now)


def _credit(credit: Credit) -> Json:
    written: Json = {"microGPUSeconds": str(credit.amount), "expires": format_exact(credit.expires)}
    if credit.name != OWN:
        written["grant"] = credit.name
    if credit.since:
        written["sinceMicroGPUSeconds"] = str(credit.since)
    if credit.expired:
        written["lapsed"] = True
    return written


def _money(amount: int) -> Json:
    return {"gpuHours": display(amount), "microGPUSeconds": str(amount)}


def _condition(kind: str, holds: bool, reason: str, message: str) -> Json:  # noqa: FBT001 - the condition's status
    return {"type": kind, "status": str(holds), "reason": reason, "message": message[:32768]}
