"""The state by which the extender decides: the fleet, kept current by watches, and its reservations for pods.

kube-scheduler asks about the next pod before it binds the last one, and the API server shows a Binding a little later
than it was made. So a pod's devices are reserved from the answer of filter on. Once the API server shows the pod's
allocation, the allocation holds the devices in place of the reservation. The devices are freed once the pod ends, or if
no bind has come for HOLD_SECONDS. After a Binding was sent, they stay reserved until the watch shows the Binding. If
the watch has not shown it after SETTLE_SECONDS, the pod is read from the API server, and the devices are freed if it is
not bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, repeat

import msgspec
import numpy as np

from fairgpu.inventory import Health
from scheduler.cluster.budgets import BudgetEffect, Budgets
from scheduler.cluster.earmarks import Earmark, EarmarkError
from scheduler.cluster.earmarks import decode as decode_earmark
from scheduler.cluster.eligible import Rules, Site, Sites
from scheduler.cluster.gang_pods import GangPods
from scheduler.cluster.inventories import Inventories
from scheduler.cluster.objects import PodNote, WaitingPod
from scheduler.cluster.prospects import Prospects
from scheduler.cluster.refusals import Refusals
from scheduler.cluster.waiting import WaitingPods
from scheduler.measures import Figures
from scheduler.placement.choosing import NONE, Chooser, Placed
from scheduler.placement.fleet import NO_CLASS, Fleet, Ints, Node, NodeSet
from scheduler.placement.holding import Holding
from scheduler.placement.mix import Mix, MixCounter
from scheduler.placement.overlaps import Overlap, overlaps
from scheduler.placement.together import holding_of
from scheduler.placement.worth import Worth

HOLD_SECONDS = 30.0
GANG_SECONDS = 30.0
SETTLE_SECONDS = 65.0
"""Longer than the API server works on a request (its flag --request-timeout, 60 s by default)."""
MAX_ASKED = 20_000
"""The most pods whose requests are remembered."""
MAX_GONE = 20_000
"""The most pods that are remembered as ended or deleted, the latest ones. kube-scheduler sees such an end within
seconds, so that older ones no longer matter."""
MAX_RULES = 256
"""The most sets of rules for which the nodes that they allow are kept."""
MAX_QUESTIONS = 16
"""The most sets of nodes for which the indexes in the fleet are kept."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices that the scheduler reserves for a pod.

    Attributes:
        pod: the pod.
        placed: the chosen node, and the devices there.
        until: when the devices are freed, in monotonic seconds. Once a Binding was sent, this is the time at which the
            Binding's outcome is looked up. None while the pod is being bound, and while devices are held for its gang.
        site: the node's labels, taints and other resources when the devices were chosen; None if they were not known.
        sent: the allocation in the Binding that was sent; empty before a Binding is sent. After that, only an answer
            of the API server frees the devices.
    """

    pod: WaitingPod
    placed: Placed
    until: float | None
    site: Site | None = None
    sent: str = ""


@dataclass(slots=True)
class Asked:
    """The nodes that one call of kube-scheduler asks about, looked up in the fleet.

    Attributes:
        offers: `State.offers` when the nodes were looked up. The other fields are stale once that number has grown.
        rows: the indexes in the fleet of the nodes that offer devices.
        unknown: the names of the nodes that offer none.
        names_json: the names of the nodes in `rows` as JSON; None until an answer has needed it.
    """

    offers: int
    rows: Ints
    unknown: list[str]
    names_json: msgspec.Raw | None = None


EARMARKED = "earmark/"
"""The prefix of a waiting pod's uid, under which the fleet holds the devices that are kept for the pod."""


