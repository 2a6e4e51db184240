"""Reads the objects in the mirrors of the cluster: budgets, grants, corrections, and pods with their sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

from timekeeper.controller.state.sessions import MeterRules, Meters, end_deleted, end_unseen, opened, update_from_pod
from timekeeper.domain.budgets import OVERHEAD, Budget, BudgetError, overhead_budget, parse_budget
from timekeeper.domain.orders import Correction, CorrectionError, Grant, GrantError, parse_correction, parse_grant
from timekeeper.domain.periods import PeriodRule
from timekeeper.domain.pods import PodFacts, asks_for_the_same, read_pod
from timekeeper.domain.sessions import CLAIM, finished_at, silent_nodes
from timekeeper.domain.timestamps import HOUR, SKEW, Instant
from timekeeper.sources.base import Departure, Mirror, Mirrors, ObservedUntil, uid_of

Json = dict[str, Any]
Value = TypeVar("Value")
Fault = TypeVar("Fault", bound=ValueError)
KEPT_ENDS = HOUR
"""The time for which the end of a deleted pod is remembered: its ResourceClaims are deallocated some seconds later."""
Reported = Callable[[str], int | None]
"""A function from a pod's uid to the instant of the pod's last report; None if the pod sent none."""


@dataclass(slots=True)
class BudgetView:
    """The budgets, grants and corrections as last read, and the faults of invalid ones.

    A budget that becomes invalid keeps its last valid version, so that a typing error stops no team. The store keeps
    that version for later leaders, and also after the budget is deleted: as long as the account pays for a namespace,
    its periods open by that version. A grant or correction that becomes invalid keeps its earlier value, too, but only
    in this leader's memory.

    Attributes:
        budgets: each present GPUBudget by its last valid version, and the built-in budget overhead. A GPUBudget without
            any valid version is missing. This mapping and each one below is keyed by the name of the object.
        objects: the present GPUBudgets as JSON, valid or not.
        budget_faults: why the present version of a GPUBudget is invalid; valid ones are missing.
        grants, grant_objects, grant_faults: the same of GPUGrants.
        corrections, correction_objects, correction_faults: the same of GPUCorrections.
        last_valid: the last valid version of each budget as JSON, also of deleted ones until `forget`.
        stored: the versions of budgets that the store is known to hold, as JSON.
        unreadable: why a budget's version in the store is unreadable.
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
    last_valid: dict[str, Json] = field(default_factory=dict)
    stored: dict[str, Json] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    _rules: dict[str, tuple[Json, PeriodRule]] = field(default_factory=dict)

    def take_stored(self, stored: dict[str, Json], unreadable: dict[str, str]) -> None:
        """Adopts the versions of budgets that the store holds; a newer version in memory stays.

        Args:
            stored: keyed by name, the last valid version of each budget in the store.
            unreadable: keyed by name, why a budget's version in the store is unreadable.
        """
        self.stored, self.unreadable = stored, unreadable
        self.last_valid = {
            **stored,
            **{name: item for name, item in self.last_valid.items() if stored.get(name) != item},
        }

    def unknown(self) -> dict[str, str]:
        """Returns, keyed by name, the budgets without any valid version, each with why the store's is unreadable."""
        return {name: why for name, why in self.unreadable.items() if name not in self.last_valid}

    def not_stored(self) -> dict[str, Json]:
        """Returns, keyed by name, the last valid versions of budgets that the store does not hold yet."""
        return {name: item for name, item in self.last_valid.items() if self.stored.get(name) is not item}

    def forget(self, name: str) -> None:
        """Drops a deleted budget's versions from memory; the caller ensures that the budget pays for no namespace."""
        for versions in (self.last_valid, self.stored, self._rules):
            versions.pop(name, None)

    def last_rule(self, name: str) -> PeriodRule | None:
        """Returns the rule for the periods of the budget with this name, by its last valid version.

        Returns:
            None if no version is known.
        """
        item = self.last_valid.get(name)
        if item is None:
            return None
        parsed = self._rules.get(name)
        if parsed is None or parsed[0] is not item:
            parsed = self._rules[name] = (item, parse_budget(item).period)
        return parsed[1]

    def refresh(self, mirrors: Mirrors, overhead: frozenset[str]) -> None:
        """Parses the budgets, grants and corrections that changed in the mirrors since the last call.

        Args:
            overhead: the namespaces of the built-in budget overhead, which a GPUBudget of that name replaces. Empty for
                no such budget.
        """
        before = self.objects
        self.objects = _read(mirrors.budgets, self.objects, self.budgets, self.budget_faults, parse_budget)
        for name, item in self.objects.items():
            if before.get(name) is not item or name not in self.budgets:
                self._keep(name, item)
        if overhead and OVERHEAD not in self.objects:
            self.budgets[OVERHEAD] = overhead_budget(overhead)
        self.grant_objects = _read(mirrors.grants, self.grant_objects, self.grants, self.grant_faults, parse_grant)
        self.correction_objects = _read(
            mirrors.corrections, self.correction_objects, self.corrections, self.correction_faults, parse_correction
        )

    def _keep(self, name: str, item: Json) -> None:
        """Remembers a valid GPUBudget (`item`) as the last valid version of the budget with this name.

        If the object is invalid and no value of the budget is in memory, its value is parsed from the last valid
        version. A version of an earlier object, with another uid, does not count.
        """
        if name not in self.budget_faults:
            lasting = _lasting(item)
            if self.last_valid.get(name) != lasting:
                self.last_valid[name] = lasting
        elif name not in self.budgets and uid_of(self.last_valid.get(name, {})) == uid_of(item):
            self.budgets[name] = parse_budget(self.last_valid[name])


