"""The states of namespaces' budgets, as the timekeeper publishes them. No money is computed here."""

from __future__ import annotations

import threading
from enum import Enum

from fairgpu.states import BudgetState, NamespaceState, StatesDocument


class BudgetEffect(Enum):
    """The effect of a budget's state on the pods of its namespaces: whether the extender places them."""

    IN_BUDGET = "in budget"
    """The budget has money, its state has no effect on pods, or the timekeeper has never answered."""
    OVER = "over budget"
    """The pod is placed only if its priority is below that of each pod within budget that waits for devices
    (`State.lowest_in_budget`)."""
    HELD = "held"
    """The pod is not placed."""


_EFFECTS = {BudgetState.OVER: BudgetEffect.OVER, BudgetState.HELD: BudgetEffect.HELD}


class Budgets:
    """The last known state of each namespace's budget, as the timekeeper publishes it. Thread-safe.

    Attributes:
        version: a number that grows with each change of a budget's effect or name, or of the default state.
        any_over: whether any budget, or the default state, has the effect BudgetEffect.OVER.
        confirmed_at: when the timekeeper last confirmed the states, in monotonic seconds; None before the first time.
        timekeeper_ca: the CA certificate, in PEM, that signed the timekeeper's certificate; empty until it is known.
    """

    def __init__(self) -> None:
        self.version = 0
        self.any_over = False
        self.confirmed_at: float | None = None
        self.timekeeper_ca = ""
        self._by_namespace: dict[str, NamespaceState] = {}
        self._default = BudgetState.UNLIMITED
        self._lock = threading.Lock()

    def learn_authority(self, pem: str) -> None:
        """Stores the CA certificate of the timekeeper, in PEM."""
        self.timekeeper_ca = pem

    def learn_states(self, document: StatesDocument, now: float) -> None:
        """Stores the budget states in an answer of the timekeeper.

        A stored state stays in force until a later answer changes it, or an answer for all namespaces lacks it.

        Args:
            document: the answer: the states of all namespaces, or only those that have changed.
            now: the present time, in seconds of a monotonic clock.
        """
        with self._lock:
            self.confirmed_at = now
            known = {} if document.full else dict(self._by_namespace)
            known.update((state.namespace, state) for state in document.states)
            effects = {name: _effect(state) for name, state in known.items()}
            before = {name: _effect(state) for name, state in self._by_namespace.items()}
            if before != effects or document.default != self._default:
                self.version += 1
            present = {_EFFECTS.get(document.default), *(effect for effect, _ in effects.values())}
            self.any_over = BudgetEffect.OVER in present
            self._by_namespace, self._default = known, document.default

    def effect(self, namespace: str) -> BudgetEffect:
        """Returns the effect of a namespace's budget on the placement of its pods."""
        return self.effect_and_name(namespace)[0]

    def effect_and_name(self, namespace: str) -> tuple[BudgetEffect, str]:
        """Returns the effect of a namespace's budget on its pods, and the budget's name.

        For a namespace whose state the timekeeper has not published, the effect is that of the timekeeper's default
        state, and the name is empty. Effect and name come from the same answer of the timekeeper.
        """
        with self._lock:
            known, state = self._by_namespace.get(namespace), self._default
        return (_EFFECTS.get(state, BudgetEffect.IN_BUDGET), "") if known is None else _effect(known)


def _effect(known: NamespaceState) -> tuple[BudgetEffect, str]:
    effect = _EFFECTS.get(known.state, BudgetEffect.IN_BUDGET) if known.enforced else BudgetEffect.IN_BUDGET
    return effect, known.budget
