"""Writes to pods in separate threads, so that a pod that cannot be written delays no other namespace.

The leader's thread hands over plans and continues; nothing here reads or changes the leader's memory. The creator of a
pod can make writes to it slow or make them fail. Therefore namespaces take turns, each has at most one write under way,
and namespaces with slow or failing writes share at most half of the threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from fairgpu.cluster.api import Json
from fairgpu.keeping import start_thread
from timekeeper.controller.metrics import PodMeasures
from timekeeper.controller.pod_writes import (
    EVICTION_STEPS,
    FAILING_AFTER,
    LONGEST_SECONDS,
    Failure,
    Plan,
    PodWrite,
    Progress,
    Step,
    Trouble,
    after_failure,
    due_write,
    failure_of,
)
from timekeeper.sources.base import ObjectEvent, Source, SourceError

THREADS = 8
SUSPECTS = 4
"""The most threads that write at one time to pods of namespaces in which a write failed or was slow lately."""
SLOW_SECONDS = 1.0
"""The duration from which a write counts as slow: the API server usually takes some milliseconds."""
DONE_SECONDS = 10.0
"""The seconds within which the watch shows a write. A pod that still needs the write later is written again."""
PLAN_SECONDS = 30.0
"""The age, in seconds, from which a plan that was not renewed is void: the budget may have received money."""
AWAY_SECONDS = 2.0
"""The pause of all writes after an error that a write to any other pod would meet, too (see `failure_of`)."""
IDLE_SECONDS = 0.5
"""The longest sleep of an idle thread, in seconds: then a retry may be due, or the process may be ending."""
MOST_EVENTS = 1000
"""The most events that wait to be written; beyond it the oldest are dropped."""

_log = structlog.get_logger()

NOT_WRITTEN = {
    Step.LABEL: "The label of GPU pods cannot be written on this pod, whose claim holds a GPU",
    Step.NOTICE: "The notice of its eviction cannot be written on this pod",
    Step.EVICT: "This pod of a spent budget cannot be evicted",
    Step.CALL_OFF: "The notice of its eviction cannot be taken off this pod",
    Step.RELEASE: "The budget's scheduling gate cannot be taken off this pod",
    Step.FINALIZER: "The meter's finalizer cannot be taken off this pod",
}


@dataclass(slots=True)
class _HandedOver:
    """One plan as the leader handed it over: the writes that are still to be done, and until when they count.

    Attributes:
        left: the writes that are still to be done, in their order, keyed by namespace.
        made_at: when the plan was handed over, in seconds of the writer's monotonic clock.
        leading: returns whether the leader that made the plan still leads.
    """

    left: dict[str, deque[PodWrite]]
    made_at: float
    leading: Callable[[], bool]


@dataclass(slots=True)
class PodWriter:
    """Does the writes to pods that the leader has planned, in threads of its own. Thread-safe.

    Failures of a pod's writes delay the next attempt; they are forgotten once a later plan of the same task does not
    name the pod. After a success, the same write is not repeated for DONE_SECONDS, in which the watch shows its effect.

    Args:
        source: the cluster, where pods and events are written.
        measures: the metrics of writes.
        clock: a monotonic clock, in seconds.
    """

    source: Source
    measures: PodMeasures
    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards the fields below."""
    _plans: dict[Plan, _HandedOver] = field(default_factory=dict)
    _turns: dict[str, None] = field(default_factory=dict)
    """Namespaces with writes to do, the longest waiting first: a new plan begins where the last one stopped."""
    _busy: set[str] = field(default_factory=set)
    _suspects: dict[str, float] = field(default_factory=dict)
    """Namespaces in which a write failed or was slow, each with the time of the clock until which they count as
    suspect.
    """
    _troubles: dict[tuple[Plan, str], Trouble] = field(default_factory=dict)
    _done: dict[tuple[Plan, str], tuple[Step, float]] = field(default_factory=dict)
    _events: deque[ObjectEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    _recording: bool = False
    _away_until: float = 0.0

    def hand_over(self, plan: Plan, writes: Sequence[PodWrite], leading: Callable[[], bool]) -> None:
        """Replaces the writes of a plan by new ones; writes that have begun finish.

        The failures of pods that the new plan does not name are forgotten.

        Args:
            writes: all writes that are due. Within a namespace they are done in this order, but pods whose writes have
                failed come last.
            leading: returns whether the leader that decided still leads; called before each write.
        """
        named = {write.uid for write in writes}
        with self._changed:
            now = self.clock()
            self._troubles = {
                key: trouble for key, trouble in self._troubles.items() if key[0] is not plan or key[1] in named
            }
            self._done = {key: done for key, done in self._done.items() if now < done[1] + DONE_SECONDS}
            self._suspects = {name: until for name, until in self._suspects.items() if now < until}
            left: dict[str, deque[PodWrite]] = {}
            # Pods that failed before come last: the others of their namespace do not wait for them.
            for write in sorted(writes, key=lambda write: (plan, write.uid) in self._troubles):
                left.setdefault(write.namespace, deque()).append(write)
            self._plans[plan] = _HandedOver(left, now, leading)
            self._turns = {**self._turns, **dict.fromkeys(left)}
            self._measure()
            if left:
                self._changed.notify_all()

    def pause(self, plan: Plan) -> None:
        """Stops the writes of a plan until it is replaced; writes that have begun finish, and failures stay known."""
        with self._changed:
            self._plans.pop(plan, None)

    def record(self, notices: Iterable[ObjectEvent]) -> None:
        """Queues events of pods; the threads write them later."""
        with self._changed:
            self._events.extend(notices)
            self._changed.notify()

    def progress(self, plan: Plan) -> Progress:
        """Returns the outcomes of a plan's writes so far, on which the leader's next decisions are based."""
        with self._changed:
            now = self.clock()
            released = {
                uid
                for (plan_of, uid), (step, at) in self._done.items()
                if plan_of is plan and step is Step.RELEASE and now < at + DONE_SECONDS
            }
            failing = {uid for (plan_of, uid), trouble in self._troubles.items() if plan_of is plan and trouble.failing}
            return Progress(frozenset(released), frozenset(failing))

    def start(self, ending: threading.Event) -> None:
        """Starts the threads, which write to pods until `ending` is set."""
        for number in range(THREADS):
            start_thread(f"pods-{number}", partial(self._run, ending), ending.wait)

    def _run(self, ending: threading.Event) -> None:
        while not ending.is_set():
            with self._changed:
                write = self._take()
                if write is None:
                    self._changed.wait(IDLE_SECONDS)
            if write is not None:
                write()

    def _take(self) -> Callable[[], bool] | None:
        """Takes the next event or write to a pod out of the queues; returns a function that carries it out.

        The event or write counts as under way from now on. The result is None if nothing is due, or if nothing may be
        written now: each namespace has at most one write under way, and all slow or failing namespaces together have at
        most SUSPECTS.
        """
        with self._changed:
            now = self.clock()
            if now < self._away_until:
                return None
            if self._events and not self._recording:
                self._recording = True
                notice = self._events.popleft()
                return lambda: self._record(notice)
            suspects_busy = len(self._busy & self._suspects.keys())
            for namespace in list(self._turns):
                suspected = namespace in self._suspects
                if namespace in self._busy or (suspected and suspects_busy >= SUSPECTS):
                    continue
                del self._turns[namespace]
                planned = self._next_of(namespace, now)
                if planned is not None:
                    self._busy.add(namespace)
                    plan, write = planned
                    return lambda: self._carry_out(plan, write)
            return None

    def _next_of(self, namespace: str, now: float) -> tuple[Plan, PodWrite] | None:
        for plan in Plan:
            held = self._plans.get(plan)
            if held is None or now >= held.made_at + PLAN_SECONDS or not held.leading():
                continue
            left = held.left.get(namespace, deque())
            while left:
                write = left.popleft()
                step, at = self._done.get((plan, write.uid), (None, 0.0))
                trouble = self._troubles.get((plan, write.uid))
                written = step is write.step and now < at + DONE_SECONDS
                if not written and (trouble is None or now >= trouble.until):
                    return plan, write
        return None

    def _carry_out(self, plan: Plan, planned: PodWrite) -> bool:
        began = self.clock()
        with self._changed:
            trouble = self._troubles.get((plan, planned.uid))
        write = due_write(planned, trouble, began)
        item = self.source.mirrors.pods.get(write.uid)
        written = False
        try:
            if item is not None:
                self._write(write, item)
                written = True
                self._succeeded(plan, planned, write, item)
        except SourceError as error:
            self._failed(plan, planned, write, item or {}, error)
        except Exception as error:  # noqa: BLE001 - see below
            # A thread that ended here would leave the others fewer and fewer.
            _log.exception("pod writer failed unexpectedly", step=write.step, **_log_fields(write))
            self._note(plan, planned, write, Failure.FAILED, item or {}, error)
        finally:
            with self._changed:
                now = self.clock()
                if now - began > SLOW_SECONDS:
                    self._suspects[write.namespace] = now + LONGEST_SECONDS
                self._busy.discard(write.namespace)
                self._turns[write.namespace] = None
                self._changed.notify()
        return written

    def _write(self, write: PodWrite, item: Json) -> None:
        if write.step is Step.LABEL:
            self.source.label_gpu_pod(item)
        elif write.step is Step.NOTICE:
            self.source.announce_eviction(item, write.eviction_at)
        elif write.step is Step.CALL_OFF:
            self.source.announce_eviction(item, None)
        elif write.step is Step.EVICT:
            self.source.evict(item)
        elif write.step is Step.RELEASE:
            self.source.lift_gate(item)
        else:
            self.source.remove_finalizer(item)

    def _succeeded(self, plan: Plan, planned: PodWrite, write: PodWrite, item: Json) -> None:
        with self._changed:
            self._done[plan, planned.uid] = planned.step, self.clock()
            self._troubles.pop((plan, planned.uid), None)
            self._measure()
        self.measures.writes.labels(write.step.value, "written").inc()
        if write.step in EVICTION_STEPS:
            self.measures.evictions.labels(write.step.value if write is planned else "without-notice").inc()
        _log.info("pod written", step=write.step.value, **_log_fields(write))
        for notice in write.events(item):
            self.source.record_event(notice)

    def _failed(self, plan: Plan, planned: PodWrite, write: PodWrite, item: Json, error: SourceError) -> None:
        failure = failure_of(error)
        if failure is not None:
            self._note(plan, planned, write, failure, item, error)
            return
        with self._changed:
            self._away_until = self.clock() + AWAY_SECONDS
        self.measures.writes.labels(write.step.value, "away").inc()
        _log.warning("writes to pods pause", step=write.step.value, error=str(error), **_log_fields(write))

    def _note(
        self, plan: Plan, planned: PodWrite, write: PodWrite, failure: Failure, item: Json, error: Exception
    ) -> None:
        """Records that a write to a pod failed, and writes the event that `event_of` returns for the failure, if any.

        Args:
            planned: the write that the plan has.
            write: the write that was tried, the planned one or its `instead`.
            failure: the reason why it failed.
            item: the pod as JSON; empty if it is not known.
            error: the error, for the log and the event.
        """
        with self._changed:
            now = self.clock()
            before = self._troubles.get((plan, planned.uid))
            trouble = self._troubles[plan, planned.uid] = after_failure(before, planned.step, failure, now)
            if failure is Failure.FAILED:
                self._suspects[write.namespace] = now + LONGEST_SECONDS
            self._measure()
        self.measures.writes.labels(write.step.value, failure.value).inc()
        if write.step in EVICTION_STEPS and failure is not Failure.CHANGED:
            self.measures.evictions.labels(failure.value).inc()
        fields = {**_log_fields(write), "step": write.step.value, "failure": failure.value, "error": str(error)}
        if trouble.failing or failure in (Failure.REFUSED, Failure.FAILED):
            _log.warning("pod not written", failures=trouble.failures, **fields)
        else:
            _log.info("pod not written yet", **fields)
        notice = event_of(planned, write, trouble, failure, item, error)
        if notice is not None:
            self.source.record_event(notice)

    def _measure(self) -> None:
        counts = dict.fromkeys(Step, 0)
        for trouble in self._troubles.values():
            counts[trouble.step] += trouble.failing
        for step, count in counts.items():
            self.measures.not_written.labels(step.value).set(count)

    def _record(self, notice: ObjectEvent) -> bool:
        try:
            self.source.record_event(notice)
        finally:
            with self._changed:
                self._recording = False
                self._changed.notify()
        return False


def event_of(
    planned: PodWrite, write: PodWrite, trouble: Trouble, failure: Failure, item: Json, error: Exception
) -> ObjectEvent | None:
    """Returns the event of a pod on which a write failed; None for a failure that needs no event.

    A pod gets one event when a PodDisruptionBudget blocks its eviction, and one when its writes keep failing.

    Args:
        planned: the write that the plan has.
        write: the write that was tried: `planned`, or its `instead` once `planned` had failed for `instead_seconds`.
        trouble: the failures of the pod's writes so far, with this one.
        failure: the reason why this write failed.
        item: the pod as JSON; empty if it is not known.
        error: the error, as a rule the API server's answer.
    """
    if failure is Failure.BLOCKED:
        message = f"Evicting it has to wait: {error}"
        return ObjectEvent(item, "BudgetEvictionBlocked", message, warning=True) if trouble.blocked == 1 else None
    if trouble.failures - trouble.blocked != FAILING_AFTER or not item:
        return None
    follows = "It is tried again for as long as it is needed."
    if write.instead is not None:
        minutes = round(write.instead_seconds / 60, 1)
        follows = (
            f"It is evicted without a notice {minutes:g} minutes after the first try, unless there is money by then."
        )
    what = NOT_WRITTEN[planned.step if write is planned else write.step]
    return ObjectEvent(item, "PodNotWritten", f"{what}. {follows} The error is: {error}", warning=True)


def _log_fields(write: PodWrite) -> Mapping[str, str]:
    return {"uid": write.uid, "namespace": write.namespace, "pod": write.pod, "budget": write.budget}