def _lasting(item: Json) -> Json:
    """Returns a copy of a GPUBudget with only the fields that a last valid version keeps.

    The fields are the spec, and the name, uid, creation and generation of the metadata.
    """
    metadata = item.get("metadata") or {}
    named = {key: metadata[key] for key in ("name", "uid", "creationTimestamp", "generation") if key in metadata}
    return {"metadata": named, "spec": item.get("spec")}


def _read(
    mirror: Mirror,
    before: dict[str, Json],
    values: dict[str, Value],
    faults: dict[str, Fault],
    parse: Callable[[Json], Value],
) -> dict[str, Json]:
    """Parses the objects of a mirror that have changed since the last call; returns all present objects by name.

    Args:
        before: the objects at the last call, keyed by name.
        values: the parsed objects, which are updated; an invalid object keeps its earlier value.
        faults: why an object is invalid, keyed by name, which is updated.
        parse: parses an object; raises BudgetError, GrantError or CorrectionError.
    """
    items = {_name(item): item for item in mirror.items()}
    for name in before.keys() - items.keys():
        values.pop(name, None)
        faults.pop(name, None)
    for name, item in items.items():
        if before.get(name) is item:
            continue
        try:
            values[name] = parse(item)
            faults.pop(name, None)
        except (BudgetError, GrantError, CorrectionError) as error:
            faults[name] = cast("Fault", error)
    return items


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of this machine and of the store; each returns nanoseconds since 1970.

    Attributes:
        ours: the local clock. It is read after the mirrors, so that everything in the mirrors is in the past, even if
            this process was suspended in between.
        store: the store's clock. A timestamp of the API server or of a node that is far ahead of the local clock is
            believed only as far as the store's clock is ahead, too (see `latest_believed` and `present_by_ends`).
    """

    ours: Callable[[], int]
    store: Callable[[], int]


@dataclass(slots=True)
class PodView:
    """The pods of the mirror and all sessions.

    Attributes:
        facts: the pods, keyed by uid.
        sessions: the sessions of pods and of ResourceClaims.
        namespaces: the namespaces of the pods in `facts`.
    """

    facts: dict[str, PodFacts] = field(default_factory=dict)
    sessions: Meters = field(default_factory=Meters)
    namespaces: AbstractSet[str] = field(init=False)
    changed_waiting: set[str] = field(default_factory=set)
    """Namespaces in which a waiting pod was created, deleted or changed since the last take_changed_waiting()."""
    ungated_at: dict[str, int] = field(default_factory=dict)
    """The instant at which each pod left its last scheduling gate in this term, by uid."""
    newest: int = 0
    """The latest creation timestamp that is trusted (see `latest_believed`). If the local clock shows an earlier time,
    the clock is behind, and this timestamp counts as the present.
    """
    as_of: int = 0
    """The instant of the last refresh; everything that the refresh observed had happened by then."""
    observed: ObservedUntil = field(default_factory=ObservedUntil)
    """The instants up to which this leader or the previous one observed pods."""
    ahead: int = 0
    """The nanoseconds by which the latest creation timestamp of a present pod is ahead of the local clock; 0 if none
    is.
    """
    _ends: dict[str, int] = field(default_factory=dict)
    """The end of each deleted pod that reserved claims, keyed by the pod's uid and kept for KEPT_ENDS."""
    _objects: dict[str, Json] = field(default_factory=dict)
    _behind: bool = True
    _pods_in: dict[str, int] = field(default_factory=dict)
    """The number of pods of each namespace that has any."""
    _created_ahead: set[str] = field(default_factory=set)
    """The uids of the pods that were created after `_ahead_at`, by their stamps."""
    _ahead_at: Instant = 0

    def __post_init__(self) -> None:
        self.namespaces = self._pods_in.keys()

    def refresh(
        self,
        mirror: Mirror,
        rules: MeterRules,
        silent: dict[str, int],
        reported: Reported,
        now: Instant,
        clocks: Clocks,
    ) -> set[str]:
        """Reads new, changed and deleted pods from the mirror; returns the uids of the sessions that changed.

        If the local clock is behind a timestamp of the API server, that timestamp counts as now. No session ends later
        than now. A timestamp that is far ahead of the local clock counts only if the store's clock shows that the local
        clock is wrong. The same holds for the end of a pod, which the clock of the pod's node stamps.

        After an error, the next call handles the same changes again.

        Args:
            mirror: the mirror of pods.
            rules: the rules that start a session and set its rate.
            silent: keyed by silent node, the node's last sign of life, in nanoseconds since 1970.
            reported: returns the instant of the last report of the pod with a uid; None if it sent none.
            now: the present by the local clock, read before the mirror.
            clocks: the clocks; the local one is read after the mirror.

        Raises:
            redis.RedisError: the store does not answer when its clock or a pod's last report is read.
        """
        self.as_of = max(now, self.newest)
        if not mirror.wait_for_change(0) and not self._behind:
            return set()
        self._behind = True
        changed: set[str] = set()
        items = mirror.by_uid()
        seen_at = now = max(now, clocks.ours())
        changed_items = {uid: item for uid, item in items.items() if self._objects.get(uid) is not item}
        fresh = {uid: self._read(uid, item, rules) for uid, item in changed_items.items()}
        self.newest = latest_believed([self.newest, *(facts.created for facts in fresh.values())], now, clocks.store)
        ends = [end for facts in fresh.values() if (end := _end_of(facts)) is not None]
        self.as_of = now = present_by_ends(ends, max(now, self.newest), clocks.store)
        for facts in fresh.values():
            self._take_facts(facts, now)
            changed |= self._observe(facts, rules, silent, reported, now)
        departures = mirror.take_departures()
        try:
            now = present_by_ends(self._stated_ends(departures), max(now, clocks.ours()), clocks.store)
        except Exception:
            mirror.return_departures(departures)
            raise
        self.as_of = now
        changed |= self._end_all_deleted(mirror, self.observed.bounded(departures, now), silent, reported, now)
        self._ends = {uid: end for uid, end in self._ends.items() if end > now - KEPT_ENDS}
        for uid in self.facts.keys() - items.keys():
            facts = self.facts.pop(uid)
            self._note_waiting(facts)
            self._count_in_namespace(facts, -1)
            self.ungated_at.pop(uid, None)
        self._note_ahead(fresh, seen_at)
        self._objects = items
        self._behind = False
        return changed

    def observe_again(self, uid: str) -> None:
        """Makes the next refresh compare the session with this uid with its pod, though the pod has not changed.

        Call this for a session that was read from the store after its pod was observed.
        """
        self._behind |= self._objects.pop(uid, None) is not None

    def _read(self, uid: str, item: Json, rules: MeterRules) -> PodFacts:
        """Returns the facts of a pod; its reservation is parsed again only if it may have changed.

        Most changes of a bound pod are of its status, which does not decide the reservation.
        """
        facts, before = self.facts.get(uid), self._objects.get(uid)
        kept = None if facts is None or not facts.bound else facts.reservation
        if before is None or kept is None or kept.holdings or not asks_for_the_same(before, item):
            return read_pod(item, rules.held_of)
        return read_pod(item, rules.held_of, kept)

    def _take_facts(self, facts: PodFacts, now: Instant) -> None:
        """Stores a pod's facts; if the pod's last scheduling gate was removed, stores `now` as the instant of that."""
        self._note_waiting(facts)
        known = self.facts.get(facts.uid)
        if known is not None and _is_gated(known) and not _is_gated(facts):
            self.ungated_at[facts.uid] = now
        if known is not None:
            self._count_in_namespace(known, -1)
        self._count_in_namespace(facts, 1)
        self.facts[facts.uid] = facts

    def _count_in_namespace(self, facts: PodFacts, change: int) -> None:
        count = self._pods_in.get(facts.namespace, 0) + change
        if count:
            self._pods_in[facts.namespace] = count
        else:
            del self._pods_in[facts.namespace]

    def _note_ahead(self, fresh: Mapping[str, PodFacts], seen_at: Instant) -> None:
        """Sets `ahead`: by how many nanoseconds the latest creation timestamp of a pod is ahead of the local clock.

        It compares the pods that changed, and those that were ahead at the last call. If the local clock has gone back
        since then, it compares all pods.

        Args:
            fresh: the pods that changed, keyed by uid.
            seen_at: the local clock's time when these pods were read.
        """
        candidates = self.facts if seen_at < self._ahead_at else {*fresh, *self._created_ahead} & self.facts.keys()
        stamps = {uid: self.facts[uid].created for uid in candidates}
        self._created_ahead = {uid for uid, created in stamps.items() if created > seen_at}
        self.ahead = max((stamps[uid] - seen_at for uid in self._created_ahead), default=0)
        self._ahead_at = seen_at

    def _end_all_deleted(
        self, mirror: Mirror, departures: list[Departure], silent: dict[str, int], reported: Reported, now: Instant
    ) -> set[str]:
        """Ends the sessions of deleted pods; returns the uids of the sessions that changed.

        After an error, the mirror keeps the remaining deletions for the next call.
        """
        changed: set[str] = set()
        while departures:
            try:
                changed |= self._end_deleted(departures[0], silent, reported, now)
            except Exception:
                mirror.return_departures(departures)
                raise
            departures.pop(0)
        return changed

    def _stated_ends(self, departures: Iterable[Departure]) -> list[int]:
        """Returns when pods ended (ns since 1970), by the last status of each deleted pod whose session has no end yet.

        Pods whose status states no end are left out.
        """
        metered = [(each, self.sessions.get(uid_of(each.item))) for each in departures]
        running = [each.item for each, known in metered if known is not None and known.session.end is None]
        return [end for item in running if (end := _end_of(read_pod(item))) is not None]

    def take_changed_waiting(self) -> set[str]:
        """Returns the namespaces whose waiting pods have changed since the last call of this method."""
        changed_waiting, self.changed_waiting = self.changed_waiting, set()
        return changed_waiting

    def _note_waiting(self, facts: PodFacts) -> None:
        if facts.reservation is not None and not facts.bound:
            self.changed_waiting.add(facts.namespace)

    def end_missing(
        self,
        silent: Mapping[str, Instant],
        reported: Reported,
        noted: Mapping[str, Instant],
        last_seen: Mapping[str, Instant],
        now: Instant,
    ) -> set[str]:
        """Ends the sessions whose pods no longer exist, and marks the pods as deleted; returns the sessions' uids.

        A new leader calls it for pods that were deleted while no leader observed pods. A session that had ended before
        keeps its end. Sessions of ResourceClaims are left out.

        Args:
            silent: keyed by silent node, the node's last sign of life, in nanoseconds since 1970.
            reported: returns the instant of the last report of the pod with a uid; None if it sent none.
            noted: the ends that an earlier leader found and the sessions lack, keyed by uid. Such an end stays, though
                the node has become silent since.
            last_seen: keyed by a session's uid, the instant at which its pod was observed last, from an earlier leader
                that could not read the session's account. For any other session, the instant counts at which this
                leader or the previous one last observed pods.
            now: the present instant; no session ends later.
        """
        of_pods = (m for m in self.sessions.all() if not m.session.pod.startswith(CLAIM))
        podless = [m for m in of_pods if m.session.uid not in self.facts and not m.pod_deleted]
        for metered in podless:
            session, seen = metered.session, self.observed.seen
            if session.uid in noted:
                end_unseen(metered, noted[session.uid], None, None, now)
            else:
                seen = min(seen, last_seen.get(session.uid, seen))
                end_unseen(metered, seen, silent.get(session.node), reported(session.uid), now)
        return {metered.session.uid for metered in podless}

    def _observe(
        self, facts: PodFacts, rules: MeterRules, silent: dict[str, int], reported: Reported, now: Instant
    ) -> set[str]:
        def alive() -> int | None:
            since = silent.get(facts.node)
            return None if since is None else max(since, reported(facts.uid) or 0)

        metered = self.sessions.get(facts.uid)
        if metered is not None:
            before = metered.session
            update_from_pod(metered, facts, rules, self.observed.seen, alive, now)
            return {facts.uid} if metered.session is not before else set()
        metered = opened(facts, rules, alive, now)
        if metered is None:
            return set()
        self.sessions.keep(metered)
        return {facts.uid}

    def ended_at(self, uid: str) -> Instant | None:
        """Returns the instant at which the pod with this uid ended.

        Returns:
            None while the pod runs, or if its status states no end. For a deleted pod, None if it reserved no claim, or
                ended more than KEPT_ENDS ago.
        """
        facts = self.facts.get(uid)
        return self._ends.get(uid) if facts is None else _end_of(facts)

    def _end_deleted(self, departure: Departure, silent: dict[str, int], reported: Reported, now: Instant) -> set[str]:
        facts = self.facts.get(uid_of(departure.item))
        if facts is not None and facts.reserves_claims:
            stated = _end_of(read_pod(departure.item))
            self._ends[facts.uid] = departure.at if stated is None else stated
        metered = self.sessions.get(uid_of(departure.item))
        if metered is None:
            return set()
        uid = metered.session.uid
        if metered.session.end is not None:
            metered.pod_deleted = True  # neither the pod nor its reports change this end
            return {uid}
        last = read_pod(departure.item)
        stated = _end_of(last)
        if stated is not None and departure.at < stated <= now:  # our clock was behind when the deletion was received
            departure = replace(departure, at=stated)
        end_deleted(metered, departure, last, silent.get(last.node), reported(uid), now)
        return {uid}


