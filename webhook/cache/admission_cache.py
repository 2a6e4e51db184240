"""The knowledge by which a worker answers reviews, and which its background threads keep current."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from fairgpu.permissions import Permission
from fairgpu.states import NamespaceState, StatesDocument
from webhook.admission.knowledge import BudgetStates, Knowledge, OtherClaim, PriorityClass


class AdmissionCache:
    """The present knowledge of one worker of the webhook: reviews read it, and the watches replace it. Thread-safe.

    Attributes:
        knowledge: the knowledge at this moment, a frozen value that each storing method replaces as a whole.
    """

    def __init__(self) -> None:
        self.knowledge = Knowledge()
        # Guards the replacement of the Knowledge, which several threads do.
        self._lock = threading.Lock()
        self._permissions_known = False
        self._classes_known = False
        self._other_claims: dict[str, frozenset[OtherClaim]] = {}

    def missing(self, *, cluster: bool, states: bool) -> tuple[str, ...]:
        """Returns the names of the knowledge that the first review still waits for; empty once all has arrived.

        Args:
            cluster: whether there is an API server, and so namespaces and priority classes to wait for.
            states: whether reviews wait for the budgets' states.
        """
        needed = {"the timekeeper's CA": bool(self.knowledge.timekeeper_ca)}
        if states:
            needed["the budgets' states"] = self.knowledge.states is not None
        if cluster:
            needed |= {"namespaces": self._permissions_known, "priority classes": self._classes_known}
        return tuple(what for what, known in needed.items() if not known)

    @property
    def timekeeper_ca(self) -> str:
        """The CA that signed the timekeeper's certificate, in PEM; empty until it is known."""
        return self.knowledge.timekeeper_ca

    def learn_states(self, document: StatesDocument, now: float) -> None:
        """Stores the states of the timekeeper's answer; an answer that is not `full` leaves other states as they are.

        Args:
            document: the timekeeper's answer.
            now: the time at which the answer was received, in seconds of the monotonic clock.
        """
        with self._lock:
            known = self.knowledge.states
            states: dict[str, NamespaceState] = {} if document.full or known is None else dict(known.by_namespace)
            states.update((state.namespace, state) for state in document.states)
            updated = BudgetStates(states, document.default, document.prices, now, document.charge, document.unused)
            self.knowledge = replace(self.knowledge, states=updated)

    def learn_permissions(self, permissions: Mapping[str, frozenset[Permission]]) -> None:
        """Stores the permissions of all namespaces, in place of the earlier ones.

        Args:
            permissions: the permissions of the namespaces that have any, keyed by namespace.
        """
        with self._lock:
            self.knowledge = replace(self.knowledge, permissions=permissions)
            self._permissions_known = True

    def learn_classes(self, classes: Mapping[str, PriorityClass], default: str | None) -> None:
        """Stores the cluster's PriorityClasses, in place of the earlier ones.

        Args:
            classes: all PriorityClasses, keyed by name.
            default: the name of the class that is globalDefault; None if no class is.
        """
        with self._lock:
            self.knowledge = replace(self.knowledge, classes=classes, default_class=default)
            self._classes_known = True

    def learn_other_claims(self, kind: str, claims: frozenset[OtherClaim]) -> None:
        """Stores the claims or templates that ask for no GPU, in place of the earlier ones of the same kind.

        Args:
            kind: `resourceclaims` or `resourceclaimtemplates`.
            claims: these claims or templates, each in the form that `OtherClaim` describes.
        """
        with self._lock:
            self._other_claims[kind] = claims
            others: frozenset[OtherClaim] = frozenset().union(*self._other_claims.values())
            self.knowledge = replace(self.knowledge, other_claims=others)

    def learn_authority(self, pem: str) -> None:
        """Stores the certificate, in PEM, of the CA by which sidecars verify the timekeeper."""
        with self._lock:
            if pem != self.knowledge.timekeeper_ca:
                self.knowledge = replace(self.knowledge, timekeeper_ca=pem)
