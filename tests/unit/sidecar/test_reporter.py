from __future__ import annotations

from sidecar.delivery import Outcome, Refused
from sidecar.reporter import Reporter
from sidecar.settings import Settings


def test_a_report_whose_delivery_fails_unexpectedly_counts_as_refused_so_that_the_next_one_is_sent() -> None:
    def deliver(_body: bytes) -> Outcome:
        raise LookupError("unknown encoding: idna")

    reporter = Reporter(Settings("timekeeper", 443, "", "", "token", "usage", 60), deliver, "boot")
    reporter._start_delivery()
    assert reporter._events.get(timeout=60) == (1, Refused("LookupError: unknown encoding: idna"))