def _end_of(facts: PodFacts) -> int | None:
    """Returns when a pod ended, by its status, in nanoseconds since 1970; None while it runs or if none is stated."""
    return (finished_at(facts) or facts.changed) if facts.terminal else None


def _is_gated(facts: PodFacts) -> bool:
    return facts.gated or facts.gated_elsewhere


def latest_believed(stamps: Iterable[int], now: Instant, store_clock: Callable[[], Instant]) -> int:
    """Returns the latest creation timestamp that is at most SKEW ahead of the local clock; 0 if there is none.

    An API server whose clock is wrong must not open future periods, nor spend their money. If the store's clock is
    ahead of the local clock, too, the local clock is behind; the limit is then SKEW after the store's time.

    Args:
        stamps: the creation timestamps, in nanoseconds since 1970; at least one.
        now: the present by the local clock.
        store_clock: returns the present by the store's clock; called only if a timestamp is further ahead.
    """
    in_order = sorted(stamps)
    limit = now + SKEW
    if in_order[-1] > limit:
        limit = max(now, store_clock()) + SKEW
    return max((stamp for stamp in in_order if stamp <= limit), default=0)


def present_by_ends(ends: Sequence[Instant], now: Instant, store_clock: Callable[[], Instant]) -> Instant:
    """Returns the present that an observation uses: `now`, or the latest end of a pod if that end is later.

    A local clock that is behind would cut off time for which a pod is charged. An end counts only up to the present by
    the store's clock, because a node's clock may be ahead.

    Args:
        ends: the ends of pods, by the clocks of their nodes.
        now: the present by the local clock.
        store_clock: returns the present by the store's clock; called only if an end is later than `now`.
    """
    latest = max(ends, default=now)
    return now if latest <= now else max(now, min(latest, store_clock()))


def nodes_that_are_silent(mirrors: Mirrors) -> dict[str, int]:
    """Returns, keyed by the name of a silent node, its last sign of life in nanoseconds since 1970.

    A node is silent while its Ready condition is Unknown.
    """
    return silent_nodes(mirrors.nodes.items(), lambda: {_name(lease): lease for lease in mirrors.node_leases.items()})


def namespace_uids(mirrors: Mirrors) -> Callable[[str], str]:
    """Returns a function from a namespace's name to its uid, or to an empty text if the cluster has no such namespace.

    The first call of that function reads the mirror of namespaces.
    """

    @cache
    def uids() -> dict[str, str]:
        return {_name(item): uid_of(item) for item in mirrors.namespaces.items()}

    return lambda name: uids().get(name, "")


def _name(item: Json) -> str:
    return str((item.get("metadata") or {}).get("name", ""))
