"""The knowledge about the cluster by which admission decides, all in memory, so that no answer waits for a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fairgpu.charging import ChargeRules
from fairgpu.permissions import Permission
from fairgpu.states import BudgetState, NamespaceState

DEFAULT_PRICES: Mapping[str, float] = MappingProxyType({"*": 1.0})
NO_PERMISSIONS: frozenset[Permission] = frozenset()


@dataclass(frozen=True, slots=True)
class BudgetStates:
    """The states of all budgets as the timekeeper last published them.

    Attributes:
        by_namespace: the states of the namespaces that have a budget, keyed by namespace.
        default: the state of all other namespaces.
        unused: if the default budget has safe admission, the default state with the amounts of a period in which
            nothing is spent yet, without a namespace's name; it is the state of all other namespaces. Else None.
        prices: GPU-hours charged for an hour of a whole GPU, keyed by model; `*` is any other model.
        confirmed_at: the time of the timekeeper's last answer, in seconds of the monotonic clock.
        charge: the admin's rules for charging.
    """

    by_namespace: Mapping[str, NamespaceState]
    default: BudgetState
    prices: Mapping[str, float]
    confirmed_at: float
    charge: ChargeRules = field(default_factory=ChargeRules)
    unused: NamespaceState | None = None

    def state_of(self, namespace: str) -> NamespaceState:
        """Returns a namespace's state; the default state if the namespace is not in `by_namespace`.

        The default state's amounts are 0 without safe admission, as no decision depends on them then.
        """
        known = self.by_namespace.get(namespace)
        if known is not None:
            return known
        if self.unused is not None:
            return replace(self.unused, namespace=namespace)
        return NamespaceState(namespace, "", self.default, 0, 0, 0)


OtherClaim = tuple[str, str | None, str | None]
"""A ResourceClaim or a template as a pod names it: the pod's namespace, the claim's name and the template's name. One
of the two names is None."""


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of Kubernetes. The API server refuses a pod of the class with any other value or policy.

    Attributes:
        name: the name of the class.
        value: the priority of the class's pods.
        preemption_policy: `PreemptLowerPriority` or `Never`.
    """

    name: str
    value: int
    preemption_policy: str


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The webhook's knowledge of the cluster at one moment, by which it decides on reviews.

    Attributes:
        states: the budgets' states; None until the timekeeper first answers.
        permissions: the permissions of the namespaces that have any, keyed by namespace.
        classes: the PriorityClasses of the cluster, keyed by name; empty without an API server.
        default_class: the name of the class that is globalDefault; None if no class is.
        timekeeper_ca: the CA that sidecars trust, in PEM; empty until it is known.
        other_claims: the ResourceClaims and ResourceClaimTemplates that ask for no GPU.
    """

    states: BudgetStates | None = None
    permissions: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    classes: Mapping[str, PriorityClass] = field(default_factory=dict)
    default_class: str | None = None
    timekeeper_ca: str = ""
    other_claims: frozenset[OtherClaim] = frozenset()

    def permissions_of(self, namespace: str) -> frozenset[Permission]:
        """Returns the permissions that a namespace's annotation `fairgpu.io/allow` grants; empty for none."""
        return self.permissions.get(namespace, NO_PERMISSIONS)


def read_priority_class(item: Mapping[str, Any]) -> PriorityClass:
    """Returns a PriorityClass from its JSON; the preemption policy is PreemptLowerPriority if the JSON names none.

    https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#priorityclass
    """
    policy = item.get("preemptionPolicy") or "PreemptLowerPriority"
    return PriorityClass(item["metadata"]["name"], int(item.get("value") or 0), str(policy))
