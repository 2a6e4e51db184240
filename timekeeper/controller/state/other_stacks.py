"""Stores the devices that pods hold by other stacks; they are decided once, when a pod is first seen after its binding.

A new node's labels come minutes after its first pods. Until its model is known, a session is charged at the price of
`*`. Once the labels are there, within PROVISIONAL, the session is charged anew from its start by what they state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from fairgpu.cluster.api import Json
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.loading import from_now_on
from timekeeper.domain.attribution import attribution, read_origin
from timekeeper.domain.holdings.deciding import capacity, decide
from timekeeper.domain.holdings.holding import UNKNOWN_MODEL, Holding, holding_rate
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.holdings.observed import HostNode, read_bound_pod, read_host_node
from timekeeper.domain.money import GPU_SECOND
from timekeeper.domain.pricing import ONE
from timekeeper.domain.reservations import Reservation, tariff
from timekeeper.domain.timestamps import MINUTE
from timekeeper.sources.base import Mirrors, uid_of

PROVISIONAL = 10 * MINUTE
"""The time from a session's start for which labels of its node still decide what it holds."""

HeldOf = Callable[[Mapping[str, object]], tuple[Holding, ...]]
"""Returns the parts of GPUs that a bound pod holds by another stack."""


def holdings_of(mirrors: Mirrors, own: Mapping[str, Listed]) -> HeldOf:
    """Returns a function that decides what a bound pod holds on its node; its first call reads the mirror of nodes.

    Args:
        mirrors: the cluster, as last observed.
        own: the resources that the admin lists.
    """

    @cache
    def nodes() -> dict[str, Json]:
        return {str((item.get("metadata") or {}).get("name", "")): item for item in mirrors.nodes.items()}

    @cache
    def node(name: str) -> HostNode:
        return read_host_node(nodes().get(name, {}))

    def of(pod: Mapping[str, object]) -> tuple[Holding, ...]:
        spec = pod.get("spec")
        name = spec.get("nodeName") if isinstance(spec, dict) else None
        return decide(read_bound_pod(pod), node(str(name)), own).holdings

    return of


@dataclass(slots=True)
class OtherCapacity:
    """The capacity of nodes by other stacks; a node is examined again once it has changed."""

    _known: dict[str, tuple[Json, int]] = field(default_factory=dict)

    def rate(self, nodes: Sequence[Json], own: Mapping[str, Listed]) -> int:
        """Returns the capacity of all nodes, in microGPU-seconds a second."""
        found: dict[str, tuple[Json, int]] = {}
        for node in nodes:
            known = self._known.get(uid_of(node))
            if known is None or known[0] is not node:
                known = node, int(GPU_SECOND * capacity(read_host_node(node), own))
            found[uid_of(node)] = known
        self._known = found
        return sum(rate for _, rate in found.values())


def complete_holdings(books: Books, mirrors: Mirrors, held_of: HeldOf, now: int) -> set[str]:
    """Decides again what young sessions hold whose model was not known; returns the uids of those that changed."""
    changed = set()
    for metered in books.pods.sessions.all():
        session = metered.session
        if session.end is not None or now - session.start >= PROVISIONAL or not _lacks_model(session.holdings):
            continue
        pod = mirrors.pods.get(session.uid)
        found = held_of(pod) if pod is not None else ()
        if pod is None or not found or found == session.holdings:
            continue
        metered.reservation = Reservation((), holdings=found)
        since = max(session.start, metered.acknowledged.settled_until)  # periods that are over stay as they are
        rates = from_now_on(session.tariff, tariff(metered.reservation, books.prices, since, books.rules.charge))
        origin = read_origin(pod.get("metadata") or {})
        shown = attribution(origin, metered.reservation, books.rules.labels, books.rules.charge)
        if session.attribution is not None:
            shown = replace(shown, owner=session.attribution.owner, user=session.attribution.user)
        metered.session = replace(session, holdings=found, tariff=rates, attribution=shown)
        changed.add(session.uid)
    return changed


def unknown_models(books: Books) -> int:
    """Returns the rate of open sessions' holdings of unknown models at price 1, in microGPU-seconds a second."""
    return sum(
        holding_rate(holding, ONE, books.rules.charge.best_effort_floor_percent)
        for metered in books.pods.sessions.all()
        if metered.session.end is None
        for holding in metered.session.holdings
        if holding.model == UNKNOWN_MODEL
    )


def _lacks_model(holdings: tuple[Holding, ...]) -> bool:
    return any(holding.model == UNKNOWN_MODEL for holding in holdings)
