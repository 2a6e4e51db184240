"""Views of the mirrors: budgets, grants, corrections and pods, with the sessions of the pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

from timekeeper.controller.state.sessions import MeterRules, Meters, departed, missing, opened, seen
from timekeeper.domain.budgets import Budget, BudgetError, parse_budget
from timekeeper.domain.orders import Correction, CorrectionError, Grant, GrantError, parse_correction, parse_grant
from timekeeper.domain.periods import PeriodRule
from timekeeper.domain.pods import PodFacts, read_pod
from timekeeper.domain.sessions import silent_nodes
from timekeeper.domain.timestamps import SKEW
from timekeeper.sources.base import Departure, Mirror, Mirrors, uid_of

Json = dict[str, Any]
Value = TypeVar("Value")
Fault = TypeVar("Fault", bound=ValueError)
Reported = Callable[[str], int | None]
"""Returns the instant of a pod's last report, by the pod's uid."""


@dataclass(slots=True)
class BudgetView:
    """The budgets, grants and corrections as last read; what cannot be used is kept apart with the reason.

    A budget that becomes unusable goes on as it last was: a typing error stops nobody. What each last was is kept in
    the store, beyond this term and its deletion: of one that is gone it says when the periods began that it still pays.

    Attributes:
        kept: each budget as it last could be used.
        stored: those of them that the store is known to hold.
        unreadable: those that the store holds and that cannot be read, and why.
    """

    budgets: dict[str, Budget] = field(default_factory=dict)
    objects: dict[str, Json] = field(default_factory=dict)
    budget_faults: dict[str, BudgetError] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    grant_objects: dict[str, Json] = field(default_factory=dict)
    grant_faults: dict[str, GrantError] = field(default_factory=dict)
    corrections: dict[str, Correction] = field(default_factory=dict)
    correction_objects: dict[str, Json] = field(default_factory=dict)
    correction_faults: dict[str, CorrectionError] = field(default_factory=dict)
    kept: dict[str, Json] = field(default_factory=dict)
    stored: dict[str, Json] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    _rules: dict[str, tuple[Json, PeriodRule]] = field(default_factory=dict)

    def take_stored(self, stored: dict[str, Json], unreadable: dict[str, str]) -> None:
        """Takes over what the store holds; what is kept here is newer."""
        self.stored, self.unreadable = stored, unreadable
        self.kept = {**stored, **{name: item for name, item in self.kept.items() if stored.get(name) != item}}

    def unknown(self) -> dict[str, str]:
        """The budgets whose last usable version is lost, and why."""
        return {name: why for name, why in self.unreadable.items() if name not in self.kept}

    def not_stored(self) -> dict[str, Json]:
        """The kept budgets that the store does not hold yet."""
        return {name: item for name, item in self.kept.items() if self.stored.get(name) is not item}

    def forget(self, name: str) -> None:
        """Drops a deleted budget that pays for nothing any more."""
        for known in (self.kept, self.stored, self._rules):
            known.pop(name, None)

    def last_rule(self, name: str) -> PeriodRule | None:
        """The period rule of a budget, or its last one before its deletion; None where it is lost."""
        item = self.kept.get(name)
        if item is None:
            return None
        known = self._rules.get(name)
        if known is None or known[0] is not item:
            known = self._rules[name] = (item, parse_budget(item).period)
        return known[1]

    def refresh(self, mirrors: Mirrors) -> None:
        """Reads what has changed in the mirrors."""
        before = self.objects
        self.objects = _read(mirrors.budgets, self.objects, self.budgets, self.budget_faults, parse_budget)
        for name, item in self.objects.items():
            if before.get(name) is not item or name not in self.budgets:
                self._keep(name, item)
        self.grant_objects = _read(mirrors.grants, self.grant_objects, self.grants, self.grant_faults, parse_grant)
        self.correction_objects = _read(
            mirrors.corrections, self.correction_objects, self.corrections, self.correction_faults, parse_correction
        )

    def _keep(self, name: str, item: Json) -> None:
        """Keeps a budget that can be used; of one that cannot, takes what was kept of it."""
        if name not in self.budget_faults:
            lasting = _lasting(item)
            if self.kept.get(name) != lasting:
                self.kept[name] = lasting
        elif name not in self.budgets and uid_of(self.kept.get(name, {})) == uid_of(item):
            self.budgets[name] = parse_budget(self.kept[name])


def _lasting(item: Json) -> Json:
    """A budget without its status and without what the API server keeps for itself."""
    metadata = item.get("metadata") or {}
    named = {key: metadata[key] for key in ("name", "uid", "creationTimestamp", "generation") if key in metadata}
    return {"metadata": named, "spec": item.get("spec")}


def _read(
    mirror: Mirror,
    known: dict[str, Json],
    values: dict[str, Value],
    faults: dict[str, Fault],
    parse: Callable[[Json], Value],
) -> dict[str, Json]:
    """Reads the objects that changed since those that are known into values and faults; all that there are now."""
    items = {_name(item): item for item in mirror.items()}
    for name in known.keys() - items.keys():
        values.pop(name, None)
        faults.pop(name, None)
    for name, item in items.items():
        if known.get(name) is item:
            continue
        try:
            values[name] = parse(item)
            faults.pop(name, None)
        except (BudgetError, GrantError, CorrectionError) as error:
            faults[name] = cast("Fault", error)
    return items


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks; each returns nanoseconds since 1970.

    Attributes:
        ours: asked once the mirrors have been read: what they show is over by then, however long this process stood
            still since the instant that it was given.
        witness: a third clock, for when ours and the API server's differ.
    """

    ours: Callable[[], int]
    witness: Callable[[], int]