class State:
    """All that the scheduler's decisions need, in memory: nodes, pods, reservations and budgets.

    It is thread-safe if a caller holds `lock` for each decision. Not every method takes the lock itself.

    Some attributes are numbers that grow with each change of one kind: a reader who compares one with its earlier value
    sees whether there was such a change.

    Attributes:
        lock: held for each decision.
        fleet: the nodes with the free parts of their devices.
        chooser: chooses nodes and devices in the fleet.
        refusals: caches the reasons why requests fit nowhere.
        inventories: the inventories of nodes.
        budgets: the states of budgets.
        waiting: the pods that wait for a node.
        gangs: the gangs that pods name.
        gang_seconds: the seconds for which devices are held for all pods of a gang.
        offers: grows when a node's inventory is stored or removed.
        frees: grows when the API server shows that a pod that held devices has ended.
        keeps: grows when an earmark is made or dropped, `release_unbound` frees a reservation, or the devices that are
            held for a gang are freed.
        yields: grows when pods of spent budgets need no longer wait for some pods within budget (`lowest_in_budget`).
        blind: whether the watch of pods has failed, and has delivered nothing since: ends of pods are not seen.
        sites: grows when a node's labels, taints, limit of pods or other resources change.
        earmarks: each waiting pod for which devices are kept, with its earmark, keyed by the pod's uid.
    """

    def __init__(self, gang_seconds: float = GANG_SECONDS) -> None:
        self.lock = threading.RLock()
        self.budgets = Budgets()
        self.waiting = WaitingPods()
        self.gangs = GangPods()
        self.gang_seconds = gang_seconds
        self.offers = 0
        self.frees = 0
        self.keeps = 0
        self.yields = 0
        self.blind = False
        self.fleet = Fleet()
        self.chooser = Chooser(self.fleet)
        self.refusals = Refusals(self.chooser)
        self.inventories = Inventories(self.fleet)
        self._reservations: dict[str, Reservation] = {}
        self._bound: set[str] = set()
        self._pods: dict[str, PodNote] = {}
        # What bound pods hold of other resources, by uid; only pods that hold some.
        self._others: dict[str, dict[str, int]] = {}
        self._mix = MixCounter()
        self._asked: dict[str, WaitingPod] = {}
        self._gone: dict[str, None] = {}
        self._lowest: tuple[tuple[int, int, int, int, int], int | None] = ((-1, -1, -1, -1, -1), None)
        self._prospects = Prospects(self.fleet, self.allowed)
        self._listed: set[str] = set()
        self.sites = 0
        self._sites: dict[str, Site] = {}
        self._allowed: tuple[tuple[int, int], Ints, Sites, dict[str, Ints]] = (
            (-1, -1),
            np.zeros(0, np.int64),
            Sites([]),
            {},
        )
        self._named: dict[str, NodeSet] = {}
        self._left_out: dict[str, tuple[str, ...]] = {}
        self._questions: dict[Hashable, Asked] = {}
        self._scored: tuple[int, bytes, Ints] = (-1, b"", np.zeros(0, np.int64))
        self._noticed: set[str] = set()
        self._leaving: set[str] = set()
        self.earmarks: dict[str, tuple[WaitingPod, Earmark]] = {}

    # Observations of watches.

    def listed(self, collection: str) -> None:
        """Notes that a collection, `nodes` or `pods`, was read completely from the API server."""
        with self.lock:
            self._listed.add(collection)

    def missing(self) -> tuple[str, ...]:
        """Returns those of the collections `nodes` and `pods` that were never read completely.

        Until both have been read, every device looks free.
        """
        return tuple(name for name in ("nodes", "pods") if name not in self._listed)

    def put_node(self, node: Node) -> set[str]:
        """Stores a node's inventory of devices.

        Returns:
            The node's name, and the names of the nodes that offer one of its devices as well, or did until now.
        """
        with self.lock:
            self.offers += 1
            return self.inventories.put(node)

    def remove_node(self, name: str) -> set[str]:
        """Removes the inventory of the node of this name.

        Returns:
            The node's name, and the names of the nodes that offered one of its devices as well.
        """
        with self.lock:
            self.offers += 1
            return self.inventories.remove(name)

    def refuse_node(self, name: str) -> set[str]:
        """Removes a node from the fleet, because its inventory is invalid, until `put_node` stores a valid one.

        Returns:
            The node's name, and the names of the nodes that offered one of its devices as well.
        """
        with self.lock:
            self.offers += 1
            return self.inventories.refuse(name)

    def put_site(self, site: Site) -> None:
        """Stores a node's labels, taints, limit of pods and other resources."""
        with self.lock:
            self.sites += self._sites.get(site.name) != site
            self._sites[site.name] = site

    def remove_site(self, name: str) -> None:
        """Removes what `put_site` stored of the node of this name."""
        with self.lock:
            self.sites += self._sites.pop(name, None) is not None

    def put_pod(self, note: PodNote) -> None:
        """Stores the facts about a pod, or removes the pod if it has ended.

        Once the pod is bound, its allocation replaces its reservation and its earmark.
        """
        with self.lock:
            self._gone.pop(note.uid, None)
            before = self._pods.get(note.uid)
            self._pods[note.uid] = note
            self.gangs.put(note)
            self._mark(note)
            if note.others:
                self._others[note.uid] = dict(note.others)
            if note.holding is not None:
                self._reservations.pop(note.uid, None)
                self.drop_earmark(note.uid)
                self._bound.add(note.uid)
                self._named.pop(note.uid, None)
                self.waiting.remove(note.uid)
                if before is not None and _goes_by(before) != _goes_by(note):
                    # The reclaimer reads these facts anew for a node that has changed.
                    self.fleet.release(note.uid)
                self.fleet.hold(note.uid, note.holding)
                return
            if note.uid not in self._bound:
                self._take_earmark(note)
            if note.ended:
                self.remove_pod(note.uid)
                if note.done:
                    self.gangs.finish(note)
            elif note.waits is not None and note.uid not in self._reservations and note.uid not in self._bound:
                # A pod that is bound stays bound: a note that says otherwise is older.
                self.waiting.add(note.waits, note.placeable)

    def remove_pod(self, uid: str) -> None:
        """Removes the pod with this uid, which has ended or was deleted, and frees the devices that it held.

        kube-scheduler may still ask about the pod, since it sees the end by a watch of its own. `gone` then returns
        True for the pod.
        """
        with self.lock:
            self._gone[uid] = None
            if len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]
            self._forget_pod(uid)

    def gone(self, uid: str) -> bool:
        """Returns whether the watch has shown that the pod with this uid ended or was deleted.

        The latest MAX_GONE of such pods are remembered; the answer for an older one is False.
        """
        return uid in self._gone

    def _forget_pod(self, uid: str) -> None:
        """Removes all that is stored of the pod with this uid, and frees the devices that it held."""
        with self.lock:
            self._pods.pop(uid, None)
            self._others.pop(uid, None)
            self._bound.discard(uid)
            self.gangs.remove(uid)
            self.drop_earmark(uid)
            self._named.pop(uid, None)
            self._left_out.pop(uid, None)
            self._noticed.discard(uid)
            self._leaving.discard(uid)
            self._reservations.pop(uid, None)
            self.waiting.remove(uid)
            held = self.fleet.held_by(uid)
            self.frees += held is not None and bool(held.pieces)
            self.fleet.release(uid)

    def replace_pods(self, notes: Iterable[PodNote]) -> None:
        """Stores the facts about all pods of the cluster. Known pods that are not among them are removed.

        A pod that has a reservation and that no watch has shown yet keeps its reserved devices.
        """
        with self.lock:
            by_uid = {note.uid: note for note in notes}
            # Only kube-scheduler's calls have named a pod that came and went since the last watch ended. A pod that
            # came after the list waits again with its first event, or with kube-scheduler's next call.
            asked_about = (self.waiting.uids() | self.gangs.uids() | self._named.keys()) - self._reservations.keys()
            for uid in self._pods.keys() - by_uid.keys():
                self.remove_pod(uid)
            for uid in asked_about - by_uid.keys():
                self._forget_pod(uid)
            for note in by_uid.values():
                self.put_pod(note)

    # Devices that are kept for waiting pods.

    def earmark(self, pod: WaitingPod, earmark: Earmark) -> None:
        """Keeps devices for a waiting pod, in place of those that were kept for it before.

        Only pods of a higher priority and pods of the same gang may take them.
        """
        with self.lock:
            self.drop_earmark(pod.uid)
            self.earmarks[pod.uid] = pod, earmark
            self.keeps += 1
            self._hold_earmark(pod.uid)

    def drop_earmark(self, uid: str) -> None:
        """Frees the devices that are kept for the waiting pod with this uid, if any are."""
        with self.lock:
            if self.earmarks.pop(uid, None) is not None:
                self.keeps += 1
                self.fleet.release(f"{EARMARKED}{uid}")

    def lifted_for(self, pod: WaitingPod) -> list[str]:
        """Returns the uids of the waiting pods whose kept devices a given waiting pod may take.

        These are the pod itself, pods of its gang, and pods of lower priority.
        """
        return [uid for uid, (other, _) in self.earmarks.items() if _yields(other, pod)]

    @contextmanager
    def without(self, uids: list[str]) -> Iterator[None]:
        """Frees, during a with block, the devices that are kept for the waiting pods with these uids.

        So the block can place another pod on these devices. After the block they are kept again, except for a waiting
        pod that has got a reservation.
        """
        before, held = self.fleet.contents, self._held_for(uids)
        for uid in uids:
            self.fleet.release(f"{EARMARKED}{uid}")
        freed = self.fleet.contents
        try:
            yield
        finally:
            unchanged = self.fleet.contents == freed
            for uid in uids:
                self._hold_earmark(uid)
            if unchanged and self._held_for(uids) == held:
                self.fleet.contents = before

    def _held_for(self, uids: list[str]) -> list[Holding | None]:
        return [self.fleet.held_by(f"{EARMARKED}{uid}") for uid in uids]

    def _mark(self, note: PodNote) -> None:
        """Stores whether a bound pod is being deleted, and whether it has a notice of its eviction."""
        for marked, holds in ((self._noticed, bool(note.reclaim_at)), (self._leaving, note.leaving)):
            if holds and note.holding is not None:
                marked.add(note.uid)
            else:
                marked.discard(note.uid)

    def _take_earmark(self, note: PodNote) -> None:
        """Keeps the devices that the earmark of a waiting pod names, and frees those kept so far if they differ.

        Without a valid earmark, and while the pod's request is not known, no devices are kept. It also stores the nodes
        on which no pod is evicted again for the pod, for `left_out`.
        """
        pod, earmark = note.waits or note.member or self._asked.get(note.uid), None
        try:
            earmark = decode_earmark(note.earmark) if note.earmark else None
        except EarmarkError:
            earmark = None
        self._left_out.pop(note.uid, None)
        if earmark is not None and earmark.left_out:
            self._left_out[note.uid] = earmark.left_out
        if earmark is None or not earmark.node or pod is None:
            self.drop_earmark(note.uid)
            return
        if self.earmarks.get(note.uid, (None, None))[1] != earmark:
            self.earmark(pod, earmark)

    def _hold_earmark(self, uid: str) -> None:
        pod_and_earmark = self.earmarks.get(uid)
        if pod_and_earmark is not None and uid not in self._reservations:
            self.fleet.hold(f"{EARMARKED}{uid}", pod_and_earmark[1].holding(pod_and_earmark[0].request))

    def left_out(self, uid: str) -> tuple[str, ...]:
        """Returns the names of the nodes on which no pod is evicted again for the pod with this uid.

        The pod's earmark names them.
        """
        return self._left_out.get(uid, ())

    def name_nodes(self, pod: WaitingPod, rows: Ints) -> None:
        """Stores the nodes that kube-scheduler asked about for a pod, until the pod is bound.

        It is called for pods whose node depends on other pods or on volumes.

        Args:
            rows: the nodes' indexes in the fleet.
        """
        self._named[pod.uid] = self.fleet.set_of(rows)

    def named(self, uid: str) -> bytes:
        """Returns a flag (1 or 0) for each row of the fleet: whether `name_nodes` stored the node for a pod.

        The answer is empty for a pod without stored nodes. The flag of a node that was removed since is 0.

        Args:
            uid: the pod's uid.
        """
        nodes = self._named.get(uid)
        return b"" if nodes is None else self.fleet.within(nodes).tobytes()

    def eligible(self, pod: WaitingPod) -> Ints:
        """Returns the indexes in the fleet of the nodes on which a pod may run once there is room.

        All of them meet the pod's rules. If other pods or volumes also decide on the pod's node, only nodes that
        kube-scheduler has named for the pod are returned.
        """
        rows = self.allowed(pod.rules)
        if not pod.rules.only_where_named:
            return rows
        named = np.frombuffer(self.named(pod.uid) or bytes(self.fleet.size), np.bool_)
        return rows[named[rows]]

    def allowed(self, rules: Rules) -> Ints:
        """Returns the indexes in the fleet of the nodes that meet a pod's rules.

        Other pods and volumes, which may also decide on the pod's node, are not considered.
        """
        versions = self.offers, self.sites
        if self._allowed[0] != versions:
            offering: Ints = np.array(sorted(self.fleet.rows.values()), np.int64)
            sites = Sites([self._sites.get(name) or Site(name) for name in self.fleet.names[offering]])
            self._allowed = versions, offering, sites, {}
        _, rows, sites, kept = self._allowed
        key = repr(rules)
        if key not in kept:
            if len(kept) >= MAX_RULES:
                kept.clear()
            kept[key] = rows[sites.open_to(rules)]
        return kept[key]

    def spare_pods(self) -> Ints:
        """Returns how many more pods each node takes, in the fleet's order; not above 0 for a node of unknown limit.

        A plan of evictions needs it (`Spare.pods`).
        """
        spare = np.zeros(len(self.fleet.core), np.int64)
        for name, row in self.fleet.rows.items():
            site = self._sites.get(name)
            spare[row] = (site.pods if site is not None else 0) - self.fleet.count(name)
        return spare

    def others(self) -> dict[str, dict[str, int]]:
        """Returns the amounts that bound pods hold of other resources of their nodes, such as `rdma/hca`.

        They are keyed by the pod's uid, then by resource. Pods that hold none are left out. A plan of evictions counts
        these amounts as free once it evicts the pod.
        """
        return self._others

    def spare_others(self, resources: AbstractSet[str]) -> dict[int, dict[str, int]]:
        """Returns the amounts of other resources that are free on nodes, keyed by the node's index, then by resource.

        Args:
            resources: the names of the resources; without any, the answer is empty.
        """
        if not resources:
            return {}
        spare: dict[int, dict[str, int]] = {}
        for name, at in self.fleet.rows.items():
            site = self._sites.get(name)
            spare[at] = {one: site.others.get(one, 0) if site is not None else 0 for one in resources}
        for uid, held in self._others.items():
            holding = self.fleet.held_by(uid)
            row = None if holding is None else self.fleet.rows.get(holding.node)
            if row is not None:
                spare[row].update({one: spare[row][one] - held[one] for one in resources & held.keys()})
        return spare

    def not_offered(self, note: PodNote) -> str:
        """Returns a text that names a GPU which a bound pod holds, but which its node does not offer.

        The text is empty if the node offers all GPUs that the pod holds, or is not in the fleet.
        """
        with self.lock:
            row = None if note.holding is None else self.fleet.rows.get(note.holding.node)
            if row is None or note.holding is None:
                return ""
            gone = [piece.uuid for piece in note.holding.pieces if self.fleet.places.get(piece.uuid, (-1, 0))[0] != row]
            return f"node {note.holding.node} does not offer the GPU {gone[0]}" if gone else ""

    def noticed(self) -> set[str]:
        """Returns the uids of the bound pods that have a notice that the scheduler will evict them.

        No new plan evicts these pods.
        """
        with self.lock:
            return set(self._noticed)

    def leaving(self) -> set[str]:
        """Returns the uids of the bound pods that are being deleted.

        A plan of evictions counts what they hold as free.
        """
        with self.lock:
            return set(self._leaving)

    def note(self, uid: str) -> PodNote | None:
        """Returns the facts about the pod with this uid as the API server last showed them; None for an unknown pod."""
        return self._pods.get(uid)

    def notes_on(self, name: str) -> list[PodNote]:
        """Returns the facts about the pods that are bound to the node of this name."""
        with self.lock:
            return [self._pods[uid] for uid in self.fleet.holders(name) if uid in self._bound and uid in self._pods]

    def overlaps(self) -> list[tuple[PodNote, Overlap]]:
        """Returns each bound pod whose part of a GPU, added to the parts of the pods bound before it, exceeds the GPU.

        Each such pod comes in a pair with its overlap; a pod with overlaps on several GPUs comes in several pairs.

        Reservations and devices that are kept for waiting pods do not count: pods that are to be evicted may still hold
        the same parts.
        """
        with self.lock:
            fleet, found = self.fleet, list[tuple[PodNote, Overlap]]()
            short = (fleet.core < 0) | (fleet.memory < 0) | (fleet.slots < 0)
            for row in np.flatnonzero(short.any(axis=1)).tolist():
                node = fleet.nodes[row]
                if node is None:
                    continue
                notes = sorted(self.notes_on(node.name), key=lambda note: (note.since, note.uid))
                held = [(note.uid, note.starts) for note in notes]
                found += [(self._pods[overlap.uid], overlap) for overlap in overlaps(node, held)]
            return found

    # Decisions: reservations and Bindings.

    def rows_asked(self, key: Hashable | None, names: Callable[[], list[str]]) -> Asked:
        """Returns the nodes that a call of kube-scheduler asks about, looked up in the fleet or taken from a cache.

        Args:
            key: identifies the set of names, for the cache; None for a set without a key.
            names: returns the names of the nodes; called for a set that is not in the cache.
        """
        kept = self._questions.get(key) if key is not None else None
        if kept is not None and kept.offers == self.offers:
            return kept
        asked = Asked(self.offers, *self.rows_of(names()))
        if key is not None:
            self._questions[key] = asked
            if len(self._questions) > MAX_QUESTIONS:
                del self._questions[next(iter(self._questions))]
        return asked

    def rows_of(self, names: list[str]) -> tuple[Ints, list[str]]:
        """Returns the indexes in the fleet of the nodes of these names that offer devices, and the other names."""
        rows = self.rows_in_order(names)
        known = rows >= 0
        if known.all():
            return rows, []
        return rows[known], [names[at] for at in np.flatnonzero(~known).tolist()]

    def rows_in_order(self, names: list[str]) -> Ints:
        """Returns the index in the fleet of each node of these names, in order; -1 for one that offers no devices."""
        return np.fromiter(map(self.fleet.rows.get, names, repeat(-1)), np.int64, len(names))

    def fitting(self, pod: WaitingPod, rows: Ints) -> Ints:
        """Returns the indexes in the fleet of the nodes on which the GPUs that a pod requests are free now.

        Processor time and memory of the nodes are not checked. A node where the search for devices reached its limit is
        left out.

        Args:
            rows: the indexes in the fleet of the nodes to look at; the answer has some of them.
        """
        return np.asarray(rows[self.chooser.gains(pod.request)[rows] != NONE])

    def first(self, pod: WaitingPod, named: Callable[[str], bool], looks: int) -> int | None:
        """Returns the index in the fleet of the best node for a pod, among the nodes that kube-scheduler asks about.

        Args:
            named: returns whether kube-scheduler asks about the node of a name.
            looks: the number of nodes to look at: those on which the pod fits, the best first. Most often
                kube-scheduler asks about one of them, so that its long list of names need not be decoded.

        Returns:
            The index; None if the pod fits nowhere, or kube-scheduler asks about none of these nodes.
        """
        names = self.fleet.names
        return next((row for row in islice(self.chooser.in_order(pod.request), looks) if named(names[row])), None)

    def note_scored(self, names: bytes, rows: Ints) -> None:
        """Stores the nodes that the extender has just answered to `filter`, for the call `prioritize` that follows.

        Args:
            names: the JSON list of the nodes' names, as it was answered.
            rows: the nodes' indexes in the fleet, in the order of the names.
        """
        self._scored = self.offers, names, rows

    def scored(self, names: bytes) -> Ints | None:
        """Returns the indexes in the fleet of the nodes that `note_scored` stored last.

        Args:
            names: the JSON list of names in the call `prioritize`.

        Returns:
            The indexes, in the order of the names; None if `names` is another list, or a node's devices have changed
                since.
        """
        offers, known, rows = self._scored
        return rows if (offers, known) == (self.offers, names) else None

    def choose(self, pod: WaitingPod, rows: Ints, now: float) -> Reservation | None:
        """Reserves devices on the best of some nodes for a pod.

        Args:
            rows: the nodes' indexes in the fleet.
            now: the present time, in seconds of a monotonic clock.

        Returns:
            The reservation; None if the pod fits on none of the nodes, or the search for devices reached its limit.
        """
        row = self.chooser.best(pod.request, rows)
        return None if row is None else self.reserve(pod, row, now)

    def reserve(self, pod: WaitingPod, row: int, now: float) -> Reservation | None:
        """Reserves devices on one node for a pod; the pod's earlier reservation is removed in any case.

        Args:
            row: the node's index in the fleet.
            now: the present time, in seconds of a monotonic clock.

        Returns:
            The reservation; None if the pod does not fit on the node, or the search for devices reached its limit.
        """
        self.forget(pod.uid)
        placed = self.chooser.place(pod.request, row)
        if placed is None:
            return None
        return self.keep(pod, placed, now + HOLD_SECONDS)

    def keep(self, pod: WaitingPod, placed: Placed, until: float | None) -> Reservation:
        """Reserves the given devices for a pod that has no reservation; returns the reservation.

        Args:
            placed: the node and the devices.
            until: when the devices are freed, in monotonic seconds; None for no limit.
        """
        site = self._sites.get(placed.node)
        reservation = self._reservations[pod.uid] = Reservation(pod, placed, until, site)
        self.fleet.hold(pod.uid, holding_of(placed, pod.request))
        return reservation

    def hold_until(self, uid: str, now: float) -> None:
        """Sets the reservation of the pod with this uid to end HOLD_SECONDS after `now`, in monotonic seconds."""
        kept = self._reservations.get(uid)
        if kept is not None:
            self._reservations[uid] = replace(kept, until=now + HOLD_SECONDS)

    def reservation(self, uid: str) -> Reservation | None:
        """Returns the reservation of the pod with this uid; None if it has none."""
        return self._reservations.get(uid)

    def reserved(self) -> set[str]:
        """Returns the uids of the pods that have a reservation; none of them is shown as bound."""
        with self.lock:
            return set(self._reservations)

    def bound(self, uid: str) -> bool:
        """Returns whether the API server shows the pod with this uid as bound."""
        return uid in self._bound

    def withdrawn(self, kept: Reservation) -> str:
        """Returns why a pod can no longer go to the node and devices of its reservation; empty if it can.

        Since the devices were chosen the node may have been deleted, cordoned or tainted, and a GPU lost or fenced. It
        may also offer less memory, or take fewer containers.
        """
        name = kept.placed.node
        row = self.fleet.rows.get(name)
        node = None if row is None else self.fleet.nodes[row]
        devices = () if node is None else node.inventory.devices
        offered = {device.uuid: device.memory_mib for device in devices if device.health is Health.OK}
        if any(share.memory_mib > offered.get(share.uuid, -1) for shares in kept.placed.shares for share in shares):
            return f"{name} offers the chosen devices no more"
        if self._overfull(kept):
            return f"{name} offers less of the chosen devices than pods hold"
        site = self._sites.get(name)
        if site == kept.site or site is None or kept.site is None:
            return ""
        # Only what has changed counts: kube-scheduler has found that the pod may go where it was named.
        before, now = Sites([kept.site, site]).open_to(kept.pod.rules)
        return (
            ""
            if now or not before
            else f"{name} was cordoned, or its taints, labels or resources keep the pod away now"
        )

    def _overfull(self, kept: Reservation) -> bool:
        """Returns whether pods, among them the reserved pod, hold more of a reserved device than the device offers."""
        fleet, node = self.fleet, self.fleet.nodes[self.fleet.rows[kept.placed.node]]
        uuids = {share.uuid for shares in kept.placed.shares for share in shares}
        left = [part[fleet.places[uuid]] for part in (fleet.core, fleet.memory, fleet.slots) for uuid in uuids]
        if node is None or min(left) >= 0:
            return False
        # Devices that are kept for a waiting pod may be held as well by a pod of higher priority, which takes them.
        held = [(uid, [one.pieces]) for uid, one in fleet.holders(node.name).items() if not uid.startswith(EARMARKED)]
        return any(overlap.gpu in uuids for overlap in overlaps(node, held))

    def binding(self, kept: Reservation, text: str) -> Reservation:
        """Stores that a Binding is being sent for a reservation; returns the reservation, now without a time limit.

        Args:
            text: the allocation in the Binding, as JSON.
        """
        sent = self._reservations[kept.pod.uid] = replace(kept, until=None, sent=text)
        return sent

    def bind_ended(self, uid: str, now: float) -> None:
        """Sets the time at which the outcome of the Binding of the pod with this uid is looked up (`doubtful`).

        It is SETTLE_SECONDS after `now`, in monotonic seconds. If the watch shows the pod as bound before that time,
        the outcome is not looked up.
        """
        kept = self._reservations.get(uid)
        if kept is not None:
            self._reservations[uid] = replace(kept, until=now + SETTLE_SECONDS)

    def forget(self, uid: str) -> None:
        """Removes the reservation of the pod with this uid.

        If the pod is not bound, the devices of the reservation are free, and the pod waits again as it did before.
        """
        kept = self._reservations.pop(uid, None)
        if kept is not None and uid not in self._bound:
            self.fleet.release(uid)
            self.gangs.wait(kept.pod)
            self._hold_earmark(uid)
            note = self._pods.get(uid)
            if note is not None and note.waits is not None:
                self.waiting.take_back(note.waits, note.placeable)

    def expire(self, now: float) -> None:
        """Frees the reservations whose time limit has passed and for which no Binding was sent.

        Args:
            now: the present time, in seconds of a monotonic clock.
        """
        for uid, kept in self._late(now):
            if not kept.sent:
                self.release_unbound(uid)

    def release_unbound(self, uid: str) -> None:
        """Frees the reservation of the pod with this uid, which was not bound.

        `keeps` grows, so that `keep_waking` looks at the waiting pods again.
        """
        self.keeps += uid in self._reservations
        self.forget(uid)

    def doubtful(self, now: float) -> list[Reservation]:
        """Returns the reservations whose Binding was sent, and whose time limit has passed without a known outcome.

        Args:
            now: the present time, in seconds of a monotonic clock.
        """
        with self.lock:
            return [kept for _, kept in self._late(now) if kept.sent]

    def _late(self, now: float) -> list[tuple[str, Reservation]]:
        return [(uid, kept) for uid, kept in self._reservations.items() if kept.until is not None and kept.until <= now]

    def lowest_in_budget(self) -> int | None:
        """Returns the lowest priority of the pods within their budgets that wait for devices; None without such pods.

        A pod of a spent budget is placed only if its priority is lower than that (`budget_block`).

        Four kinds of pods do not count: those that would fit on no node that their rules allow even if all other pods
        ended, those whose gang would not fit then, those whose gang still lacks pods, and those that wait for a volume,
        a resource claim or other pods alone (`WaitingPods.lowest_first`).
        """
        known = (self.budgets.version, self.waiting.version, self.offers, self.sites, self.gangs.membership)
        if self._lowest[0] != known:
            lowest = self._lowest_that_waits()
            before = self._lowest[1]
            self.yields += before is not None and (lowest is None or lowest > before)
            self._lowest = known, lowest
        return self._lowest[1]

    def _lowest_that_waits(self) -> int | None:
        def in_budget(namespace: str) -> bool:
            return self.budgets.effect(namespace) is BudgetEffect.IN_BUDGET

        without_place: set[str] = set()
        for pod in self.waiting.lowest_first(in_budget):
            if pod.uid in without_place:
                continue
            pods = self.gangs.together_with(pod)
            if pods and self._prospects.have_a_place(pods, self.offers, self.sites):
                return pod.priority
            # The pods of a large gang are looked at once.
            without_place.update(one.uid for one in pods)
        return None

    def ask(self, pod: WaitingPod) -> None:
        """Stores a pod about which kube-scheduler asks: its later call `bind` names the pod without its request.

        The first call for a pod also counts the pod's request for `mix`.
        """
        if pod.uid not in self._asked:
            self._mix.see(pod.request)
            if len(self._asked) >= MAX_ASKED:
                del self._asked[next(iter(self._asked))]
        self._asked[pod.uid] = pod

    def pod_asked_about(self, uid: str) -> WaitingPod | None:
        """Returns the pod with this uid as kube-scheduler last asked about it; None for an unknown pod."""
        return self._asked.get(uid)

    @property
    def counted(self) -> int:
        """The number of pods' requests that `ask` has counted, from which the worth of nodes is learned."""
        return self._mix.pods

    def figures(self) -> Figures:
        """Returns the figures of the state that the scheduler's metrics show."""
        with self.lock:
            refused, shared = self.inventories.left_out()
            fleet, rows = self.fleet, slice(0, self.fleet.size)
            there = fleet.cls[rows] != NO_CLASS
            total = np.maximum(fleet.total[rows], 1)
            held = np.maximum(1 - fleet.core[rows] / 100, 1 - fleet.memory[rows] / total)[there].sum()
            gpus = int(fleet.offered[rows].sum())
            return Figures(
                nodes=len(fleet.rows),
                refused=refused,
                shared=shared,
                gpus=gpus,
                held=float(held),
                waiting=self.waiting.count,
                fragmented=self.waiting.fragmented,
                gangs=self.gangs.count(),
                gang_outcomes=dict(self.gangs.outcomes),
                searches_cut=self.chooser.cut,
                overlapping=len({overlap.gpu for _, overlap in self.overlaps()}),
            )

    def mix(self) -> Mix:
        """Returns the requests of all pods so far, counted by kind."""
        with self.lock:
            return self._mix.mix()

    def learn(self, worth: Worth) -> None:
        """Stores newly learned figures of what free parts of GPUs are worth; all later choices of nodes use them."""
        with self.lock:
            self.chooser.worth = worth


def _goes_by(note: PodNote) -> tuple[bool, bool]:
    """Returns the facts about a bound pod, besides its holding, by which a plan of evictions evicts it or not."""
    return note.labelled, note.high_priority


def _yields(other: WaitingPod, pod: WaitingPod) -> bool:
    """Returns True if devices that are kept for the waiting pod `other` may go to `pod`; else False.

    They may if both are one pod or in one gang, or if the priority of `other` is lower.
    """
    same_gang = other.gang is not None and (other.namespace, other.gang) == (pod.namespace, pod.gang)
    return other.uid == pod.uid or same_gang or other.priority < pod.priority
