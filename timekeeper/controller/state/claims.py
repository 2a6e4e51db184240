"""Claims of Dynamic Resource Allocation: each allocation of a claim is a session of its own.

A claim that several pods share is metered once, apart from its pods. Its session begins when the earliest of its pods
was bound, or else when the claim was first observed as allocated. The session ends with the last pod that reserved the
claim, or else with the deallocation. An allocated claim that no pod reserves is charged, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from fairgpu.json_values import mapping, mappings
from timekeeper.controller.state.observing import Clocks, PodView
from timekeeper.controller.state.sessions import Decided, MeteredSession, MeterRules, Meters
from timekeeper.domain.attribution import Origin, attribution
from timekeeper.domain.holdings.claims import (
    DeviceKey,
    SliceDevice,
    capacity,
    decide,
    read_slices,
    reserving_pods,
    results_of,
    unlisted_drivers,
)
from timekeeper.domain.holdings.holding import NOTHING, Decision
from timekeeper.domain.reservations import Reservation, tariff
from timekeeper.domain.sessions import CLAIM, EndProof, Session, ended
from timekeeper.domain.timestamps import Instant, instant_or_none
from timekeeper.sources.base import DepartureProof, Mirrors, ObservedUntil, uid_of

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A ResourceClaim as it was at one moment.

    Attributes:
        uid: its uid.
        namespace: its namespace.
        name: its name.
        created: its creation, in nanoseconds since 1970.
        allocation: a hash of its allocated devices; empty while it has none.
        pods: the uids of the pods that reserve it.
        unlisted: whether it has devices of drivers that are not metered.
        owner_pod: the uid of the pod for which Kubernetes generated it; empty for a claim that pods share.
        origin: the claim as its own owner, and its labels. Use is attributed to them unless the pod `owner_pod` is
            known: then to that pod's origin.
    """

    uid: str
    namespace: str
    name: str
    created: int
    allocation: str
    pods: tuple[str, ...]
    unlisted: bool
    owner_pod: str
    origin: Origin


def read_claim(claim: Mapping[str, Any], drivers: frozenset[str]) -> ClaimFacts:
    """Parses a ResourceClaim; a field that is missing or of another type counts as absent.

    Args:
        claim: the ResourceClaim as JSON.
        drivers: the drivers whose devices are metered.
    """
    metadata = mapping(claim.get("metadata"))
    name = str(metadata.get("name", ""))
    owners = [item for item in mappings(metadata.get("ownerReferences")) if item.get("kind") == "Pod"]
    devices = [f"{item.get('driver')}/{item.get('pool')}/{item.get('device')}" for item in results_of(claim)]
    return ClaimFacts(
        uid=uid_of(dict(claim)),
        namespace=str(metadata.get("namespace", "")),
        name=name,
        created=instant_or_none(metadata.get("creationTimestamp")) or 0,
        allocation=f"{zlib.crc32(' '.join(sorted(devices)).encode()):08x}" if devices else "",
        pods=reserving_pods(claim),
        unlisted=bool(unlisted_drivers(claim, drivers)),
        owner_pod=str(owners[0].get("uid", "")) if owners else "",
        origin=Origin(f"ResourceClaim/{name}", "", mapping(metadata.get("labels"))),
    )


class _Observation(NamedTuple):
    """The inputs of one refresh of the claims, from which sessions of claims begin and end.

    Attributes:
        mirrors: the objects of the API server as last seen.
        pods: the pods as read from the mirrors.
        rules: the rules that start a session and set its rate.
        silent: keyed by silent node, the node's last sign of life, in nanoseconds since 1970.
        now: the instant of the reading, in nanoseconds since 1970.
        decided: an earlier leader's decisions on allocations, keyed by the claim's uid, a dash, and the hash of its
            allocated devices.
    """

    mirrors: Mirrors
    pods: PodView
    rules: MeterRules
    silent: Mapping[str, Instant]
    now: int
    decided: Mapping[str, Decided]


