"""Carries plans out step by step, from the API server's objects alone: earmark, notice, eviction.

The earmark on the waiting pod is written first, and everything else follows from it. A pod that an earmark names gets a
notice, and is evicted once the time in the notice has come. A notice is removed if no earmark names its pod. So a
replica that takes over continues where the last one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import structlog

from fairgpu import names
from fairgpu.cluster.api import MERGE_PATCH, ApiError
from fairgpu.cluster.warning_events import About, post, warning_event
from fairgpu.keeping import Wait
from scheduler.cluster.apart import apart
from scheduler.cluster.budgets import BudgetEffect
from scheduler.cluster.earmarks import MAX_LEFT_OUT, Earmark, earmark_of, encode, fallen
from scheduler.cluster.objects import PodNote, WaitingPod
from scheduler.cluster.state import EARMARKED, State
from scheduler.cluster.watches import SOURCE
from scheduler.measures import Measures
from scheduler.placement.fleet import Fleet, Ints
from scheduler.placement.holding import Holding
from scheduler.placement.together import holding_of
from scheduler.reclaim.plan import Plan, PodToPlace, Spare, Victims, plan_reclaim
from scheduler.reclaim.roster import Roster, Running
from scheduler.settings import ReclaimSettings

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
PLANS_A_ROUND = 2
"""The most plans of one round; each takes up to a tenth of a second at 5,000 nodes."""
STATES_SECONDS = 120.0
"""The greatest age of the budgets' states by which pods get notice or are evicted. The timekeeper confirms them at
least every scheduler.states.wait_seconds, at most a minute."""
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease", names.SYSTEM_NAMESPACE})
"""The namespaces in which nothing is evicted: the policy fairgpu-eviction would refuse it."""
REST = 10
"""The pause after a round of plans, as a multiple of its length: plans take at most a tenth of a core."""
RETRY_SECONDS = 5.0
"""The pause after an unknown error, and after the API server refused an eviction, or a write of a notice or earmark."""
SHOWN_SECONDS = 10.0
"""The longest time that the reclaimer waits until the watch shows an earmark or a notice that it has written."""
NOTICE_REASON = "PodReclaimNotice"
NOTICE = "a pod within its GPU budget waits for the GPUs of this one, which goes first: it is evicted at {at}"


_Kind = tuple[Any, ...]
"""The facts about waiting pods from which their plan follows (`Reclaimer._kind`): pods with equal facts get equal plans
while nothing else changes."""

_Versions = tuple[int, int, int, frozenset[str], frozenset[str], frozenset[str]]
"""The versions of the fleet, of the budgets and of the nodes' other properties; the uids of the pods that are being
deleted, of those with a notice, and of those that have reserved devices and are not shown as bound. A plan evicts none
of these pods."""


class Writing(Protocol):
    """A client of the API server, with the two kinds of requests that the reclaimer sends."""

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """Patches an object of the API server; returns the new object.

        Args:
            path: the object's path in the API.
            body: the patch as JSON.
            content_type: the media type that says which kind of patch it is.
        """

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Posts an object; returns the API server's answer.

        Args:
            path: the path of the API, such as that of a pod's evictions.
            body: the object as JSON.
        """


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of the reclaimer.

    Attributes:
        now: returns seconds of a monotonic clock.
        wall: returns seconds since 1970.
    """

    now: Callable[[], float]
    wall: Callable[[], float]


class _Fall(NamedTuple):
    """The reason why an earmark must be withdrawn.

    Attributes:
        why: the reason, for the log.
        in_vain: whether the evictions did not help the waiting pod in time. Later plans for the pod leave out the
            earmark's node.
    """

    why: str
    in_vain: bool = False


@dataclass(frozen=True, slots=True)
class _Written:
    """The record of an earmark from before its write until the watch has shown it.

    Attributes:
        pod: the waiting pod.
        earmark: the earmark in its annotation.
        until: when the reclaimer stops waiting for the watch to show it, in monotonic seconds; infinite before and
            during the write.
    """

    pod: WaitingPod
    earmark: Earmark
    until: float


def keep_reclaiming(reclaimer: Reclaimer, wait: Wait) -> None:
    """Plans and carries out evictions for waiting pods, every LOOK_SECONDS while this replica may act.

    It returns when the process ends.
    """
    while not wait(LOOK_SECONDS):
        if reclaimer.acts():
            reclaimer.step()


class Reclaimer:
    """Evicts pods so that waiting pods within their budget get devices.

    Attributes:
        acts: returns whether this replica may act; called before each Eviction and each write of an annotation, since a
            step may outlast the leader Lease.
    """

    def __init__(
        self,
        state: State,
        api: Writing,
        settings: ReclaimSettings,
        clocks: Clocks,
        measures: Measures,
        acts: Callable[[], bool],
    ) -> None:
        self.acts = acts
        self._state = state
        self._api = api
        self._settings = settings
        self._clocks = clocks
        self._measures = measures
        self._roster = Roster()
        self._written: dict[str, _Written] = {}
        self._outcomes: dict[tuple[str, Earmark], str] = {}
        self._freed_at: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        # By pod: the time up to which the watch may still show the pod without its notice.
        self._noticed_until: dict[str, float] = {}
        # By pod and instant of eviction: the time at which the event is due; infinity once the event was written.
        self._event_at: dict[tuple[str, str], float] = {}
        self._rest_until = float("-inf")
        self._nodes_left_out: dict[str, tuple[str, ...]] = {}
        # By kind of pods: the versions of what its last plan, which was fruitless, followed from. The oldest is first.
        self._fruitless: dict[_Kind, _Versions] = {}

    def step(self) -> None:
        """Does all that is due now: makes plans, writes earmarks and notices, and evicts pods whose notice has passed.

        If the settings do not enable reclaim, it only withdraws earmarks and notices that an earlier replica has
        written. If the budgets' states are unknown or older than STATES_SECONDS, it makes no plan, gives no notice and
        evicts no pod.
        """
        with self._state.lock:
            earmarks = dict(self._state.earmarks)
        now = self._clocks.now()
        self._retry_at = {uid: at for uid, at in self._retry_at.items() if at > now}
        for uid, one in list(self._written.items()):
            if uid in earmarks:
                del self._written[uid]
            elif one.until <= now:
                self._unwrite(uid)
        self._count_placed(earmarks)
        confirmed = self._state.budgets.confirmed_at
        known = confirmed is not None and now - confirmed <= STATES_SECONDS
        for uid, fall in self._judged(earmarks).items():
            pod, earmark = earmarks[uid]
            with self._apart(pod):
                if fall is not None:
                    self._fall(pod, earmark, fall)
                elif known and self._settings.enabled and self._state.reservation(uid) is None:
                    self._free(uid, earmark)
        self._call_off(earmarks)
        if known and self._settings.enabled and now >= self._rest_until:
            began = self._clocks.now()
            self._plan()
            ended = self._clocks.now()
            self._rest_until = ended + REST * (ended - began)

    def _apart(self, pod: WaitingPod | PodNote, *others: WaitingPod) -> AbstractContextManager[None]:
        """Returns a context that logs an unexpected error about a pod and does not pass it on.

        After an error, nothing is done about the pod and `others` for RETRY_SECONDS (`_pause`).
        """

        def failed() -> None:
            self._pause(pod, *others)
            self._measures.part_failed("reclaim")

        return apart("reclaim", pod, failed)

    def _pause(self, *pods: WaitingPod | PodNote) -> None:
        self._retry_at |= {pod.uid: self._clocks.now() + RETRY_SECONDS for pod in pods}

    # Plans of earlier steps.

    def _count_placed(self, earmarks: dict[str, tuple[WaitingPod, Earmark]]) -> None:
        present = {(uid, earmark) for uid, (_, earmark) in earmarks.items()}
        for uid, earmark in self._outcomes.keys() - present:
            outcome = "placed" if self._state.bound(uid) else self._outcomes[uid, earmark]
            self._measures.reclaim(outcome)
            self._freed_at.pop(uid, None)
        self._outcomes = {key: self._outcomes.get(key, "called_off") for key in present}
        self._nodes_left_out = {
            uid: left for uid, left in self._nodes_left_out.items() if self._state.note(uid) is not None
        }

    def _judged(self, earmarks: dict[str, tuple[WaitingPod, Earmark]]) -> dict[str, _Fall | None]:
        """Returns, keyed by the waiting pod's uid, why its earmark must be withdrawn; None if it stays.

        The earmarks of a gang's pods stay or are withdrawn together. Three kinds of pods are not in the answer: pods
        with a reservation; pods about which nothing is done for now (`_pause`), with the other pods of their gang; and
        pods at which an unexpected error arises. No pod is evicted for an earmark that is not in the answer.
        """
        together: dict[Any, list[tuple[WaitingPod, Earmark]]] = {}
        for uid, (pod, earmark) in earmarks.items():
            if self._state.reservation(uid) is None:
                key = uid if pod.gang is None else (pod.namespace, pod.gang)
                together.setdefault(key, []).append((pod, earmark))
        judged: dict[str, _Fall | None] = {}
        for some in together.values():
            pods = [pod for pod, _ in some]
            if any(pod.uid in self._retry_at for pod in pods):
                continue
            with self._apart(*pods):
                fall = self._why_fall(some)
                judged |= dict.fromkeys((pod.uid for pod in pods), fall)
        return judged

    def _why_fall(self, some: Sequence[tuple[WaitingPod, Earmark]]) -> _Fall | None:
        """Returns why the earmarks of a pod or of a gang's pods must be withdrawn; None if they stay.

        `some` has these pods, each with its earmark. The method also updates `_freed_at`, the times since which no pod
        to evict holds devices.
        """
        state, settings, pods = self._state, self._settings, [pod for pod, _ in some]
        with state.lock:
            if state.budgets.effect(pods[0].namespace) is not BudgetEffect.IN_BUDGET:
                return _Fall("its budget is spent")
            named = sorted({uid for _, earmark in some for uid in earmark.victims})
            victims = [note for uid in named if (note := state.note(uid)) is not None and note.holding]
            kept = next(filter(None, (self._why_kept(some, note) for note in victims)), "")
            if kept:
                return _Fall(kept)
            if victims and not settings.enabled:
                return _Fall("reclaim is switched off")
            if victims and (self._fits_now(pods[0]) if pods[0].gang is None else self._fit_together(pods)):
                return _Fall("there is room for the pod without it")
        now = self._clocks.now()
        for pod in pods:
            if victims:
                self._freed_at.pop(pod.uid, None)
            else:
                self._freed_at.setdefault(pod.uid, now)
        for pod in pods:
            if now - self._freed_at.get(pod.uid, now) >= settings.placed_seconds:
                text = f"kube-scheduler has not placed the pod within {settings.placed_seconds:g} seconds"
                return _Fall(text, in_vain=True)
        until = min(earmark.until for _, earmark in some)
        return None if self._clocks.wall() < until else _Fall("the pods that were to go are still there", in_vain=True)

    def _why_kept(self, some: Sequence[tuple[WaitingPod, Earmark]], victim: PodNote) -> str:
        """Returns why `victim` must no longer be evicted for a waiting pod or its gang; empty if it is still to be.

        For a gang, it is still to be evicted if it may go for one of the gang's pods whose earmarks name it. `some` has
        these pods, each with its earmark.
        """
        for_high = any(pod.high_priority for pod, earmark in some if victim.uid in earmark.victims)
        if self._in_budget(victim) and (victim.high_priority or not for_high):
            return "a pod that was to go is within its budget again"
        if not victim.labelled and not victim.leaving:
            return f"a pod that was to go has lost the label {names.POD_LABEL}, without which it is not evicted"
        return ""

    def _fit_together(self, pods: Sequence[WaitingPod]) -> bool:
        """Whether all pods of a gang fit now without an eviction, on free devices or on those that they may take.

        These are the devices that are kept for them or for pods of lower priority.
        """
        state, fleet = self._state, self._state.fleet.copy()
        for uid in {uid for pod in pods for uid in state.lifted_for(pod)}:
            fleet.release(f"{EARMARKED}{uid}")
        victims = self._victims()
        no_victims = replace(victims, may_go=np.zeros_like(victims.may_go))
        wanted = [
            PodToPlace(pod.uid, pod.request, state.eligible(pod), pod.high_priority, pod.rules.others) for pod in pods
        ]
        spare = Spare(state.spare_pods(), state.spare_others(_others_of(pods)))
        return plan_reclaim(fleet, no_victims, wanted, spare) is not None

    def _fits_now(self, pod: WaitingPod) -> bool:
        state = self._state
        rows = state.eligible(pod)
        with state.without(state.lifted_for(pod)):
            fleet, request = state.fleet, pod.request
            roomy = (fleet.cpu[rows] >= request.cpu_milli) & (fleet.host[rows] >= request.host_mib)
            rows = rows[roomy & (state.spare_pods()[rows] >= 1)]
            if pod.rules.others:
                left = state.spare_others(_others_of([pod]))
                has = [all(left[row][name] >= amount for name, amount in pod.rules.others) for row in rows.tolist()]
                rows = rows[np.array(has, np.bool_)]
            return bool(len(state.fitting(pod, rows)))

    def _in_budget(self, note: PodNote) -> bool:
        return self._state.budgets.effect(note.namespace) is BudgetEffect.IN_BUDGET

    def _fall(self, pod: WaitingPod, earmark: Earmark, fall: _Fall) -> None:
        """Withdraws a waiting pod's earmark and logs why; a node freed in vain is left out of the pod's later plans."""
        if fall.in_vain:
            left_out = (name for name in self._left_out(pod.uid) if name != earmark.node)
            self._nodes_left_out[pod.uid] = (*left_out, earmark.node)
            self._outcomes[pod.uid, earmark] = "in_vain"
        if self._annotate(pod, names.EARMARK, fallen(self._left_out(pod.uid))):
            _log.warning("earmark dropped", pod=_name(pod), uid=pod.uid, node=earmark.node, cause=fall.why)
        else:
            self._pause(pod)

    def _free(self, uid: str, earmark: Earmark) -> None:
        """Gives notice to the pods that an earmark names, and evicts those whose notice has passed.

        Left out are pods that hold no devices any more, are ending, lack the label, or wait after a failed write.
        `uid` is the uid of the waiting pod that has the earmark.
        """
        now = self._clocks.now()
        self._noticed_until = {victim: at for victim, at in self._noticed_until.items() if at > now}
        for victim in earmark.victims:
            note = self._state.note(victim)
            if note is None or note.holding is None or note.leaving or not note.labelled or victim in self._retry_at:
                continue
            with self._apart(note):
                due = _instant(note.reclaim_at)
                if due is not None:
                    self._announce(note, note.reclaim_at)
                if due is None and victim not in self._noticed_until:
                    self._give_notice(uid, note)
                elif due is not None and due <= self._clocks.wall():
                    self._evict(uid, note)

    def _give_notice(self, uid: str, note: PodNote) -> None:
        at = _stamp(self._clocks.wall() + self._settings.notice_seconds)
        if not self._annotate(note, names.RECLAIM_AT, at):
            self._pause(note)
            return
        self._noticed_until[note.uid] = self._clocks.now() + SHOWN_SECONDS
        _log.info("reclaim notice", pod=_name(note), uid=note.uid, at=at, waits=uid)
        self._announce(note, at)

    def _announce(self, note: PodNote, at: str) -> None:
        """Writes the event that a pod will be evicted at the time `at` (RFC 3339).

        It does nothing if this or an earlier replica has written the event. After a failure, it also does nothing for
        RETRY_SECONDS.
        """
        key, now = (note.uid, at), self._clocks.now()
        if self._event_at.get(key, now) > now:
            return
        about = About("Pod", note.name, note.uid, note.namespace)
        stamp = _stamp(self._clocks.wall())
        try:
            post(self._api, warning_event(about, NOTICE_REASON, NOTICE.format(at=at), stamp, SOURCE))
        except ApiError as error:
            _log.warning("event of a pod not written", pod=_name(note), uid=note.uid, error=str(error))
            self._event_at[key] = now + RETRY_SECONDS
        else:
            self._event_at[key] = float("inf")

    def _evict(self, uid: str, note: PodNote) -> None:
        """Posts an Eviction of a pod (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).

        The Eviction carries the pod's label and notice, without which the policy fairgpu-eviction refuses it. If the
        API server refuses the Eviction or does not answer, the pod is left alone for RETRY_SECONDS (`_pause`). `uid` is
        that of the waiting pod for which the pod is evicted.
        """
        if not self.acts():
            return
        metadata = {
            "name": note.name,
            "namespace": note.namespace,
            "labels": {names.POD_LABEL: names.POD_LABEL_VALUE},
            "annotations": {names.RECLAIM_AT: note.reclaim_at},
        }
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": metadata,
            "deleteOptions": {"preconditions": {"uid": note.uid}},
        }
        try:
            self._api.create(f"/api/v1/namespaces/{note.namespace}/pods/{note.name}/eviction", eviction)
        except ApiError as error:
            # A PodDisruptionBudget that allows no disruption now is answered 429.
            outcome = "blocked" if error.status == 429 else "gone" if error.not_found or error.conflict else "failed"
            self._measures.reclaim_eviction(outcome)
            self._pause(note)
            if outcome != "gone":
                _log.warning("victim not evicted", pod=_name(note), uid=note.uid, waits=uid, error=str(error))
            return
        self._measures.reclaim_eviction("evicted")
        _log.info("victim evicted", pod=_name(note), uid=note.uid, waits=uid)

    def _call_off(self, earmarks: dict[str, tuple[WaitingPod, Earmark]]) -> None:
        noticed = self._state.noticed()
        wanted = {uid for _, earmark in earmarks.values() for uid in earmark.victims}
        wanted |= {uid for one in self._written.values() for uid in one.earmark.victims}
        # The watch may show a notice steps after it was written.
        self._event_at = {key: at for key, at in self._event_at.items() if key[0] in noticed | wanted}
        for uid in noticed - wanted:
            note = self._state.note(uid)
            if note is None or note.leaving or uid in self._retry_at:
                continue
            with self._apart(note):
                if self._annotate(note, names.RECLAIM_AT, None):
                    self._noticed_until.pop(uid, None)
                    _log.info("reclaim called off", pod=_name(note), uid=uid)
                else:
                    self._pause(note)

    # New plans.

    def _plan(self) -> None:
        """Plans evictions for a few of the waiting pods (`_turns`), and writes their earmarks."""
        for kind, pods in self._turns():
            with self._apart(pods[0]):
                with self._state.lock:
                    versions = self._versions()
                    if self._fruitless.get(kind) == versions:
                        continue
                    victims = self._victims()
                    if not victims.may_go.any():
                        return
                    fleet, wanted, spare = self._copy(pods)
                # Other decisions go on meanwhile. Nothing is promised twice: only this thread writes earmarks.
                plan = plan_reclaim(fleet, victims, wanted, spare)
                if plan is None or not plan.victims or not self._write(pods, plan):
                    self._fruitless.pop(kind, None)
                    self._fruitless[kind] = versions

    def _turns(self) -> list[tuple[_Kind, list[WaitingPod]]]:
        """Returns the waiting pods for which plans are made now, each alone or with its gang, and their kind.

        They are at most PLANS_A_ROUND. A plan is fruitless if no earmark follows from it. Pods whose kind has no
        fruitless plan come first, by priority and then by age. For a kind with a fruitless plan, its first pod or gang
        stands for all. Such a kind gets another plan once `_versions` has changed, and one plan of a round is kept for
        the kind that has waited longest for it. So a pod that no eviction helps does not keep other pods from a plan.
        Pods after a failed write, and pods that are given up (`_is_given_up`), are left out.
        """
        with self._state.lock:
            versions = self._versions()
        untried: list[tuple[_Kind, list[WaitingPod]]] = []
        tried: dict[_Kind, list[WaitingPod]] = {}
        for pods in self._pods_to_place():
            if not any(pod.uid in self._retry_at or self._is_given_up(pod.uid) for pod in pods):
                kind = self._kind(pods)
                if kind in self._fruitless:
                    tried.setdefault(kind, pods)
                elif len(untried) < PLANS_A_ROUND:
                    untried.append((kind, pods))
        self._fruitless = {kind: seen for kind, seen in self._fruitless.items() if kind in tried}
        due = [(kind, tried[kind]) for kind, seen in self._fruitless.items() if seen != versions]
        return [*untried[: PLANS_A_ROUND - bool(due)], *due][:PLANS_A_ROUND]

    def _is_given_up(self, uid: str) -> bool:
        """Returns whether no pod is evicted for the waiting pod with this uid any more.

        That is so once evictions on MAX_LEFT_OUT nodes, as many as an earmark can name, have not helped the pod.
        """
        return len(self._left_out(uid)) >= MAX_LEFT_OUT

    def _kind(self, pods: Sequence[WaitingPod]) -> _Kind:
        """Returns the facts about one waiting pod, or the pods of a gang, on which a plan for them depends.

        Pods with equal facts are of one kind: a fruitless plan for some of them is not made again for the others. A
        plan also depends on the fleet, the budgets and the nodes (`_versions`).
        """
        with self._state.lock:
            return tuple(
                (pod.request, repr(pod.rules), pod.high_priority, self._left_out(pod.uid), self._state.named(pod.uid))
                for pod in pods
            )

    def _versions(self) -> _Versions:
        state = self._state
        cannot_go = frozenset(state.leaving()), frozenset(state.noticed()), frozenset(state.reserved())
        return state.fleet.contents, state.budgets.version, state.sites, *cannot_go

    def _left_out(self, uid: str) -> tuple[str, ...]:
        """Returns the names of the nodes on which no pod is evicted again for the waiting pod with this uid.

        On these nodes evictions have not helped the pod.
        """
        return self._nodes_left_out.get(uid) or self._state.left_out(uid)

    def _pods_to_place(self) -> Iterator[list[WaitingPod]]:
        """Yields the waiting pods within their budget that have no reservation or earmark; those of a gang together.

        Pods of the highest priority come first, then the oldest. The pods of a gang are left out if it lacks pods, or
        if one of them has a reservation or an earmark.
        """
        state = self._state
        with state.lock:
            waiting = [one.pod for one in state.waiting.in_order()]
        seen: set[tuple[str, Any]] = set()
        for pod in waiting:
            if state.budgets.effect(pod.namespace) is not BudgetEffect.IN_BUDGET or (pod.namespace, pod.gang) in seen:
                continue
            if pod.gang is not None:
                seen.add((pod.namespace, pod.gang))
            with state.lock:
                # Meanwhile it may have been placed or deleted.
                pods = _whole(state, pod) if state.waiting.get(pod.uid) is not None else []
                lack_a_place = not any(self._has_place(one.uid) for one in pods)
            # Not within the lock, which a generator would hold until its caller asks for the next pods.
            if pods and lack_a_place:
                yield pods

    def _has_place(self, uid: str) -> bool:
        state = self._state
        return uid in state.earmarks or uid in self._written or state.reservation(uid) is not None or state.bound(uid)

    def _victims(self) -> Victims:
        state = self._state
        holders = self._roster.read(state.fleet, self._running)
        effects = [state.budgets.effect(name) for name in self._roster.namespaces]
        rich = np.array([effect is BudgetEffect.IN_BUDGET for effect in effects] or [True], np.bool_)
        not_eligible = state.leaving() | {uid for _, earmark in self._kept() for uid in earmark.victims}
        # A notice that no earmark wants is to be called off: its time says nothing about another eviction.
        not_eligible |= state.noticed()
        spent = np.maximum(self._clocks.wall() - holders.since, 0.0) * holders.core_percent.astype(np.float64)
        in_budget = rich[holders.namespace]
        may_go = ~holders.places(not_eligible)
        if not any(pod.high_priority for pod in state.waiting.all()):
            may_go &= ~in_budget
        return Victims(holders, may_go, in_budget, spent, state.others().copy())

    def _running(self, uid: str) -> Running | None:
        note = self._state.note(uid)
        if note is None or note.holding is None or not note.labelled or note.namespace in SYSTEM_NAMESPACES:
            return None
        return Running(note.namespace, note.high_priority, note.since)

    def _kept(self) -> list[tuple[WaitingPod, Earmark]]:
        """Returns the waiting pods for which devices are kept, each with its earmark."""
        written = [(one.pod, one.earmark) for uid, one in self._written.items() if uid not in self._state.earmarks]
        return [*self._state.earmarks.values(), *written]

    def _copy(self, pods: Sequence[WaitingPod]) -> tuple[Fleet, list[PodToPlace], Spare]:
        """Returns the arguments of `plan_reclaim`: a copy of the fleet, the pods to place, and other free amounts.

        In the copy, devices that are kept for other waiting pods are held. Pods that are ending, and the victims of
        earmarks, hold nothing.
        """
        state = self._state
        fleet = state.fleet.copy()
        spare_pods, spare_others = state.spare_pods(), state.spare_others(_others_of(pods))
        for uid in state.leaving() | {uid for _, earmark in self._kept() for uid in earmark.victims}:
            held = fleet.held_by(uid)
            row = None if held is None else fleet.rows.get(held.node)
            if row is not None:
                spare_pods[row] += 1
                left = spare_others.get(row, {})
                left.update({name: left[name] + state.others().get(uid, {}).get(name, 0) for name in left})
            fleet.release(uid)
        for other, earmark in self._kept():
            left = spare_others.get(fleet.rows.get(earmark.node, -1), {})
            left.update({name: left[name] - amount for name, amount in other.rules.others if name in left})
        wanted = []
        # The pods of a gang mostly have the same rules, and each look at all nodes takes a while.
        eligible: dict[tuple[str, bytes], Ints] = {}
        for pod in pods:
            rules = repr(pod.rules), state.named(pod.uid)
            if rules not in eligible:
                eligible[rules] = state.eligible(pod)
            left_out = [fleet.rows[name] for name in self._left_out(pod.uid) if name in fleet.rows]
            rows = np.setdiff1d(eligible[rules], left_out)
            wanted.append(PodToPlace(pod.uid, pod.request, rows, pod.high_priority, pod.rules.others))
        return fleet, wanted, Spare(spare_pods, spare_others)

    def _write(self, pods: Sequence[WaitingPod], plan: Plan) -> bool:
        """Writes the earmarks of a plan on the waiting pods that it places.

        If a write fails, the earmarks that were written are withdrawn. If the API server refuses a write, nothing is
        done about these pods for RETRY_SECONDS (`_pause`).

        Returns:
            True if the plan still gave the pods a place, even if a write failed. False if it did not: nothing is
            written then.
        """
        with self._state.lock:
            if not self._stands(pods, plan):
                return False
            earmarks = self._earmarks(pods, plan)
            for pod, earmark in zip(pods, earmarks, strict=True):
                self._written[pod.uid] = _Written(pod, earmark, float("inf"))
                self._state.fleet.hold(f"{EARMARKED}{pod.uid}", earmark.holding(pod.request))
        done: list[WaitingPod] = []
        try:
            for pod, earmark in zip(pods, earmarks, strict=True):
                if not self._annotate(pod, names.EARMARK, encode(earmark)):
                    if self.acts():
                        self._pause(*pods)
                    return True
                done.append(pod)
        finally:
            if len(done) < len(pods):
                for pod in pods:
                    self._unwrite(pod.uid)
                for pod in done:
                    self._annotate(pod, names.EARMARK, fallen(self._left_out(pod.uid)))
        for pod, earmark in zip(pods, earmarks, strict=True):
            self._written[pod.uid] = _Written(pod, earmark, self._clocks.now() + SHOWN_SECONDS)
            gone = list(earmark.victims)
            _log.info("reclaim planned", pod=_name(pod), uid=pod.uid, node=earmark.node, victims=gone)
        return True

    def _stands(self, pods: Sequence[WaitingPod], plan: Plan) -> bool:
        """Returns whether a plan still gives its pods a place: False if other pods got it while the plan was made.

        Also False if one of its pods has got an earmark, a reservation or a node meanwhile.
        """
        if any(self._has_place(pod.uid) for pod in pods):
            return False
        fleet, _, _ = self._copy(pods)
        for uid in plan.victims:
            fleet.release(uid)
        holdings = [holding_of(plan.places[pod.uid], pod.request) for pod in pods]
        for pod, holding in zip(pods, holdings, strict=True):
            fleet.hold(pod.uid, holding)
        return all(_is_there(fleet, holding) for holding in holdings)

    def _earmarks(self, pods: Sequence[WaitingPod], plan: Plan) -> list[Earmark]:
        """Returns the earmark of each waiting pod that a plan places."""
        until = self._clocks.wall() + self._settings.notice_seconds + self._settings.give_up_seconds
        node_of = {uid: note.holding.node for uid in plan.victims if (note := self._state.note(uid)) and note.holding}
        earmarks = []
        for pod in pods:
            placed = plan.places[pod.uid]
            gone = tuple(uid for uid, node in node_of.items() if node == placed.node)
            earmarks.append(earmark_of(placed, pod.request, gone, until, self._left_out(pod.uid)))
        return earmarks

    def _unwrite(self, uid: str) -> None:
        """Removes the record (`_Written`) of a pod's earmark, and frees the devices that the record kept.

        `uid` is the uid of the waiting pod. If the watch has shown an earmark on the pod, its devices stay kept.
        """
        with self._state.lock:
            if self._written.pop(uid, None) is not None and uid not in self._state.earmarks:
                self._state.fleet.release(f"{EARMARKED}{uid}")

    def _annotate(self, pod: WaitingPod | PodNote, key: str, value: str | None) -> bool:
        """Writes a pod's annotation through the pod's status subresource, or removes it if `value` is None.

        Returns False if this replica must not act, or the write has failed; else True.
        """
        if not self.acts():
            return False
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        try:
            self._api.patch(path, {"metadata": {"uid": pod.uid, "annotations": {key: value}}}, MERGE_PATCH)
        except ApiError as error:
            if not (error.not_found or error.conflict):
                _log.warning("annotation not written", pod=_name(pod), uid=pod.uid, key=key, error=str(error))
            return False
        return True


def _others_of(pods: Iterable[WaitingPod]) -> frozenset[str]:
    """Returns the names of the other resources for which these pods ask."""
    return frozenset(name for pod in pods for name, _ in pod.rules.others)


def _is_there(fleet: Fleet, holding: Holding) -> bool:
    """Returns whether a holding still fits its node, in a fleet that counts the holding already.

    It is False if the node or a device is no longer there, or if all pods together hold more than there is of one of
    the holding's devices, or of the node's processor time or memory.
    """
    row = fleet.rows.get(holding.node)
    places = [fleet.places.get(piece.uuid, (-1, 0)) for piece in holding.pieces]
    if row is None or any(of_row != row for of_row, _ in places):
        return False
    parts = [int(figures[place]) for figures in (fleet.core, fleet.memory, fleet.slots) for place in places]
    return min(*parts, int(fleet.cpu[row]), int(fleet.host[row])) >= 0


def _whole(state: State, pod: WaitingPod) -> list[WaitingPod]:
    """Returns the waiting pods that must be placed together with a given one (`GangPods.together_with`).

    There are none if its gang lacks pods, or devices are already held for the gang.
    """
    if pod.gang is not None:
        key = state.gangs.key_of(pod.uid)
        gang = None if key is None else state.gangs.of(key)
        if gang is None or gang.hold is not None or pod.uid not in gang.waiting:
            return []
    return state.gangs.together_with(pod)


def _name(pod: WaitingPod | PodNote) -> str:
    return f"{pod.namespace}/{pod.name}"


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _instant(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None
