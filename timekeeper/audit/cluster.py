"""Reads budgets, pods and nodes as the API server has them, and recomputes budgets' limits and states from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from fairgpu.json_values import mapping
from timekeeper.audit.charges import Changes, PriceList
from timekeeper.audit.snapshot import SessionRecord
from timekeeper.domain.timestamps import Instant, TimeError, parse_duration
from timekeeper.sources.base import Mirrors, uid_of

GPU_HOUR = 3_600_000_000

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The limits in a GPUBudget's spec; amounts in microGPU-seconds, durations in nanoseconds.

    There is no grace at all if `grace_amount` and `grace_duration` are both None.

    Attributes:
        allowance: the allowance of a period; None for no limit.
        grace_amount: the amount that may be spent beyond the available amount; None for no such limit.
        grace_duration: the time after exhaustion in which pods run as before; None for no such limit.
        holds: whether an exhausted budget holds new pods behind a scheduling gate.
        observed: whether the limit is only observed and not enforced.
        simple: whether the budget's admission is `simple`, and not `safe`.
    """

    allowance: int | None
    grace_amount: int | None = None
    grace_duration: int | None = None
    holds: bool = False
    observed: bool = False
    simple: bool = True


def read_limits(spec: Json | None) -> BudgetLimits | None:
    """Reads the limits in a GPUBudget's spec.

    Args:
        spec: the spec as JSON; None for a budget without a limit.

    Returns:
        The limits; None if the spec is invalid: the leader then uses the budget's last valid version.
    """
    if spec is None:
        return BudgetLimits(None)
    grace = spec.get("grace") or {}
    try:
        return BudgetLimits(
            allowance=_amount(spec["allowance"]["gpuHours"]),
            grace_amount=_amount(grace["gpuHours"]) if "gpuHours" in grace else None,
            grace_duration=parse_duration(grace["duration"]) if "duration" in grace else None,
            holds=spec.get("onExhausted") == "hold",
            observed=spec.get("enforcement") == "observe",
            simple=spec.get("admission", "simple") == "simple",
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, TimeError):
        return None


def state(limits: BudgetLimits, available: int | None, spent: int, exhausted_at: Instant | None, now: Instant) -> str:
    """Returns the state that a budget's figures imply: unlimited, open, grace, over or held.

    Args:
        available: the available amount, in microGPU-seconds; None for no limit.
        spent: the amount spent, in microGPU-seconds.
        exhausted_at: the instant at which spending reached the available amount; None if it is unknown: the grace then
            ends only with its amount.
    """
    if available is None:
        return "unlimited"
    if spent < available:
        return "open"
    grace = limits.grace_amount is not None or limits.grace_duration is not None
    if limits.grace_amount is not None and spent - available >= limits.grace_amount:
        grace = False
    if limits.grace_duration is not None and exhausted_at is not None and now - exhausted_at >= limits.grace_duration:
        grace = False
    if grace:
        return "grace"
    return "held" if limits.holds else "over"


def acted_on(limits: BudgetLimits, true_state: str) -> str:
    """Returns the state on which admission acts: the true state, or open if the budget's limit is only observed."""
    return "open" if limits.observed and true_state != "unlimited" else true_state


def _amount(value: Any) -> int:
    return int(Decimal(str(value)) * GPU_HOUR)


