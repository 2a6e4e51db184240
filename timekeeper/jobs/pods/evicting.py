"""Decides which running pods of spent budgets are given notice and evicted, where the admin wants that."""

from __future__ import annotations

from functools import partial

from fairgpu.cluster.api import Json
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.figures import Figures
from timekeeper.jobs.memory.remedies import how_to_give_more
from timekeeper.jobs.pods.evictions import Due, due
from timekeeper.jobs.pods.writes import PodWrite, Step
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.budgets import Budget
from timekeeper.rules.money import SECOND, display
from timekeeper.rules.state import Enforcement
from timekeeper.rules.timestamps import format_exact, format_instant
from timekeeper.sources.source import Notice

FRESH = 30 * SECOND
"""Figures that are older are no ground to end anything: the money may have come back since."""


def evictions(books: Books, settled_at: int, now: int, without_notice_seconds: float) -> tuple[PodWrite, ...] | None:
    """Plans the writes to running pods of budgets that evict, and to pods that such a budget gave notice.

    None where the figures are too old to decide on.

    Args:
        books: what is known.
        settled_at: when the books were last brought up to date, in nanoseconds since 1970.
        now: the present, likewise.
        without_notice_seconds: how long a notice that cannot be written is tried before the pod goes without.
    """
    if now - settled_at > FRESH:
        return None
    return tuple(
        _write(step, books, name, without_notice_seconds)
        for name, facts in _pods_by_account(books).items()
        if name in books.figures
        for step in due(books.accounts[name].budget, books.figures[name], facts, settled_at)
    )


def _pods_by_account(books: Books) -> dict[str, list[PodFacts]]:
    """The pods of accounts that evict, and those that were given notice by one that does not any more."""
    found: dict[str, list[PodFacts]] = {}
    for pod in books.pods.facts.values():
        name = books.account_of(pod.namespace)
        account = books.accounts.get(name)
        if account is not None and (account.budget.enforcement is Enforcement.EVICT or pod.evict_at is not None):
            found.setdefault(name, []).append(pod)
    return found


def _write(step: Due, books: Books, name: str, without_notice_seconds: float) -> PodWrite:
    """A step with its events; behind a notice stands the eviction for when it cannot be written.

    Such a pod goes no sooner than its notice would have let it: its owner may not be the one who keeps the notice off.
    """
    budget, found, pod = books.accounts[name].budget, books.figures[name], step.pod
    written = partial(PodWrite, pod.uid, pod.namespace, pod.name, name)
    events = partial(_events, step=step, budget=budget, found=found)
    if step.step is not Step.NOTICE:
        return written(step.step, events=events)
    at_budget = books.budgets.objects.get(name)
    unannounced = partial(_events_without_notice, budget=budget, found=found, at_budget=at_budget)
    return written(
        Step.NOTICE,
        format_exact(step.at),
        events,
        instead=written(Step.EVICT, events=unannounced),
        instead_seconds=max(without_notice_seconds, budget.eviction_notice / SECOND),
    )


def _events(item: Json, step: Due, budget: Budget, found: Figures) -> tuple[Notice, ...]:
    return (notice_of(item, step, budget, found),)


def _events_without_notice(item: Json, budget: Budget, found: Figures, at_budget: Json | None) -> tuple[Notice, ...]:
    """The events of a pod that no notice could be written on, at the pod and at the budget."""
    metadata = item["metadata"]
    spent = _spent(budget, found)
    message = f"{spent}, and no notice could be written on this pod: it is evicted without."
    at_pod = Notice(item, "BudgetEviction", message, warning=True, occasion="without notice")
    if at_budget is None:
        return (at_pod,)
    message = (
        f"{spent}. No notice could be written on the pod {metadata['namespace']}/{metadata['name']}: it is evicted "
        "without."
    )
    return at_pod, Notice(at_budget, "BudgetEvictionWithoutNotice", message, warning=True, occasion=metadata["uid"])


def notice_of(item: Json, step: Due, budget: Budget, found: Figures) -> Notice:
    """The event that stands beside the pod."""
    spent = _spent(budget, found)
    if step.step is Step.NOTICE:
        message = (
            f"{spent}: this pod is evicted at {format_instant(step.at)} unless there is money by then. Save what it "
            f"has done. {how_to_give_more(budget)}."
        )
        return Notice(item, "BudgetEvictionNotice", message, warning=True, occasion=format_exact(step.at))
    if step.step is Step.EVICT:
        message = f"{spent}, and the notice is over: this pod is evicted."
        return Notice(item, "BudgetEviction", message, warning=True, occasion=format_exact(step.at))
    return Notice(item, "BudgetEvictionCalledOff", f"This pod goes on: {budget.name} lets it run again.")


def _spent(budget: Budget, found: Figures) -> str:
    return f"{display(found.spent)} of {display(found.limits.available or 0)} GPU-hours of {budget.name} are spent"