@dataclass(slots=True)
class ClaimView:
    """The ResourceClaims as last read from the API server, and the open session of each allocated claim.

    Attributes:
        facts: the claims, keyed by uid.
        observed: the instants up to which this leader or the previous one observed claims.
    """

    facts: dict[str, ClaimFacts] = field(default_factory=dict)
    observed: ObservedUntil = field(default_factory=ObservedUntil)
    _open: dict[str, str] = field(default_factory=dict)
    """The uid of each claim's open session, keyed by the claim's uid."""
    _ends: dict[str, int] = field(default_factory=dict)
    """The end of each claim's last session, keyed by the claim's uid; no later session of it begins before that."""
    _left: set[str] = field(default_factory=set)
    """The uids of surplus sessions that the store held as open, while their claims have another open session."""
    _noted: Mapping[str, Instant] = field(default_factory=dict)
    """The ends of sessions that an earlier leader stored, keyed by the session's uid (see `resume`)."""
    _objects: dict[str, Json] = field(default_factory=dict)
    _devices: Mapping[DeviceKey, SliceDevice] | None = None
    _capacity: Mapping[str, Fraction] = field(default_factory=dict)
    """The number of GPUs that the published devices make up, keyed by model."""
    _unwatched_since: int | None = None
    """The last instant at which the mirror was current before it got a whole list that is not processed yet; None for
    no such list.
    """
    _behind: bool = True

    def open_uids(self) -> set[str]:
        """Returns the uids of the open sessions of ResourceClaims."""
        return set(self._open.values())

    def reserving_pods(self) -> Iterator[str]:
        """Yields the uid of each pod that reserves a ResourceClaim whose session is open, once for each such claim."""
        for claim in self._open:
            if (facts := self.facts.get(claim)) is not None:
                yield from facts.pods

    def unlisted(self) -> int:
        """Returns the number of ResourceClaims with devices of drivers that are not metered."""
        return sum(facts.unlisted for facts in self.facts.values())

    def take_loaded(self, sessions: Meters) -> None:
        """Adopts the open sessions of ResourceClaims from the sessions that were read from the store.

        A claim has at most one open session. If `sessions` has several open ones of a claim, this view keeps the one
        that it held before, or else the first. The next refresh ends the surplus sessions.

        Args:
            sessions: all metered sessions, after those in the store were added to them.
        """
        self._left = set()
        for metered in sessions.all():
            uid = metered.session.uid
            if metered.session.pod.startswith(CLAIM) and metered.session.end is None:
                known = self._open.get(_claim_of(uid))
                if known is None or known not in sessions:
                    self._open[_claim_of(uid)] = uid
                    self._objects.pop(_claim_of(uid), None)  # the claim is compared with it, though it has not changed
                    self._behind = True
                elif known != uid:
                    self._left.add(uid)
                    self._behind = True

    def resume(self, unmetered: Mapping[str, Instant]) -> None:
        """Adopts the ends of sessions that an earlier leader stored.

        No later session of the same claim begins before the stored end. If the store still holds such a session as
        open, the session ends no later than at the stored end.

        Args:
            unmetered: the stored ends, keyed by the session's uid. For a session that the earlier leader could not
                read, the instant of its last observation counts as the end.
        """
        self._noted = unmetered
        for uid, end in unmetered.items():
            claim = _claim_of(uid)
            self._ends[claim] = max(end, self._ends.get(claim, 0))

    def refresh(
        self,
        mirrors: Mirrors,
        pods: PodView,
        rules: MeterRules,
        silent: Mapping[str, Instant],
        clocks: Clocks,
    ) -> set[str]:
        """Reads changed ResourceClaims from the mirror; returns the uids of the sessions that changed.

        If pods of other stacks are not metered, it reads nothing and ends all open sessions of claims.

        Args:
            pods: the pods, refreshed before this call. It also keeps the sessions of claims. This call changes these
                sessions and `as_of`.
            silent: keyed by silent node, the node's last sign of life, in nanoseconds since 1970.
            clocks: the clocks; the local one is read after the mirror.
        """
        if rules.drivers is None:
            at = _Observation(mirrors, pods, rules, silent, max(pods.as_of, clocks.ours()), {})
            ends = [self._end(uid, at, self.observed.seen, EndProof.LAST_SEEN) for uid in [*self._open]]
            return set[str]().union(*ends)
        if not mirrors.claims.wait_for_change(0) and not self._behind:
            return set()
        self._behind = True
        items, unwatched_since = mirrors.claims.take_by_uid()
        departures = mirrors.claims.take_departures()
        if self._unwatched_since is None:
            self._unwatched_since = unwatched_since
        pods.as_of = now = max(pods.as_of, clocks.ours())
        decided = {uid.rpartition("-")[0]: decision for uid, decision in sorted(rules.decided.items())}
        at = _Observation(mirrors, pods, rules, silent, now, decided)
        changed: set[str] = set()
        for departure in self.observed.bounded(departures, now):
            proof = EndProof.DELETED if departure.proof is DepartureProof.DELETED else EndProof.LAST_SEEN
            changed |= self._close(uid_of(departure.item), departure.at, proof, at)
        for uid, item in items.items():
            if self._objects.get(uid) is not item:
                changed |= self._observe(read_claim(item, rules.drivers), item, at)
        for uid in self._open.keys() - items.keys():
            changed |= self._close(uid, self.observed.seen, EndProof.LAST_SEEN, at)
        for uid in self._left:
            changed |= self._end_session(uid, at, self.observed.seen, EndProof.LAST_SEEN)
        self._left = set()
        for uid in self.facts.keys() - items.keys():
            del self.facts[uid]
            self._ends.pop(uid, None)
        self._objects = items
        self._unwatched_since = None
        self._behind = False
        return changed

    def decide_again(self, session: Session, mirrors: Mirrors, drivers: frozenset[str]) -> Decision:
        """Returns the parts of GPUs that a ResourceClaim's session holds, decided anew from the devices published now.

        The result has no parts if the cluster no longer has the claim.

        Args:
            session: the session, which stays unchanged.
            drivers: the drivers whose devices are metered.
        """
        claim = mirrors.claims.get(_claim_of(session.uid))
        return NOTHING if claim is None else decide(claim, self._published(mirrors), drivers)

    def _observe(self, facts: ClaimFacts, item: Json, at: _Observation) -> set[str]:
        changed: set[str] = set()
        known = self._open.get(facts.uid)
        if known is not None and not _is_of(known, facts):
            watched = facts.uid in self.facts and self._unwatched_since is None
            seen = at.now if watched else self.observed.last_seen(self._unwatched_since or 0)
            changed |= self._close(facts.uid, seen, EndProof.DELETED if watched else EndProof.LAST_SEEN, at)
        self.facts[facts.uid] = facts
        metered = at.pods.sessions.get(self._open.get(facts.uid, ""))
        if metered is None:
            return changed | (self._begin(facts, item, at) if facts.allocation else set())
        if metered.session.idle is bool(facts.pods):
            metered.session = replace(metered.session, idle=not facts.pods)
            changed.add(metered.session.uid)
        return changed

    def _begin(self, facts: ClaimFacts, item: Json, at: _Observation) -> set[str]:
        """Opens the session of a claim (`item`); returns its uid as a set, empty for a claim without an accelerator."""
        devices, rules, now = self._published(at.mirrors), at.rules, at.now
        decision = decide(item, devices, rules.drivers or frozenset())
        if not (holdings := decision.holdings):
            return set()
        of = [pod for uid in facts.pods if (pod := at.pods.facts.get(uid)) is not None and pod.bound]
        bound = [max(pod.created, now if pod.scheduled is None else pod.scheduled) for pod in of]
        earliest = max(facts.created, rules.since, self._ends.get(facts.uid, 0))
        start = min(max(min(bound, default=now), earliest), now)
        decided = at.decided.get(f"{facts.uid}-{facts.allocation}")
        if decided is not None:
            start, holdings = decided
        nodes = [devices[key].node for key in _keys(item) if key in devices] + [pod.node for pod in of]
        owner = at.pods.facts.get(facts.owner_pod)
        origin = facts.origin if owner is None else owner.origin
        reservation = Reservation((), holdings=holdings)
        session = Session(
            uid=f"{facts.uid}-{facts.allocation}-{start}",
            namespace=facts.namespace,
            pod=CLAIM + facts.name,
            node=next((name for name in nodes if name), ""),
            start=start,
            tariff=tariff(reservation, rules.prices, start, rules.charge),
            namespace_uid=rules.namespace_uid(facts.namespace),
            attribution=attribution(origin, reservation, rules.labels, rules.charge),
            holdings=holdings,
            doubts=tuple(sorted(decision.doubts)),
            idle=not facts.pods,
        )
        at.pods.sessions.keep(MeteredSession(session, reservation))
        self._open[facts.uid] = session.uid
        return {session.uid}

    def _close(self, uid: str, seen: Instant, proof: EndProof, at: _Observation) -> set[str]:
        """Ends a claim's session with the last of its pods if all their ends are known, or else with the deallocation.

        The session ends no later than an observed deallocation.

        Args:
            uid: the claim's uid.
            seen: the instant of the deallocation or, if it was not observed, the instant at which the claim was last
                observed.
            proof: the evidence: DELETED or LAST_SEEN.

        Returns:
            The uids of the sessions that changed.
        """
        reserving = self.facts[uid].pods if uid in self.facts else ()
        ends = [at.pods.ended_at(pod) for pod in reserving]
        proved = [end for end in ends if end is not None]
        if not proved or len(proved) < len(ends):
            return self._end(uid, at, seen, proof)
        last = max(proved)  # a claim that went unseen was there until then
        return self._end(uid, at, min(last, seen) if proof is EndProof.DELETED else last, EndProof.DELETED)

    def _end(self, uid: str, at: _Observation, end: Instant, proof: EndProof) -> set[str]:
        """Ends the open session, if any, of the claim with this uid; returns the uids of the sessions that changed.

        Args:
            end: the instant of the end. If the session's node is silent, the node's last sign of life can count as the
                end (see `ended`).
            proof: the evidence for `end`.
        """
        changed = self._end_session(self._open.pop(uid, ""), at, end, proof)
        for session in changed:
            metered = at.pods.sessions.get(session)
            self._ends[uid] = (metered.session.end if metered is not None else None) or 0
        return changed

    def _end_session(self, uid: str, at: _Observation, end: Instant, proof: EndProof) -> set[str]:
        """Ends the session with this uid, no later than an earlier leader stored (see `resume`).

        A session that has ended before keeps its end. `end` and `proof` are those of `_end`.

        Returns:
            The uid as a set; empty if no such session is metered.
        """
        metered = at.pods.sessions.get(uid)
        if metered is None:
            return set()
        if metered.session.end is None:
            last = min(end, self._noted.get(metered.session.uid, end))
            metered.session = ended(metered.session, last, proof, at.now, at.silent.get(metered.session.node))
        metered.pod_deleted = True
        return {uid}

    def capacity(self, mirrors: Mirrors) -> Mapping[str, Fraction]:
        """Returns, keyed by model, the number of GPUs that drivers of Dynamic Resource Allocation publish."""
        self._published(mirrors)
        return self._capacity

    def _published(self, mirrors: Mirrors) -> Mapping[DeviceKey, SliceDevice]:
        if mirrors.slices.wait_for_change(0) or self._devices is None:
            self._devices = read_slices(mirrors.slices.items())
            self._capacity = capacity(self._devices)
        return self._devices


def _keys(claim: Json) -> list[DeviceKey]:
    return [(str(item.get("driver")), str(item.get("pool")), str(item.get("device"))) for item in results_of(claim)]


def _claim_of(uid: str) -> str:
    """Returns the uid of a session's claim, from the session's uid, which has the form `CLAIM-ALLOCATION-START`."""
    return uid.rsplit("-", 2)[0]


def _is_of(session_uid: str, facts: ClaimFacts) -> bool:
    return bool(facts.allocation) and session_uid.rsplit("-", 2)[1] == facts.allocation
