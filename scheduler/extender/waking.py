"""Writes waiting pods' conditions when their answer changes, which returns them to kube-scheduler's queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import structlog

from fairgpu.cluster.api import ApiError
from scheduler.cluster.objects import PLACEABLE, WaitingPod
from scheduler.cluster.state import State
from scheduler.cluster.waiting import FITS
from scheduler.extender.filtering import budget_block, explain_pod
from scheduler.measures import Measures

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
MISSED_LOOKS = 20
"""The number of looks for which a refusal may have missed a pod's end, which kube-scheduler may see first."""
RETRY_SECONDS = 2.0
BETWEEN_SECONDS = 0.02
"""The pause between patches: at most 50 a second, so that thousands of waiting pods do not load the API server."""
STRATEGIC = "application/strategic-merge-patch+json"


class Patching(Protocol):
    """The part of the API server that waking needs."""

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """Patches the object at a path of the API server, by a patch of that content type; returns the new object."""


def keep_waking(
    state: State,
    api: Patching,
    acts: Callable[[], bool],
    wait: Callable[[float], bool],
    stamp: Callable[[], str],
    measures: Measures,
) -> None:
    """Looks for changes of budgets, inventories and gangs until `wait` returns true.

    An end of another pod brings waiting pods back to kube-scheduler's queue without a condition. Where kube-scheduler
    saw it first, it asked too early, and asks no more: pods that were refused just before get a condition.

    Args:
        state: the cluster.
        api: the API server.
        acts: whether this replica may act.
        wait: waits that many seconds, and says whether everything is to end.
        stamp: the present time as the API writes it.
        measures: counts the conditions.
    """
    seen = (state.budgets.version, state.offers, state.gangs.version)
    frees, refused = state.frees, deque[set[str]](maxlen=MISSED_LOOKS)
    pause = LOOK_SECONDS
    while not wait(pause):
        with state.lock:
            refused.append(state.waiting.take_refused())
            ended, frees = state.frees != frees, state.frees
        if ended and acts():
            wake(state, api, wait, stamp, measures, set().union(*refused))
        present, pause = (state.budgets.version, state.offers, state.gangs.version), LOOK_SECONDS
        if present == seen or not acts():
            continue
        if wake(state, api, wait, stamp, measures):
            seen = present
        else:
            pause = RETRY_SECONDS


def wake(
    state: State,
    api: Patching,
    wait: Callable[[float], bool],
    stamp: Callable[[], str],
    measures: Measures,
    uids: AbstractSet[str] | None = None,
) -> bool:
    """Writes the condition of each waiting pod whose answer has changed, the highest class and the oldest first.

    With `uids`, it writes the conditions of these pods alone.

    Returns:
        False where the API server cannot be asked: the rest is for the next time.
    """
    with state.lock:
        waiting = [one for one in state.waiting.in_order() if uids is None or one.pod.uid in uids]
    for one in waiting:
        with state.lock:
            block = budget_block(state, one.pod)
            text = explain_pod(state, one.pod, block)
            # A pod that still fits nowhere, and knows so from kube-scheduler alone, needs no condition.
            changed = text != one.text and (bool(one.text) or text == FITS or block is not None)
        if changed:
            outcome = _patch(api, one.pod, text, stamp())
            measures.condition(outcome)
            if outcome == "failed":
                return False
        with state.lock:
            state.waiting.set_text(one.pod.uid, text)
        if changed and wait(BETWEEN_SECONDS):
            break
    return True


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
        api.patch(path, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}, STRATEGIC)
    except ApiError as error:
        _log.warning("condition not written", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, error=str(error))
        # A pod that is gone keeps no other one from its condition.
        return "refused" if 400 <= error.status < 500 and error.status != 429 else "failed"
    return "written"
