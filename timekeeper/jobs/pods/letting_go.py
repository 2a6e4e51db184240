"""Lets pods go that the meter's finalizer holds on the API server, once nothing more will be charged for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.metered import Metered
from timekeeper.jobs.pods.turns import TURN_SECONDS, in_turns
from timekeeper.metering.pods import PodFacts
from timekeeper.rules.money import SECOND
from timekeeper.sources.source import ChangedMeanwhileError, RefusedError, Source

REFUSED = 30 * SECOND
"""A pod whose release is refused, by a policy or a webhook, is tried again after this long."""

_log = structlog.get_logger()


@dataclass(slots=True)
class FinalizerRemover:
    """Remembers whom it let go, in one term of leadership, until the mirror shows it."""

    source: Source
    books: Books
    clock: Callable[[], float] = time.monotonic
    _removed: set[str] = field(default_factory=set)
    _refused: dict[str, int] = field(default_factory=dict)

    def let_go(self, now: int) -> int:
        """Removes the finalizer of pods that may go, as far as its turn lasts; of how many.

        Raises:
            SourceError: the API server does not answer; who is left is let go the next time.
        """
        until, count = self.clock() + TURN_SECONDS, 0
        facts, sessions = self.books.pods.facts, self.books.pods.sessions
        self._removed &= facts.keys()
        self._refused = {uid: since for uid, since in self._refused.items() if since <= now < since + REFUSED}
        holds = self.books.rules.holds_pods
        waiting: dict[str, list[PodFacts]] = {}
        for pod in facts.values():
            if not pod.held or pod.uid in self._removed or pod.uid in self._refused:
                continue
            if may_go(pod, sessions.get(pod.uid), holds=holds):
                waiting.setdefault(self.books.account_of(pod.namespace), []).append(pod)
        for _, pod in in_turns(waiting):
            count += self._remove(pod, now)
            if self.clock() >= until:
                break
        return count

    def _remove(self, pod: PodFacts, now: int) -> bool:
        item = self.source.mirrors.pods.get(pod.uid)
        if item is None:
            return False
        told = {"uid": pod.uid, "namespace": pod.namespace, "pod": pod.name}
        try:
            self.source.remove_finalizer(item)
        except ChangedMeanwhileError as error:
            _log.info("pod changed before it was let go", **told, error=str(error))
            return False
        except RefusedError as error:
            self._refused[pod.uid] = now
            _log.warning("pod's finalizer is not to be removed", **told, error=str(error))
            return False
        self._removed.add(pod.uid)
        _log.info("pod let go", **told)
        return True


def may_go(pod: PodFacts, metered: Metered | None, *, holds: bool) -> bool:
    """Whether a pod's finalizer may be removed.

    Args:
        pod: a pod with the finalizer.
        metered: its session; None where it never held anything.
        holds: whether pods are to be held at all.

    It may as soon as the pod holds nothing any more and the store has the close of its session, or there never was one.
    """
    if not holds:
        return True
    if not pod.terminal and not pod.removed:
        return False
    return metered is None or metered.acknowledged.closed
