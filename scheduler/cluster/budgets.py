"""Where the budgets of namespaces stand now, as the timekeeper publishes it. No money is computed here."""

from __future__ import annotations

import threading
from enum import Enum

from fairgpu.states import BudgetState, NamespaceState, StatesDocument


class Standing(Enum):
    """What a budget's state means for a pod that is to be placed."""

    IN_BUDGET = "in budget"
    """It has money, or nothing follows from its state, or its state was never known."""
    OVER = "over budget"
    """It is placed where nobody within a budget waits."""
    HELD = "held"
    """It is not placed."""


class Budgets:
    """The states that were learned. Safe to use from several threads.

    Attributes:
        version: grows with each change of a state.
        timekeeper_ca: the CA by which the timekeeper is known; empty before it was learned.
    """

    def __init__(self) -> None:
        self.version = 0
        self.timekeeper_ca = ""
        self._by_namespace: dict[str, NamespaceState] = {}
        self._default = BudgetState.UNLIMITED
        self._lock = threading.Lock()

    def learn_authority(self, pem: str) -> None:
        """Takes the timekeeper's CA."""
        self.timekeeper_ca = pem

    def learn_states(self, document: StatesDocument, now: float) -> None:  # noqa: ARG002 - states have no age here
        """Takes what the timekeeper answered; a state once known holds however old it is."""
        with self._lock:
            known = {} if document.full else dict(self._by_namespace)
            known.update((state.namespace, state) for state in document.states)
            before = {name: state.state for name, state in self._by_namespace.items()}
            if before != {name: state.state for name, state in known.items()} or document.default != self._default:
                self.version += 1
            self._by_namespace, self._default = known, document.default

    def standing(self, namespace: str) -> Standing:
        """Where the budget of a namespace stands."""
        known = self._by_namespace.get(namespace)
        state = known.state if known is not None else self._default
        if known is not None and not known.enforced:
            return Standing.IN_BUDGET
        return {BudgetState.OVER: Standing.OVER, BudgetState.HELD: Standing.HELD}.get(state, Standing.IN_BUDGET)

    def name(self, namespace: str) -> str:
        """The budget that pays for a namespace; empty where it has none."""
        known = self._by_namespace.get(namespace)
        return known.budget if known is not None else ""