DEFAULT_ACCOUNT = "namespace:"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The GPUBudgets, pods, claims and silent nodes of a cluster at one moment.

    Attributes:
        budgets: keyed by name, the GPUBudgets.
        pods: keyed by uid, the pods that hold or ask for a GPU.
        claims: keyed by uid, the ResourceClaims.
        silent: the names of the nodes whose Ready condition is Unknown, and of deleted nodes on which there are pods.
        template: the limits of a namespace that no budget names, from the default budget; None if they are invalid.
    """

    budgets: Mapping[str, Json] = field(default_factory=dict)
    pods: Mapping[str, Json] = field(default_factory=dict)
    claims: Mapping[str, Json] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    template: BudgetLimits | None = None

    def limits_of(self, account: str) -> BudgetLimits | None:
        """Returns the limits of an account; None if they are unknown.

        The limits of a budget are unknown if it is missing or invalid, or if its status shows that the leader still
        uses an earlier spec.
        """
        if account.startswith(DEFAULT_ACCOUNT):
            return self.template
        item = self.budgets.get(account)
        return None if item is None or _goes_on_as_before(item) else read_limits(mapping(item.get("spec")))


def read_cluster(mirrors: Mirrors, template: Json | None) -> ClusterView | None:
    """Reads the budgets, pods, claims and nodes for an audit from the mirrors.

    Args:
        mirrors: the objects of the API server, which another thread keeps current.
        template: the spec of the default budget; None for no limit.

    Returns:
        None while a collection that bills depend on has not been read yet.
    """
    if not mirrors.all_read:
        return None
    return ClusterView(
        budgets={str(mapping(item.get("metadata")).get("name")): item for item in mirrors.budgets.items()},
        pods={uid_of(item): item for item in mirrors.pods.items()},
        claims={uid_of(item): item for item in mirrors.claims.items()},
        silent=_silent(mirrors),
        template=read_limits(template),
    )


ReadCluster = Callable[[], ClusterView | None]
"""Returns the budgets and pods of the cluster as of the call; None while they cannot be read."""


def _goes_on_as_before(item: Json) -> bool:
    """Whether the leader still uses an earlier spec of a GPUBudget: it refused the present one, or has not read it."""
    status, metadata = mapping(item.get("status")), mapping(item.get("metadata"))
    refused = any(
        mapping(condition).get("type") == "Ready" and condition.get("status") == "False"
        for condition in status.get("conditions") or []
    )
    return refused or (bool(status) and status.get("observedGeneration", 0) != metadata.get("generation", 0))


def _silent(mirrors: Mirrors) -> frozenset[str]:
    """Returns the names of the silent nodes, and of pods' nodes whose Node object is deleted.

    A deleted node may have been silent. If the mirror has no node at all, nodes are not watched, and no node of a pod
    counts as deleted.
    """
    silent, present = set[str](), set[str]()
    for node in mirrors.nodes.items():
        present.add(name := str(mapping(node.get("metadata")).get("name")))
        for condition in mapping(node.get("status")).get("conditions") or []:
            if mapping(condition).get("type") == "Ready" and condition.get("status") == "Unknown":
                silent.add(name)
    held = {str(mapping(pod.get("spec")).get("nodeName") or "") for pod in mirrors.pods.items()} if present else set()
    return frozenset(silent | (held - present))


RESERVED, MAX = "reserved", "max"
"""Two of the three quantities that can be billed; the third is "used"."""


@dataclass(frozen=True, slots=True)
class AuditContext:
    """The inputs of an audit beside the snapshots of accounts.

    Attributes:
        payers: keyed by namespace, its payers in order of time, read after the snapshots.
        states: keyed by namespace, its published state as JSON.
        prices: the price of each model over time, as sessions were charged.
        cluster: budgets and pods, read before the snapshots; None if the API server cannot be read.
        settled: the instant up to which all sessions were settled before the snapshots; None if it is unknown.
        now: the time after the snapshots.
        bill: the quantity that is billed: reserved, used, or max, the larger of the two.
        from_binding: whether pods are metered from their binding on.
        since: the instant from which pods of other stacks are metered.
        left: the open sessions on silent nodes that the store still holds under former payers of their namespaces. Such
            a session stays under the account that paid at its last sign of life, but counts towards the rate of the
            present payer.
    """

    payers: Mapping[str, Changes]
    states: Mapping[str, str]
    prices: PriceList
    cluster: ClusterView | None
    settled: Instant | None
    now: Instant
    bill: str = RESERVED
    from_binding: bool = True
    since: Instant = 0
    left: Sequence[SessionRecord] = ()
