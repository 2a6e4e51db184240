"""Writes waiting pods' conditions when their answer changes, which returns them to kube-scheduler's queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from fairgpu.cluster.api import STRATEGIC_MERGE_PATCH, ApiError
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
RETRY_SECONDS = 2.0
BETWEEN_SECONDS = 0.02
"""The pause between patches: at most 50 a second, so that thousands of waiting pods do not load the API server."""


class Patching(Protocol):
    """The part of the API server that waking needs."""

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """Patches the object at a path of the API server, by a patch of that content type; returns the new object."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Writes the conditions of waiting pods.

    Attributes:
        api: the API server.
        acts: whether this replica may act; asked before each write, since thousands take minutes.
        stamp: the present time as the API writes it.
        measures: counts the conditions, and unknown errors.
    """

    api: Patching
    acts: Callable[[], bool]
    stamp: Callable[[], str]
    measures: Measures

    def write(self, pod: WaitingPod, text: str) -> bool:
        """Writes a pod's condition; returns False where that must be tried later, or by the replica that acts."""
        if not self.acts():
            return False
        outcome = _patch(self.api, pod, text, self.stamp())
        self.measures.condition(outcome)
        return outcome != "failed"


def keep_waking(state: State, conditions: Conditions, clock: Clock) -> None:
    """Looks for changes of budgets, inventories, gangs, earmarks and reservations until the clock's wait returns true.

    It frees overdue reservations, as filter does: kube-scheduler may not call filter for a long time.

    The end of a pod brings waiting pods back to kube-scheduler's queue without a condition. If kube-scheduler sees that
    end before the extender does, it asks too early, is refused, and does not ask again. Pods that were refused just
    before therefore get a condition.

    Args:
        state: the cluster.
        conditions: writes them.
        clock: monotonic seconds, and a wait that says whether everything is to end.
    """
    # None: the state may have changed since this was last run, which an error may have ended.
    seen: tuple[int, ...] | None = None
    frees, refused = state.frees, deque[set[str]](maxlen=MISSED_LOOKS)
    left: frozenset[str] = frozenset()
    pause = LOOK_SECONDS
    while not clock.wait(pause):
        with state.lock:
            state.expire(clock.now())
            release_overdue(state, clock.now())
            refused.append(state.waiting.take_refused())
            ended, frees = state.frees != frees, state.frees
        if ended:
            left = left.union(*refused)
        present, pause = _versions(state), LOOK_SECONDS
        if not conditions.acts() or (present == seen and not left):
            continue
        left = wake(state, conditions, clock.wait, left if present == seen else None)
        seen = present
        if left:
            pause = RETRY_SECONDS


def _versions(state: State) -> tuple[int, ...]:
    """Returns numbers that change together with the answers of waiting pods, beyond the end of other pods."""
    with state.lock:
        if state.budgets.any_over:
            state.lowest_in_budget()
        return state.budgets.version, state.offers, state.gangs.version, state.keeps, state.yields


def wake(
    state: State, conditions: Conditions, wait: Callable[[float], bool], uids: AbstractSet[str] | None = None
) -> frozenset[str]:
    """Writes the condition of each waiting pod whose answer has changed, the highest class and the oldest first.

    With `uids`, it writes the conditions of these pods alone.

    Returns:
        The uids of the pods that are left for the next time: those at which an unknown error arose; and all the rest
        from the first pod on for which the API server cannot be asked, or at which this replica acts no longer.
    """
    with state.lock:
        waiting = [one for one in state.waiting.in_order() if uids is None or one.pod.uid in uids]
    left: set[str] = set()

    def failed(uid: str) -> None:
        left.add(uid)
        conditions.measures.part_failed("waking")

    for at, one in enumerate(waiting):
        with apart("waking", one.pod, partial(failed, one.pod.uid)):
            with state.lock:
                block = budget_block(state, one.pod)
                text = explain_pod(state, one.pod, block, one.kept_from)
            if not _must_be_written(one, text, block):
                continue
            if not conditions.write(one.pod, text):
                return frozenset(left).union(rest.pod.uid for rest in waiting[at:])
            with state.lock:
                state.waiting.set_text(one.pod.uid, text)
            if wait(BETWEEN_SECONDS):
                break
    return frozenset(left)


def _must_be_written(one: Waiting, text: str, block: BudgetBlock | None) -> bool:
    """Whether a pod's condition must be written.

    A pod without our condition shows kube-scheduler's, which has the answer to its last call. A figure in it grows old
    with each pod that is placed, and alone is no reason to write: each time, thousands of waiting pods would be written
    and asked about again. A cause that it does not name is one. Our own condition is kept current to the figure.
    """
    if one.text:
        return text != one.text
    if block is not None:
        return text != one.answer
    return text == FITS or (bool(one.answer) and not _causes(text) <= _causes(one.answer))


def _causes(text: str) -> set[str]:
    """Returns the causes that a text names, such as `gpu-memory`."""
    return {part.partition(":")[0] for part in text.split("; ")}


def _patch(api: Patching, pod: WaitingPod, text: str, at: str) -> str:
    """Writes a pod's condition; returns the outcome, one of scheduler.measures.WRITES."""
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
