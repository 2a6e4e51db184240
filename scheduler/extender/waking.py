"""Writes waiting pods' conditions when the reason to wait changes, which returns them to kube-scheduler's queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError
from fairgpu.keeping import Wait
from scheduler.cluster.apart import apart
from scheduler.cluster.objects import PLACEABLE, WaitingPod
from scheduler.cluster.state import State
from scheduler.cluster.waiting import FITS, Waiting
from scheduler.extender.binding import Clock
from scheduler.extender.filtering import BudgetBlock, budget_block, explain_pod
from scheduler.gangs.holding import release_overdue
from scheduler.measures import Measures

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
MISSED_LOOKS = 20
"""The number of looks for which a refusal may have missed a pod's end, which kube-scheduler may see first."""
CHECK_SECONDS = 10.0
"""The interval at which pods whose condition says that they fit are looked at again."""
RETRY_SECONDS = 2.0
"""The time for which a pod is left out after its condition could not be written; it doubles with each failure."""
MAX_RETRY_SECONDS = 16.0
BETWEEN_SECONDS = 0.02
"""The pause after a patch or a failure: at most 50 a second, so that thousands of waiting pods do not load the API
server."""


class Patching(Protocol):
    """A client of the API server that can patch an object; pods' conditions are written with it."""

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """Patches an object of the API server; returns the new object.

        Args:
            path: the object's path in the API.
            body: the patch as JSON.
            content_type: the media type that says which kind of patch it is.
        """


@dataclass(frozen=True, slots=True)
class Late:
    """The record of a pod whose condition is still to be written.

    Attributes:
        failures: how many attempts to write the condition have failed in a row.
        at: when the next attempt is due, in monotonic seconds.
    """

    failures: int
    at: float

    def again(self, now: float) -> Late:
        """Returns the record after one more failure at `now`, in monotonic seconds.

        Each failure doubles the pause before the next try, from RETRY_SECONDS up to MAX_RETRY_SECONDS.
        """
        return Late(self.failures + 1, now + min(RETRY_SECONDS * 2**self.failures, MAX_RETRY_SECONDS))