@dataclass(slots=True)
class PodView:
    """The pods and their sessions, by uid."""

    facts: dict[str, PodFacts] = field(default_factory=dict)
    sessions: Meters = field(default_factory=Meters)
    namespaces: set[str] = field(default_factory=set)
    stirred: set[str] = field(default_factory=set)
    """Namespaces in which a waiting pod was created, deleted or changed since the last take_stirred()."""
    let_in: dict[str, int] = field(default_factory=dict)
    """When pods left their last scheduling gate in this term, by uid."""
    newest: int = 0
    """The latest creation stamp that is believed: it is not earlier than that, whatever our clock says."""
    as_of: int = 0
    """The instant of the last refresh: everything that it observed had happened by then."""
    ahead: int = 0
    """How far the latest creation stamp of a pod that is there lies ahead of our clock, in nanoseconds."""
    _objects: dict[str, Json] = field(default_factory=dict)
    _behind: bool = True

    def refresh(
        self,
        mirror: Mirror,
        rules: MeterRules,
        silent: dict[str, int],
        reported: Reported,
        now: int,
        clocks: Clocks,
    ) -> set[str]:
        """Takes over the mirror's pods and departures, if there are new ones; the uids of the sessions that changed.

        Where our clock is behind what the API server has stamped, that counts: an end is clamped to what is over. A
        stamp far ahead of it counts only where the witness says that it is ours that is wrong.
        """
        self.as_of = max(now, self.newest)
        if not mirror.wait_for_change(0) and not self._behind:
            return set()
        self._behind = True
        changed: set[str] = set()
        items = {uid_of(item): item for item in mirror.items()}
        seen_at = now = max(now, clocks.ours())
        fresh = {uid: read_pod(item) for uid, item in items.items() if self._objects.get(uid) is not item}
        self.newest = latest_believed([self.newest, *(facts.created for facts in fresh.values())], now, clocks.witness)
        self.as_of = now = max(now, self.newest)
        for facts in fresh.values():
            self._take_in(facts, now)
            changed |= self._observe(facts, rules, silent, reported, now)
        departures = mirror.take_departures()
        self.as_of = now = max(now, clocks.ours())
        changed |= self._depart_all(mirror, departures, silent, reported, now)
        for uid in self.facts.keys() - items.keys():
            self._stir(self.facts.pop(uid))
            self.let_in.pop(uid, None)
        self.ahead = max(
            (facts.created - seen_at for facts in self.facts.values() if facts.created > seen_at), default=0
        )
        self.namespaces = {facts.namespace for facts in self.facts.values()}
        self._objects = items
        self._behind = False
        return changed

    def _take_in(self, facts: PodFacts, now: int) -> None:
        """Takes over a pod's facts."""
        self._stir(facts)
        known = self.facts.get(facts.uid)
        if known is not None and _is_gated(known) and not _is_gated(facts):
            self.let_in[facts.uid] = now
        self.facts[facts.uid] = facts

    def _depart_all(
        self, mirror: Mirror, departures: list[Departure], silent: dict[str, int], reported: Reported, now: int
    ) -> set[str]:
        """Ends the sessions of deleted pods; after an error, the mirror returns the remaining departures again."""
        changed: set[str] = set()
        while departures:
            try:
                changed |= self._depart(departures[0], silent, reported, now)
            except Exception:
                mirror.return_departures(departures)
                raise
            departures.pop(0)
        return changed

    def take_stirred(self) -> set[str]:
        """The namespaces that were stirred since the last call."""
        stirred, self.stirred = self.stirred, set()
        return stirred

    def _stir(self, facts: PodFacts) -> None:
        if facts.reservation is not None and not facts.bound:
            self.stirred.add(facts.namespace)

    def end_missing(self, watched: int | None, reported: Reported, now: int) -> set[str]:
        """Ends the sessions of the store whose pods no longer exist."""
        gone = [m for m in self.sessions.all() if m.session.uid not in self.facts and not m.pod_gone]
        for metered in gone:
            missing(metered, watched or 0, reported(metered.session.uid), now)
        return {metered.session.uid for metered in gone}

    def _observe(
        self, facts: PodFacts, rules: MeterRules, silent: dict[str, int], reported: Reported, now: int
    ) -> set[str]:
        def alive() -> int | None:
            since = silent.get(facts.node)
            return None if since is None else max(since, reported(facts.uid) or 0)

        metered = self.sessions.get(facts.uid)
        if metered is not None:
            before = metered.session
            seen(metered, facts, rules, alive, now)
            return {facts.uid} if metered.session is not before else set()
        metered = opened(facts, rules, now)
        if metered is None:
            return set()
        self.sessions.keep(metered)
        return {facts.uid}

    def _depart(self, departure: Departure, silent: dict[str, int], reported: Reported, now: int) -> set[str]:
        metered = self.sessions.get(uid_of(departure.item))
        if metered is None:
            return set()
        uid = metered.session.uid
        if metered.session.end is not None:
            metered.pod_gone = True  # neither the pod nor its reports change this end
            return {uid}
        last = read_pod(departure.item)
        departed(metered, departure, last, silent.get(last.node), reported(uid), now)
        return {uid}


