"""Decides the parts of GPUs that pods hold by other stacks, when a pod is first observed after its binding.

A new node's labels come minutes after its first pods. Until they come, a session is charged for the model that a
cloud's label or the resource's name states, or else at the price of `*`. If the labels come within PROVISIONAL of the
session's start, they decide again, and the session is charged anew from its start. After that time the decision stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache

from fairgpu import names
from fairgpu.cluster.api import Json
from fairgpu.json_values import mapping
from timekeeper.controller.state.books import Books
from timekeeper.controller.state.loading import from_now_on
from timekeeper.domain.attribution import Origin, attribution
from timekeeper.domain.charges import rate_now
from timekeeper.domain.holdings import listed, nvidia
from timekeeper.domain.holdings.claims import FullName, extended_claim, without_claimed
from timekeeper.domain.holdings.deciding import capacity, decide
from timekeeper.domain.holdings.holding import (
    NOTHING,
    UNKNOWN_MODEL,
    Decision,
    Doubt,
    Holding,
    HostNode,
    holding_rate,
    read_host_node,
    summed,
)
from timekeeper.domain.holdings.listed import TABLE, Listed
from timekeeper.domain.pricing import ONE
from timekeeper.domain.reservations import Reservation, tariff
from timekeeper.domain.sessions import CLAIM, Session
from timekeeper.domain.timestamps import MINUTE
from timekeeper.domain.usage import own_capacity
from timekeeper.sources.base import Mirrors, name_of, uid_of
from timekeeper.sources.kubernetes import counts_own_resources

PROVISIONAL = 10 * MINUTE
"""The time from a session's start for which labels of its node still decide what it holds."""

HeldOf = Callable[[Mapping[str, object]], Decision]
"""A function from a bound pod (JSON) to the decision which parts of GPUs it holds by another stack."""


def holdings_of(mirrors: Mirrors, own: Mapping[str, Listed], drivers: frozenset[str]) -> HeldOf:
    """Returns a function that decides, from a bound pod as JSON, which parts of GPUs it holds by other stacks.

    The first call of that function reads the mirror of nodes. Extended resources that a pod has by a claim are left
    out, since the claim is metered.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name.
        drivers: the drivers of Dynamic Resource Allocation whose claims are metered.
    """

    @cache
    def nodes() -> dict[str, Json]:
        return {str((item.get("metadata") or {}).get("name", "")): item for item in mirrors.nodes.items()}

    @cache
    def claims() -> dict[FullName, Json]:
        return {_full_name(item): item for item in mirrors.claims.items()}

    @cache
    def node(name: str) -> HostNode:
        return read_host_node(nodes().get(name, {}))

    equal: dict[Decision, Decision] = {}
    """Each decision, keyed by itself, so that equal decisions are one object in memory: most of 50,000 pods hold the
    same.
    """

    def of(pod: Mapping[str, object]) -> Decision:
        spec = pod.get("spec")
        name = spec.get("nodeName") if isinstance(spec, dict) else None
        decision = decide(without_claimed(pod, claims, drivers), node(str(name)), own)
        return equal.setdefault(decision, decision)

    return of


@dataclass(slots=True)
class NodeCapacity:
    """Counts the GPUs of nodes for each model; it examines a node again only after the node has changed."""

    _known: dict[str, tuple[Json, Mapping[str, Fraction]]] = field(default_factory=dict)

    def gpus(self, nodes: Sequence[Json], own: Mapping[str, Listed] | None) -> dict[str, Fraction]:
        """Returns, keyed by model, the number of GPUs of all nodes, whether FairGPU or another stack shares them.

        Args:
            own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other
                stacks are not metered.
        """
        known: dict[str, tuple[Json, Mapping[str, Fraction]]] = {}
        for node in nodes:
            cached = self._known.get(uid_of(node))
            if cached is None or cached[0] is not node:
                others = {} if own is None else capacity(read_host_node(node), own)
                cached = node, summed([*own_capacity(node).items(), *others.items()])
            known[uid_of(node)] = cached
        self._known = known
        return summed(pair for _, gpus in known.values() for pair in gpus.items())


