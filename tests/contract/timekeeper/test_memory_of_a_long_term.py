"""However long a leader leads, and whatever comes and goes meanwhile, it remembers no more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.ledger.harness import LedgerHarness
from tests.support.ledger.pod_jobs import PodJobs
from timekeeper.controller.report.announcements import EventRecorder
from timekeeper.controller.report.status_writer import OrderAnswers, StatusWriter
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import HOUR, format_instant

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

WARM = 30
"""Cycles of an hour until a day and a few old periods are behind: what was published of the last day is remembered."""


class Term:
    """One leader with all that remembers something on its side."""

    def __init__(self, harness: LedgerHarness) -> None:
        self.harness = harness
        reconciler = harness.lead()
        self.books = reconciler.books
        source = harness.source
        self.answers, self.writer = OrderAnswers(source, self.books), StatusWriter(source, self.books)
        self.recorder, self.jobs = (
            EventRecorder(source, self.books),
            PodJobs(source, self.books, lambda: harness.now / SECOND),
        )

    def cycle(self, number: int, *, gated: bool) -> None:
        """A pod, a grant and a correction come and go within an hour, whose period ends."""
        harness = self.harness
        uid = f"p{number}"
        harness.gated(uid, "team-a") if gated else harness.pod(uid, "team-a")
        harness.grant(f"g{number}", "a", "0.5", expires=format_instant(harness.now + 2 * HOUR))
        harness.correct(f"c{number}", "a", "0.001", harness.now)
        self.reconcile(1)
        harness.remove(uid)
        for kind in ("grants", "corrections"):
            for file in (harness.folder / kind).iterdir():
                file.unlink()
        self.reconcile(3599)

    def reconcile(self, seconds: float) -> None:
        self.harness.reconcile(seconds)
        now = self.harness.now
        self.jobs.release(now)
        self.recorder.record_changes()
        self.answers.write(now)
        self.writer.write(now)

    def sizes(self) -> dict[str, int]:
        """Returns the size of each collection of the books, of each account, and of those beside them."""
        found: dict[str, int] = {}
        held: list[tuple[str, Any]] = [
            ("books", self.books),
            ("pods", self.books.pods),
            ("budgets", self.books.budgets),
        ]
        held += [(name, account) for name, account in self.books.accounts.items()]
        held += [("answers", self.answers), ("writer", self.writer), ("recorder", self.recorder)]
        held += [("releaser", self.jobs.releaser), ("pods", self.jobs.writer)]
        for name, thing in held:
            for field in thing.__slots__:
                value = getattr(thing, field)
                if isinstance(value, dict | list | set) or field == "sessions":
                    found[f"{name}.{field}"] = len(value)
        # These are kept for as long as the ledger is, and read again from it.
        ledger = ("a.periods", "a.grants", "a.corrections")
        return {name: size for name, size in found.items() if name not in ledger}


def test_after_many_cycles_it_remembers_as_much_as_after_few(redis_server: RedisServer, tmp_path: Path) -> None:
    with redis_server.client() as client:
        harness = LedgerHarness(tmp_path, client)
        harness.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
        term = Term(harness)
        for number in range(WARM):
            term.cycle(number, gated=number % 3 == 0)
        before = term.sizes()
        for number in range(WARM, WARM + 12):
            term.cycle(number, gated=number % 3 == 0)
        assert term.sizes() == before
