"""Logs an error about one pod, so that the work on all other pods goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from scheduler.cluster.objects import PodNote, WaitingPod

_log = structlog.get_logger(__name__)


@contextmanager
def apart(part: str, pod: WaitingPod | PodNote, failed: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Logs an unexpected error that the with block raises about one pod, so that the caller goes on with other pods.

    Args:
        part: the name, for the log, of the part of the scheduler that works on many pods in turn.
        failed: called after an error.
    """
    try:
        yield
    except Exception:  # noqa: BLE001 - one pod must not keep the part from all others
        _log.exception("pod passed over", part=part, pod=f"{pod.namespace}/{pod.name}", uid=pod.uid)
        failed()
