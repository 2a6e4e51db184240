"""The knowledge about the cluster by which admission decides, all in memory, so that no answer waits for a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fairgpu.charging import ChargeRules
from fairgpu.permissions import Permission
from fairgpu.states import BudgetState, NamespaceState

DEFAULT_PRICES: Mapping[str, float] = MappingProxyType({"*": 1.0})
NO_PERMISSIONS: frozenset[Permission] = frozenset()


@dataclass(frozen=True, slots=True)
class BudgetStates:
    """The budgets' states as the timekeeper last published them.

    Attributes:
        by_namespace: the namespaces that have a budget.
        default: the state of all others.
        prices: GPU-hours charged for an hour of a whole GPU, by model; `*` is any other.
        confirmed_at: monotonic seconds of the timekeeper's last answer.
        charge: the admin's rules for charging.
    """

    by_namespace: Mapping[str, NamespaceState]
    default: BudgetState
    prices: Mapping[str, float]
    confirmed_at: float
    charge: ChargeRules = field(default_factory=ChargeRules)

    def state_of(self, namespace: str) -> NamespaceState:
        """Returns the state of a namespace, by its own budget or by default."""
        known = self.by_namespace.get(namespace)
        return known if known is not None else NamespaceState(namespace, "", self.default, 0, 0, 0)


OtherClaim = tuple[str, str | None, str | None]
"""A ResourceClaim or a template as a pod names it: the pod's namespace, and the name of either; the other is None."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass; the API server refuses a pod of the class whose value or preemption policy differs from it."""

    name: str
    value: int
    preemption_policy: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The budgets' states, permissions, priority classes and CA at one moment.

    A namespace that `permissions` does not name has none.

    Attributes:
        states: the budgets' states; None until the timekeeper first answers.
        permissions: the permissions of namespaces beyond the default.
        classes: the live PriorityClasses by name; empty without an API server.
        default_class: the class that is globalDefault.
        timekeeper_ca: the CA that sidecars trust, in PEM.
        other_claims: the ResourceClaims and templates that ask for no GPU.
    """

    states: BudgetStates | None = None
    permissions: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    default_class: str | None = None
    timekeeper_ca: str = ""
    other_claims: frozenset[OtherClaim] = frozenset()

    def permissions_of(self, namespace: str) -> frozenset[Permission]:
        """Returns the permissions of a namespace."""
        return self.permissions.get(namespace, NO_PERMISSIONS)


def read_priority_class(item: Mapping[str, Any]) -> PriorityClass:
    """Parses a PriorityClass; its preemption policy is PreemptLowerPriority where it names none.

    https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#priorityclass
    """
    policy = item.get("preemptionPolicy") or "PreemptLowerPriority"
    return PriorityClass(item["metadata"]["name"], int(item.get("value") or 0), str(policy))
