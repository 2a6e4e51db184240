from __future__ import annotations

import threading

import pytest

from sidecar.delivery import Accepted, Outcome, Refused
from sidecar.reporter import Reporter
from sidecar.settings import Settings


def test_a_report_whose_delivery_fails_unexpectedly_counts_as_refused_so_that_the_next_one_is_sent() -> None:
    def deliver(_body: bytes) -> Outcome:
        raise LookupError("unknown encoding: idna")

    reporter = Reporter(Settings("timekeeper", 443, "", "", "token", "usage", 60), deliver, "boot")
    reporter._start_delivery()
    assert reporter._events.get(timeout=60) == (1, Refused("LookupError: unknown encoding: idna"))


def test_a_report_for_which_the_pod_has_no_thread_left_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet may limit the processes of a pod, and the pod's own program may take all of them."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reporter = Reporter(Settings("timekeeper", 443, "", "", "token", "usage", 60), lambda _body: Accepted(None), "boot")
    monkeypatch.setattr(threading.Thread, "start", start)
    reporter._start_delivery()
    assert reporter._events.get(timeout=60) == (1, Refused("RuntimeError: can't start new thread"))
