"""Writes waiting pods' conditions when their answer changes, which returns them to kube-scheduler's queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog

from fairgpu.cluster.api import ApiError
from scheduler.cluster.objects import WaitingPod
from scheduler.cluster.state import State
from scheduler.cluster.waiting import CONDITION, FITS
from scheduler.extender.filtering import explain_pod, kept_out

_log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1
BETWEEN_SECONDS = 0.02
"""The pause between patches: at most 50 a second, so that thousands of waiting pods do not load the API server."""
STRATEGIC = "application/strategic-merge-patch+json"


class Patching(Protocol):
    """The requests of waking to the API server."""

    def patch(self, path: str, body: Any, content_type: str) -> dict[str, Any]:
        """Patches an object."""


def keep_waking(
    state: State, api: Patching, acts: Callable[[], bool], wait: Callable[[float], bool], stamp: Callable[[], str]
) -> None:
    """Looks for changes of budgets, inventories and gangs until `wait` returns true.

    Args:
        state: the cluster.
        api: the API server.
        acts: whether this replica may act.
        wait: waits that many seconds, and says whether everything is to end.
        stamp: the present time as the API writes it.
    """
    seen = (state.budgets.version, state.offers, state.gangs.version)
    while not wait(LOOK_SECONDS):
        present = (state.budgets.version, state.offers, state.gangs.version)
        if present != seen and acts():
            seen = present
            wake(state, api, wait, stamp)


def wake(state: State, api: Patching, wait: Callable[[float], bool], stamp: Callable[[], str]) -> int:
    """Patches each waiting pod whose answer has changed, by class and then by age; returns their number."""
    with state.lock:
        waiting = state.waiting.in_order()
    told = 0
    for one in waiting:
        with state.lock:
            text = explain_pod(state, one.pod)
            # A pod that still fits nowhere, and was told so by kube-scheduler alone, knows as much.
            changed = text != one.told and (bool(one.told) or text == FITS or text == kept_out(state, one.pod))
            state.waiting.tell(one.pod.uid, text)
        if changed:
            _patch(api, one.pod, text, stamp())
            told += 1
            if wait(BETWEEN_SECONDS):
                break
    return told


def _patch(api: Patching, pod: WaitingPod, text: str, at: str) -> None:
    fits = text == FITS
    condition = {
        "type": CONDITION,
        "status": "True" if fits else "False",
        "reason": "Fits" if fits else "Waits",
        "message": text,
        "lastTransitionTime": at,
    }
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
    try:
        api.patch(path, {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}, STRATEGIC)
    except ApiError as error:
        _log.warning("waiting pod not told", pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, error=str(error))
