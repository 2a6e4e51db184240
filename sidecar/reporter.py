"""The sidecar's loop: it samples the usage files, reports when a report is due, and reports once more at the end.

Two kinds of events wake the loop: the signal to stop, and the outcome of a report. A short-lived thread delivers each
report, since name resolution cannot be interrupted, and must delay neither sampling nor the end.
"""

from __future__ import annotations

import queue
import signal
import ssl
import threading
import time
from collections.abc import Callable
from random import random
from types import FrameType
from typing import NamedTuple

from sidecar import events, pacing
from sidecar.delivery import Accepted, Outcome, Refused, deliver, describe, encode
from sidecar.settings import Settings
from sidecar.tally import Tally, advance, begin
from sidecar.usage_record import UsageError, container_names, read_usage

SAMPLE_SECONDS = 5.0
"""The interval between reads of the files. When a container restarts, its use since the last read is lost: the use of
at most this time."""
LAST_REPORT_SECONDS = 1.5
TOO_MANY_REQUESTS = 429
_THREAD_STACK_BYTES = 512 * 1024


Deliver = Callable[[bytes], Outcome]
"""A function that sends the body of a report to the timekeeper and returns the outcome."""


class _Stop(NamedTuple):
    """The event that SIGTERM or SIGINT puts into the queue."""


class _Delivered(NamedTuple):
    """The event that a report's thread puts into the queue when the outcome of the report is known.

    Attributes:
        sequence: the number of the report.
        outcome: whether the timekeeper took the report.
    """

    sequence: int
    outcome: Outcome


class Reporter:
    """The sidecar's loop, which samples the usage files of a pod's containers and sends reports to the timekeeper."""

    def __init__(self, settings: Settings, deliver_report: Deliver, boot: str) -> None:
        self._settings = settings
        self._deliver = deliver_report
        self._boot = boot
        self._sequence = 0
        self._tallies: dict[str, Tally] = {}
        self._present: set[str] | None = None
        """The containers whose files were there when the sidecar started, and which it has not read yet; None before
        it has seen which ones there are.
        """
        self._troubles: dict[str, str] = {}
        self._pace = pacing.Pace(settings.interval_seconds)
        self._events: queue.SimpleQueue[_Delivered | _Stop] = queue.SimpleQueue()

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Stops the loop after one last report; safe in a signal handler, as SimpleQueue.put is reentrant."""
        self._events.put(_Stop())

    def run(self) -> None:
        """Samples usage and sends reports until `stop` is called; then sends one last report."""
        in_flight = False
        due = time.monotonic() + pacing.first_delay(self._pace, random)
        while True:
            self.sample()
            now = time.monotonic()
            if not in_flight and now >= due:
                self._start_delivery()
                in_flight = True
            wait = SAMPLE_SECONDS if in_flight else min(SAMPLE_SECONDS, max(0.0, due - now))
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                continue
            if isinstance(event, _Stop):
                self._last_report()
                return
            in_flight = False
            due = time.monotonic() + self._settle(event.outcome)

    def sample(self) -> None:
        """Reads each container's usage file once, and adds what is new to the container's tally.

        Logs why a file is unreadable, once for as long as the reason stays the same.
        """
        try:
            names = container_names(self._settings.usage_folder)
        except OSError as error:
            self._note("", str(error))
            return
        self._note("", None)
        if self._present is None:
            self._present = set(names)
        for name in names:
            tally = self._tallies.get(name, Tally())
            try:
                record = read_usage(self._settings.usage_folder, name)
                self._tallies[name] = begin(record) if name in self._present else advance(tally, record)
                self._present.discard(name)
            except (OSError, UsageError) as error:
                self._tallies[name] = tally
                self._note(name, str(error))
            else:
                self._note(name, None)

    def _note(self, container: str, trouble: str | None) -> None:
        if trouble is None:
            self._troubles.pop(container, None)
        elif self._troubles.get(container) != trouble:
            self._troubles[container] = trouble
            events.emit("warning", "usage_unreadable", container=container, reason=trouble)

    def _start_delivery(self, *, last: bool = False) -> None:
        self._sequence += 1
        body = encode(self._boot, self._sequence, self._tallies, last=last)
        try:
            threading.Thread(target=self._send, args=(self._sequence, body), daemon=True).start()
        except RuntimeError as error:  # the pod has as many processes as its kubelet allows
            self._events.put(_Delivered(self._sequence, Refused(describe(error))))

    def _send(self, sequence: int, body: bytes) -> None:
        try:
            outcome = self._deliver(body)
        except Exception as error:  # noqa: BLE001 - without an outcome the loop would send no report again
            outcome = Refused(describe(error))
        self._events.put(_Delivered(sequence, outcome))

    def _settle(self, outcome: Outcome) -> float:
        """Adjusts the pace to a report's outcome; returns the seconds until the next report."""
        if isinstance(outcome, Accepted):
            if self._pace.failures:
                events.emit("info", "timekeeper_back", failures=self._pace.failures)
            self._pace = pacing.after_success(self._pace, outcome.interval_seconds)
            return pacing.delay(self._pace, random)
        if outcome.status == TOO_MANY_REQUESTS:
            return pacing.delay_after_early(self._pace, random, outcome.retry_after_seconds)
        self._pace = pacing.after_failure(self._pace)
        wait = pacing.delay(self._pace, random, outcome.retry_after_seconds)
        self._log_refusal(outcome, round(wait, 1))
        return wait

    def _last_report(self) -> None:
        """Sends one report of the final figures, and waits at most LAST_REPORT_SECONDS for its outcome.

        An older report may still be under way. If it arrives after this one, the timekeeper ignores it by its lower
        number.
        """
        deadline = time.monotonic() + LAST_REPORT_SECONDS
        self.sample()
        self._start_delivery(last=True)
        outcome = self._outcome_of(self._sequence, deadline)
        taken = isinstance(outcome, Accepted)
        events.emit("info", "stopped", reports=self._sequence, last_report="taken" if taken else "not taken")

    def _outcome_of(self, sequence: int, deadline: float) -> Outcome | None:
        """Waits for the outcome of a report and returns it; returns None if the outcome is not known by the deadline.

        Args:
            sequence: the number of the report.
            deadline: the end of the wait, in seconds of the monotonic clock.
        """
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if isinstance(event, _Delivered) and event.sequence == sequence:
                return event.outcome

    def _log_refusal(self, outcome: Refused, retry_seconds: float) -> None:
        events.emit(
            "warning",
            "report_not_taken",
            reason=outcome.reason,
            status=outcome.status,
            failures=self._pace.failures,
            retry_seconds=retry_seconds,
        )


def run(settings: Settings, context: ssl.SSLContext, boot: str) -> None:
    """Runs the sidecar's loop until SIGTERM or SIGINT.

    Args:
        settings: the timekeeper's address, and the files to read.
        context: the TLS context for the timekeeper.
        boot: identifies this start of the sidecar in its reports.
    """
    threading.stack_size(_THREAD_STACK_BYTES)
    reporter = Reporter(settings, lambda body: deliver(settings, context, body), boot)
    signal.signal(signal.SIGTERM, reporter.stop)
    signal.signal(signal.SIGINT, reporter.stop)
    events.emit("info", "started", boot=boot, timekeeper=settings.host, interval_seconds=settings.interval_seconds)
    reporter.run()