def _is_gated(facts: PodFacts) -> bool:
    return facts.gated or facts.gated_elsewhere


def latest_believed(stamps: Iterable[int], now: int, witness: Callable[[], int]) -> int:
    """The latest of some creation stamps, without those that lie further ahead of our clock than clocks differ.

    One API server whose clock is wrong must not open periods that are still to come, nor spend their money. Where the
    witness's clock is ahead of ours, too, it is ours that is behind.
    """
    found = sorted(stamps)
    limit = now + SKEW
    if found[-1] > limit:
        limit = max(now, witness()) + SKEW
    return max((stamp for stamp in found if stamp <= limit), default=0)


def nodes_that_are_silent(mirrors: Mirrors) -> dict[str, int]:
    """The silent nodes, each with the instant since when it has been silent."""
    return silent_nodes(mirrors.nodes.items(), lambda: {_name(lease): lease for lease in mirrors.node_leases.items()})


def namespace_uids(mirrors: Mirrors) -> Callable[[str], str]:
    """Returns a function from a namespace's name to its uid, or to an empty text; its first call reads the mirror."""

    @cache
    def uids() -> dict[str, str]:
        return {_name(item): uid_of(item) for item in mirrors.namespaces.items()}

    return lambda name: uids().get(name, "")


def _name(item: Json) -> str:
    return str((item.get("metadata") or {}).get("name", ""))
