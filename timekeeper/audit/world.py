"""What the API server says of the figures that are audited: budgets, pods, and nodes that do not speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from timekeeper.audit.limits import BudgetLimits, read_limits
from timekeeper.sources.mirror import Mirror, uid_of
from timekeeper.sources.source import Mirrors

DEFAULT_ACCOUNT = "namespace:"

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """The objects at one moment.

    Attributes:
        budgets: GPUBudgets by name.
        pods: pods that hold or ask for a GPU, by uid.
        silent: nodes whose Ready condition is Unknown.
        template: the limits of a namespace that no budget names.
    """

    budgets: Mapping[str, Json] = field(default_factory=dict)
    pods: Mapping[str, Json] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    template: BudgetLimits | None = None

    def limits_of(self, account: str) -> BudgetLimits | None:
        """What an account's budget allows; None where its budget is gone or cannot be used."""
        if account.startswith(DEFAULT_ACCOUNT):
            return self.template
        item = self.budgets.get(account)
        return None if item is None or _goes_on_as_before(item) else read_limits(_mapping(item.get("spec")))


def see(mirrors: Mirrors, template: Json | None) -> World | None:
    """The world as the mirrors show it; None while one of them has not been filled.

    Args:
        mirrors: kept current by somebody else.
        template: the spec of the default budget; None for no limit.
    """
    if any(getattr(mirrors, name).confirmed_at is None for name in mirrors.__slots__):
        return None
    return World(
        budgets={str(_mapping(item.get("metadata")).get("name")): item for item in mirrors.budgets.items()},
        pods={uid_of(item): item for item in mirrors.pods.items()},
        silent=_silent(mirrors.nodes),
        template=read_limits(template),
    )


Look = Callable[[], World | None]
"""Looks at the world anew."""


def _goes_on_as_before(item: Json) -> bool:
    """Whether the books do not go by the spec as it stands: it cannot be used, or was not taken over yet."""
    status, metadata = _mapping(item.get("status")), _mapping(item.get("metadata"))
    refused = any(
        _mapping(condition).get("type") == "Ready" and condition.get("status") == "False"
        for condition in status.get("conditions") or []
    )
    return refused or (bool(status) and status.get("observedGeneration", 0) != metadata.get("generation", 0))


def _silent(nodes: Mirror) -> frozenset[str]:
    found = set()
    for node in nodes.items():
        for condition in _mapping(node.get("status")).get("conditions") or []:
            if _mapping(condition).get("type") == "Ready" and condition.get("status") == "Unknown":
                found.add(str(_mapping(node.get("metadata")).get("name")))
    return frozenset(found)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