class Unwritten(NamedTuple):
    """The uids of the pods whose conditions one run of `wake` did not write.

    Attributes:
        failed: the pods whose condition could not be written, or for which an unexpected error arose.
        not_tried: the pods that were not reached before one failed, or before this replica ceased to act.
    """

    failed: frozenset[str]
    not_tried: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Writes the condition fairgpu.io/Placeable of waiting pods.

    Attributes:
        api: the client of the API server.
        acts: returns whether this replica may act; called before each pod, since thousands of pods take minutes.
        stamp: returns the present time in RFC 3339.
        measures: the metrics that count the conditions, and unexpected errors.
    """

    api: Patching
    acts: Callable[[], bool]
    stamp: Callable[[], str]
    measures: Measures

    def write(self, pod: WaitingPod, text: str) -> bool:
        """Writes `text` into a pod's condition; returns False if the write must be tried again.

        It returns True if the text was written, or if the API server has refused the write for good.
        """
        outcome = _patch(self.api, pod, text, self.stamp())
        self.measures.condition(outcome)
        return outcome != "failed"


def keep_waking(state: State, conditions: Conditions, clock: Clock) -> None:
    """Makes kube-scheduler try waiting pods again when what keeps them waiting has changed, until the process ends.

    Every LOOK_SECONDS it looks for changes of budgets, inventories, gangs, earmarks and reservations. After a change it
    writes the condition `fairgpu.io/Placeable` of the pods whose reason to wait has changed: kube-scheduler queues a
    pod again when its status changes. It also frees overdue reservations, as `filter` does, since kube-scheduler may
    not call `filter` for a long time. It writes nothing while this replica must not act.

    When a pod ends, kube-scheduler tries waiting pods again by itself. If kube-scheduler sees the end before the
    extender does, the extender refuses a pod that would fit, and kube-scheduler does not ask again. So once the
    extender sees an end, it also explains anew the pods that it refused in the last MISSED_LOOKS looks. While the watch
    of pods is interrupted, it forgets none of the refused pods.

    If a pod is refused while its condition says that it fits, the condition gets the reason at the next look. All pods
    whose condition says that they fit are also looked at every CHECK_SECONDS, since kube-scheduler refuses a pod on a
    full node without asking the extender.

    A pod whose condition cannot be written is left out for RETRY_SECONDS, and for twice as long after each
    further failure, up to MAX_RETRY_SECONDS. The other pods are tried at the next look.

    Args:
        state: the scheduler's state, with the waiting pods.
        conditions: writes the conditions, and says whether this replica may act.
        clock: the clock; the loop ends when its wait reports that the process ends.
    """
    # None: the state may have changed since this was last run, which an error may have ended.
    seen: tuple[int, ...] | None = None
    frees, refused = state.frees, deque[set[str]](maxlen=MISSED_LOOKS)
    late, check_at = dict[str, Late](), clock.now() + CHECK_SECONDS
    while not clock.wait(LOOK_SECONDS):
        now = clock.now()
        with state.lock:
            state.expire(now)
            release_overdue(state, now)
            just_refused, outdated = state.waiting.take_refused(), state.waiting.take_outdated()
            if check_at <= now:
                outdated, check_at = outdated | state.waiting.shown_to_fit(), now + CHECK_SECONDS
            if state.blind and refused:
                refused[-1] |= just_refused
            else:
                refused.append(just_refused)
            ended, frees = state.frees != frees, state.frees
        if ended:
            late = {uid: Late(0, now) for uid in set[str]().union(*refused)} | late
        late = {uid: Late(0, now) for uid in outdated} | late
        present, due = _versions(state), {uid for uid, one in late.items() if one.at <= now}
        if not conditions.acts() or (present == seen and not due):
            continue
        again = {uid for uid in due if late[uid].failures}
        if present == seen:
            unwritten = wake(state, conditions, clock.wait, uids=due, last=again)
        else:
            unwritten = wake(state, conditions, clock.wait, but=late.keys() - due, last=again)
        seen = present
        late = _still_late(late, due, unwritten, clock.now())


def _still_late(late: Mapping[str, Late], tried: AbstractSet[str], unwritten: Unwritten, now: float) -> dict[str, Late]:
    """Returns the record of each pod whose condition is still to be written, keyed by uid.

    Args:
        late: the records before some pods were tried.
        tried: the uids of these pods.
        unwritten: the tried pods whose condition was not written.
        now: seconds of a monotonic clock.
    """
    still = {uid: one for uid, one in late.items() if uid not in tried}
    still |= {uid: late.get(uid, Late(0, now)) for uid in unwritten.not_tried}
    return still | {uid: late.get(uid, Late(0, now)).again(now) for uid in unwritten.failed}


def _versions(state: State) -> tuple[int, ...]:
    """Returns version numbers; one of them changes when waiting pods may get another answer.

    The end of a pod changes none of these numbers.
    """
    with state.lock:
        if state.budgets.any_over:
            state.lowest_in_budget()
        return state.budgets.version, state.offers, state.gangs.version, state.keeps, state.yields


def wake(
    state: State,
    conditions: Conditions,
    wait: Wait,
    *,
    uids: AbstractSet[str] | None = None,
    but: AbstractSet[str] = frozenset(),
    last: AbstractSet[str] = frozenset(),
) -> Unwritten:
    """Writes the condition of each waiting pod whose reason to wait has changed: highest priority first, then oldest.

    It stops after the first pod that fails: a failure may take half a minute, and the caller has other work.

    Args:
        uids: the uids of the pods to look at; None for all.
        but: the uids of the pods to leave out.
        last: the uids of the pods that come after all others, because they failed before.

    Returns:
        The pods whose conditions are still to be written.
    """
    with state.lock:
        waiting = [
            one for one in state.waiting.in_order() if (uids is None or one.pod.uid in uids) and one.pod.uid not in but
        ]
    waiting.sort(key=lambda one: one.pod.uid in last)
    failed: set[str] = set()

    def note_error(uid: str) -> None:
        failed.add(uid)
        conditions.measures.part_failed("waking")

    for at, one in enumerate(waiting):
        if failed or not conditions.acts():
            return Unwritten(frozenset(failed), frozenset(rest.pod.uid for rest in waiting[at:]))
        tried = True
        with apart("waking", one.pod, partial(note_error, one.pod.uid)):
            tried = _wake_one(state, conditions, one.pod.uid, failed)
        if tried and wait(BETWEEN_SECONDS):
            break
    return Unwritten(frozenset(failed), frozenset())


def _wake_one(state: State, conditions: Conditions, uid: str, failed: set[str]) -> bool:
    """Writes the condition of the pod with this uid, if the pod still waits and the text must change.

    If the write fails, the uid is added to `failed`. Returns whether a write was tried.
    """
    with state.lock:
        one = state.waiting.get(uid)
        if one is None:
            return False
        block = budget_block(state, one.pod)
        text = one.answer if one.outdated else explain_pod(state, one.pod, block, one.kept_from)
        if not _must_be_written(one, text, block):
            return False
        # Before the write: kube-scheduler may see it, and ask, before the API server's answer is here.
        state.waiting.set_text(uid, text)
    written = False
    try:
        written = conditions.write(one.pod, text)
    finally:
        if not written:
            failed.add(uid)
            with state.lock:
                state.waiting.not_written(one, text)
    return True


def _must_be_written(one: Waiting, text: str, block: BudgetBlock | None) -> bool:
    """Returns whether `text`, the reason why a pod waits now, must be written into its condition fairgpu.io/Placeable.

    If the pod has the condition already, each change of the text is written, and any text if the condition is out of
    date (`Waiting.shows_fit`). A pod without the condition shows the extender's last answer in kube-scheduler's own
    condition. If a budget holds such a pod back, the first text is written once it differs from that answer. If no
    budget does, the first text is written if a node has room now, or if this replica has refused the pod and `text` has
    a cause that the answer lacks. A changed figure is no such cause: each pod that is placed changes figures, and
    kube-scheduler would ask about thousands of pods again.

    Args:
        one: the pod, with the texts that it shows now.
        block: how a budget holds the pod back; None if none does.
    """
    if one.text:
        return text != one.text
    if one.shows_fit:
        return True
    if block is not None:
        return text != one.answer
    return text == FITS or (bool(one.answer) and not _causes(text) <= _causes(one.answer))


def _causes(text: str) -> set[str]:
    return {part.partition(":")[0] for part in text.split("; ")}


def _patch(api: Patching, pod: WaitingPod, text: str, at: str) -> str:
    """Writes `text` and the time `at` into a pod's condition fairgpu.io/Placeable; returns one of `measures.WRITES`."""
    fits = text == FITS
    condition = {
        "type": PLACEABLE,
        "status": "True" if fits else "False",
        "reason": "Fits" if fits else "Waits",
        "message": text,
        "lastTransitionTime": at,
    }
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
    try:
        api.patch(path, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}, STRATEGIC_MERGE_PATCH)
    except ApiError as error:
        _log.warning("condition not written", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, error=str(error))
        # A pod that is gone keeps no other one from its condition.
        return "refused" if 400 <= error.status < 500 and error.status != 429 else "failed"
    return "written"
