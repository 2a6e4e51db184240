"""The knowledge that a worker answers from, renewed by its background threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from fairgpu.permissions import Permission
from fairgpu.states import NamespaceState, StatesDocument
from webhook.admission.knowledge import Knowledge, PriorityClass, States


class Memory:
    """Holds one Knowledge at a time: readers take it whole, writers put another in its place.

    Attributes:
        knowledge: what is known at this moment.
    """

    def __init__(self) -> None:
        self.knowledge = Knowledge()
        # Guards the step from one Knowledge to the next, since several threads take it.
        self._lock = threading.Lock()
        self._permissions_known = False
        self._classes_known = False

    def missing(self, *, cluster: bool, states: bool) -> tuple[str, ...]:
        """What has to be known before the first pod can be admitted rightly, and is not.

        Args:
            cluster: whether there is an API server to know something of.
            states: whether the budgets' states are waited for.
        """
        needed = {"the timekeeper's CA": bool(self.knowledge.timekeeper_ca)}
        if states:
            needed["the budgets' states"] = self.knowledge.states is not None
        if cluster:
            needed |= {"namespaces": self._permissions_known, "priority classes": self._classes_known}
        return tuple(what for what, known in needed.items() if not known)

    def learn_states(self, document: StatesDocument, now: float) -> None:
        """Takes what the timekeeper answered at the monotonic second `now`; a change builds on what was known."""
        with self._lock:
            known = self.knowledge.states
            states: dict[str, NamespaceState] = {} if document.full or known is None else dict(known.by_namespace)
            states.update((state.namespace, state) for state in document.states)
            learnt = States(states, document.default, document.prices, now, document.charge)
            self.knowledge = replace(self.knowledge, states=learnt)

    def learn_permissions(self, permissions: Mapping[str, frozenset[Permission]]) -> None:
        """Takes the permissions of all namespaces that have any."""
        with self._lock:
            self.knowledge = replace(self.knowledge, permissions=permissions)
            self._permissions_known = True

    def learn_classes(self, classes: Mapping[str, PriorityClass], default: str | None) -> None:
        """Takes the PriorityClasses, and which of them is the cluster's default."""
        with self._lock:
            self.knowledge = replace(self.knowledge, classes=classes, default_class=default)
            self._classes_known = True

    def learn_authority(self, pem: str) -> None:
        """Takes the CA by which sidecars know the timekeeper."""
        with self._lock:
            if pem != self.knowledge.timekeeper_ca:
                self.knowledge = replace(self.knowledge, timekeeper_ca=pem)