def _full_name(item: Json) -> FullName:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def complete_holdings(books: Books, mirrors: Mirrors, held_of: HeldOf, now: int) -> set[str]:
    """Decides the holdings of young sessions again if node labels, or a claim for the devices, came after the decision.

    A session is young while its age is below PROVISIONAL. If its holdings change, it is charged anew from its start;
    only final periods stay as they are. If all of its devices turn out to come from a claim, it costs nothing in the
    other periods, since the claim is charged.

    Args:
        books: the leader's state, which is changed.
        held_of: returns the parts of GPUs that a pod holds by other stacks.
        now: nanoseconds since 1970.

    Returns:
        The uids of the sessions whose holdings changed.
    """
    changed = set()
    labelled_later = _labelled_later(mirrors, books.rules.own_resources or {})
    for metered in books.pods.sessions.all():
        session = metered.session
        if session.end is not None or now - session.start >= PROVISIONAL:
            continue
        pod = mirrors.pods.get(session.uid)
        by_claim = bool(session.holdings) and pod is not None and extended_claim(pod) is not None
        if not (by_claim or _lacks_model(session.holdings) or labelled_later(session)):
            continue
        if session.pod.startswith(CLAIM):
            decision = books.claims.decide_again(session, mirrors, books.rules.drivers)
        else:
            decision = held_of(pod) if pod is not None else NOTHING
        if by_claim and not decision.holdings:
            decision = Decision(tuple(replace(holding, count=0) for holding in session.holdings))
        if not decision.holdings or decision.holdings == session.holdings:
            continue
        metered.reservation = Reservation((), holdings=decision.holdings, doubts=decision.doubts)
        since = max(session.start, metered.acknowledged.settled_until)  # periods that have ended stay as they are
        rates = from_now_on(session.tariff, tariff(metered.reservation, books.prices, since, books.rules.charge))
        shown = session.attribution
        if shown is not None:
            again = attribution(Origin(), metered.reservation, (), books.rules.charge)
            shown = replace(shown, model=again.model, core_rate=again.core_rate, memory_rate=again.memory_rate)
        doubts = tuple(sorted(decision.doubts))
        metered.session = replace(session, holdings=decision.holdings, doubts=doubts, tariff=rates, attribution=shown)
        changed.add(session.uid)
    return changed


def unknown_models(books: Books) -> int:
    """Returns the rate, at price 1, of the GPUs of unknown model in open sessions, in microGPU-seconds a second."""
    return sum(
        holding_rate(holding, ONE, books.rules.charge.best_effort_floor_percent)
        for metered in books.pods.sessions.all()
        if metered.session.end is None
        for holding in metered.session.holdings
        if holding.model == UNKNOWN_MODEL
    )


def doubtful(books: Books) -> Counter[Doubt]:
    """Returns, keyed by doubt, the number of open sessions that have it."""
    return Counter(
        doubt
        for metered in books.pods.sessions.all()
        if metered.session.end is None
        for doubt in metered.session.doubts
    )


def held_idle(books: Books, now: int) -> int:
    """Returns the rate of all allocated ResourceClaims that no pod reserves, in microGPU-seconds a second.

    Args:
        now: the instant of the prices, in nanoseconds since 1970.
    """
    return sum(
        rate_now(metered.session.tariff, now)
        for metered in books.pods.sessions.all()
        if metered.session.idle and metered.session.end is None
    )


def idle_quotas(books: Books, mirrors: Mirrors) -> frozenset[str]:
    """Returns the namespaces in which a ResourceQuota on FairGPU's own resources counts no pod.

    In the mode account, pods ask for the resources of another stack, so the quota counts none of them. A namespace
    without a label for its mode has the mode in the webhook's settings, which are not read here. Such a namespace
    counts as one of the mode account if another stack gave GPUs to a pod there that the webhook has labelled, and
    FairGPU's scheduler gave GPUs to no pod there.
    """
    counted = {_full_name(quota)[0] for quota in mirrors.quotas.items() if counts_own_resources(quota)}
    if not counted:
        return frozenset()
    modes = {name: "account" for name in counted if _only_accounts(books, mirrors, name)}
    for item in mirrors.namespaces.items():
        metadata = mapping(item.get("metadata"))
        mode = mapping(metadata.get("labels")).get(names.NAMESPACE_MODE)
        if mode:
            modes[str(metadata.get("name"))] = str(mode)
    return frozenset(name for name in counted if modes.get(name) == "account")


def _only_accounts(books: Books, mirrors: Mirrors, namespace: str) -> bool:
    sessions = [metered.session for metered in books.pods.sessions.of_namespaces([namespace])]
    running = [session for session in sessions if session.end is None]
    pods = (mirrors.pods.get(session.uid) for session in running)
    labelled = any(names.POD_LABEL in mapping(mapping((pod or {}).get("metadata")).get("labels")) for pod in pods)
    return labelled and all(session.holdings for session in running)


def _labelled_later(mirrors: Mirrors, own: Mapping[str, Listed]) -> Callable[[Session], bool]:
    """Returns a function that says whether a session's holdings were decided before its node had its labels.

    That is so if their model comes from a cloud's label or from the resource's name, although the node now has the
    label that names the model: that of NVIDIA's feature discovery, or the one listed for the resource.

    Args:
        own: the extended resources of other stacks that the admin lists, keyed by name.
    """
    nodes = cache(lambda: {name_of(node): node for node in mirrors.nodes.items()})
    defaults = listed.default_models(TABLE) | listed.default_models(own)

    @cache
    def host(name: str) -> HostNode:
        return read_host_node(nodes().get(name, {}))

    @cache
    def model_before(name: str) -> str:
        return nvidia.cloud_model(host(name)) if host(name).label(nvidia.PRODUCT) else ""

    def is_older(holding: Holding, node: str) -> bool:
        if holding.way == nvidia.WAY:
            return bool(holding.model) and holding.model == model_before(node)
        labels = defaults.get((holding.way, holding.model))
        return labels is not None and bool(host(node).label(*labels))

    return lambda session: any(is_older(holding, session.node) for holding in session.holdings)


def _lacks_model(holdings: tuple[Holding, ...]) -> bool:
    return any(holding.model == UNKNOWN_MODEL for holding in holdings)
