"""Budget states as the timekeeper publishes them and admission reads them: `GET /v1/states`.

A document is `{"cursor": "STOREID.VERSION", "full": bool, "states": [...], "prices": {...}, "charge": {...}, "default":
"unlimited", "unused": {...}}`. If `full` is true, each namespace that the document does not name is in the default
state. If the default budget has safe admission, `unused` is that state with the amounts of a period in which nothing is
spent yet. If `full` is false, the document has only the states that changed since the cursor of the request. Amounts
are microGPU-seconds in decimal strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairgpu.charging import ChargeRules


class BudgetState(StrEnum):
    """The state of a budget, which decides how a new pod of its namespaces is treated (docs/budgets.md).

    `unlimited`: the budget has no limit. `open`: it has money. `grace`: its money is spent, but its grace is not.
    `over`: money and grace are spent; a new pod gets the lower priority. `held`: money and grace are spent; a new pod
    waits behind the budget's scheduling gate.
    """

    UNLIMITED = "unlimited"
    OPEN = "open"
    GRACE = "grace"
    OVER = "over"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class SafeAdmission:
    """The figures of safe admission, which admits a pod only if uncommitted money pays for the pod's whole run.

    Attributes:
        committed: the money that is bound already, in microGPU-seconds: what admitted pods can still spend, and what
            the pods behind the gate need.
        default_commit_seconds: the length of the run that is assumed for a pod without activeDeadlineSeconds.
        hold: whether a pod waits behind the gate if the money does not pay for its whole run; if False, the pod is
            admitted as over budget.
    """

    committed: int
    default_commit_seconds: int
    hold: bool


class StatesError(ValueError):
    """A document is not a states document; the message says why."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """The state of a namespace's budget, with the figures that admission needs.

    Attributes:
        namespace: the namespace.
        budget: the budget that pays for the namespace; empty if it has none.
        state: the budget's state.
        available: allowance and grants of the period, in microGPU-seconds; 0 if unlimited.
        remaining: the part of `available` that is not spent, in microGPU-seconds; negative once overspent.
        rate: the spending of the budget's running reservations, in microGPU-seconds a second.
        enforced: whether the state has an effect; false if the budget is only observed.
        safe: the figures of safe admission; None if admission is simple.
    """

    namespace: str
    budget: str
    state: BudgetState
    available: int
    remaining: int
    rate: int
    enforced: bool = True
    safe: SafeAdmission | None = None


@dataclass(frozen=True, slots=True)
class StatesDocument:
    """One answer of the timekeeper to `GET /v1/states`.

    Attributes:
        cursor: the cursor of the next request: the store id and a version.
        full: whether each namespace that `states` does not name is in the default state; if False, `states` names only
            the namespaces whose states have changed since the request's cursor.
        states: the states, each namespace once.
        default: the state of a namespace that has no published state of its own.
        prices: GPU-hours charged for an hour of a whole GPU, keyed by model; `*` is any other model.
        charge: the admin's rules for charging.
        unused: for namespaces without a published state, if the default budget has safe admission: the default state
            with the amounts of a period in which nothing is spent yet, without a namespace's name; else None.
    """

    cursor: str
    full: bool
    states: tuple[NamespaceState, ...]
    default: BudgetState
    prices: Mapping[str, float]
    charge: ChargeRules = field(default_factory=ChargeRules)
    unused: NamespaceState | None = None


def encode_state(state: NamespaceState) -> dict[str, Any]:
    """Encodes the state of a namespace's budget as JSON, without `enforced` if true, and without `safe` if None."""
    document: dict[str, Any] = {
        "namespace": state.namespace,
        "budget": state.budget,
        "state": state.state.value,
        "available": str(state.available),
        "remaining": str(state.remaining),
        "rate": str(state.rate),
    }
    if not state.enforced:
        document["enforced"] = False
    if state.safe is not None:
        document["safe"] = {
            "committed": str(state.safe.committed),
            "defaultCommitSeconds": state.safe.default_commit_seconds,
            "hold": state.safe.hold,
        }
    return document


def encode_charge(rules: ChargeRules) -> dict[str, int]:
    """Encodes the admin's rules for charging as JSON, as a states document has them."""
    return {
        "bestEffortFloorPercent": rules.best_effort_floor_percent,
        "unknownDeviceMiB": rules.unknown_device_mib,
    }


def decode_document(document: Any) -> StatesDocument:
    """Returns the states in a states document. Unknown fields are ignored; `charge` and `unused` may be missing.

    Args:
        document: the body of an answer to `GET /v1/states`, as JSON.

    Raises:
        StatesError: another field is missing, or a value cannot be read, such as a state that this version lacks.
    """
    try:
        return StatesDocument(
            cursor=str(document["cursor"]),
            full=bool(document["full"]),
            states=tuple(decode_state(item) for item in document["states"]),
            default=BudgetState(document["default"]),
            prices={str(model): float(price) for model, price in document["prices"].items()},
            charge=_decode_charge(document.get("charge") or {}),
            unused=decode_state(document["unused"]) if document.get("unused") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StatesError(f"no states document: {error!r}") from error


def decode_state(item: Any) -> NamespaceState:
    """Decodes the state of a namespace's budget, as `encode_state` writes it; `enforced` and `safe` may be missing.

    Args:
        item: the state, as JSON.

    Raises:
        KeyError, TypeError, ValueError: another field is missing, or a value cannot be read.
    """
    return NamespaceState(
        namespace=str(item["namespace"]),
        budget=str(item["budget"]),
        state=BudgetState(item["state"]),
        available=int(item["available"]),
        remaining=int(item["remaining"]),
        rate=int(item["rate"]),
        enforced=item.get("enforced", True) is not False,
        safe=_decode_safe(item.get("safe")),
    )


def _decode_safe(item: Any) -> SafeAdmission | None:
    if item is None:
        return None
    return SafeAdmission(int(item["committed"]), int(item["defaultCommitSeconds"]), bool(item["hold"]))


def _decode_charge(item: Any) -> ChargeRules:
    usual = ChargeRules()
    return ChargeRules(
        best_effort_floor_percent=int(item.get("bestEffortFloorPercent", usual.best_effort_floor_percent)),
        unknown_device_mib=int(item.get("unknownDeviceMiB", usual.unknown_device_mib)),
    )
