"""Every number of the store, one more than it was, alone: the auditor names it, or docs/audit.md says that it cannot.

The stream of the ledger, the sorted sets, packed values and the numbers in names are among them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger.audited import KEYS, audited, harness, server, write_statuses
from tests.support.ledger.harness import NOON, LedgerHarness, report
from tests.support.ledger.stored_numbers import one_more, places
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.pricing import Bill
from timekeeper.domain.state import Announced
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import outbox, shared
from timekeeper.ledger.compaction import pack_hours
from timekeeper.ledger.entries import pack_ledger
from timekeeper.ledger.exports import Export, note_late_changes, note_written

__all__ = ["harness", "server"]

ANY = r"[^/]+"
HELD_ONCE = {
    rf"{{a}}:sessions {ANY}/(use|reported)/.*": "`use` and `reported` in its record",
    rf"{{{ANY}}}:report (state/.*|used/0|at/0)": "`state`, `used` and `at` of `fairgpu:{UID}:report`",
    rf"{{a}}:(sessions|ended) {ANY}/(tally|unmeasured)/.*": "`tally` and `unmeasured` in its record",
    rf"{{a}}:ended {ANY}/(start|tariff/./1)": "its start and rate where it was charged by them",
    rf"{{a}}:(sessions|ended) {ANY}/(end|tariff/./0)": "more finely than its amount shows",
    r"{a}:ledger (t/0|x/start|x/end)|{a}:segments .*/(at|start|end)": "when it was written, the start and the end",
    r"{a}:segments .*/period": "the period of one over nothing",
    rf"{{a}}:(sessions|ended) {ANY}/for/.*": "`for` in its record",
    r"{book}:(namespaces|prices) .*": "`fairgpu:{book}:namespaces`), and the prices",
    r"{states}:head (charge|prices)/.*": "`fairgpu:{states}:head`",
    r"{a}:head burn/.*": "the samples for forecasts (`burn`)",
    r"{a}:period:\d+ terms/.": "`terms` of a period",
    rf"{{{ANY}}}:report terms/.*": "`terms` of `fairgpu:{UID}:report`",
    rf"{{{ANY}}}:report (closed|settled|phase)/0": "`closed`, `settled` and `phase`",
    r"{states}:values team-a/remaining": "the last hundredth of `remaining`",
    r"{book}:budgets a/.*": "`fairgpu:{book}:budgets`",
    r"{a}:pots:\d+ /[12]": "the empty name of `pots`",
    rf"{{a}}:pots:{NOON} lasting/[12]": "when its credits expired, and what had been spent when each came",
    r"{book}:(past|watched|watched-claims) 0": "`past`, `watched`, `watched-claims`",
    r"{book}:since 0": "(`since`)",
    r"{book}:silent n9": "(`silent`)",
    r"{book}:unmetered elsewhere/0": "(`unmetered`)",
    r"{book}:(capacity|capacity-of-models) .*": "over time (`capacity`)",
    rf"{{a}}:amounts:\d+ {ANY}/[5678]": "the instant and the columns core, memory and used of a session's last hourly",
    rf"{{a}}:folded {ANY}/(core|memory|used)": "the columns core, memory and used of the rows of hours",
    r"{notices}:outbox .*": "`fairgpu:{notices}:outbox`",
    r"{notices}:told .*": "(`told`)",
    r"{book}:present .*": "(`present`)",
    r"{book}:(exports|late) .*": "(`exports`, `late`)",
    r"{a}:head summary/spent": "`spent` of the published summary",
    # The numbers that are no figures.
    r"{\w+}:head epoch/0|{book}:(epoch|term|format) .|{\w+}:report epoch/0": "`epoch`, `term` and `format`",
    r"{a}:head (version|folds|settled|past)/.": "`version`, `folds`, `settled` and `past` of an account",
    rf"{{a}}:amounts:\d+ {ANY}/[01]": "the fencing token and the counter of an amount",
    rf"{{a}}:hours:index {ANY}/0": "(`hours:index`)",
    r"{a}:folded #": "where it has no rows (`folded`)",
    r"{a}:(segment-order .*|segments #)": "(`segments`, `segment-order`)",
    r"{a}:ledger #": "of an entry among others",
    rf"{{states}}:(head version/0|changes {ANY}/score)": "the version of each state (`changes`)",
    rf"{{book}}:open {ANY}/score": "the scores of open sessions",
}
"""The numbers that no audit can check, with the words of docs/audit.md that say so."""


def fill(harness: LedgerHarness, bill: Bill) -> None:
    """A budget of an hour in its second hour, with all that a store may hold."""
    harness.budget("a", ["team-a"], "1", period={"every": "hour"}, rollover={"gpuHours": "0.4"})
    harness.grant("more", "a", 5)
    harness.grant("lasting", "a", 2, expires="2026-06-01T00:00:00Z")
    harness.correct("refund", "a", "0.001", NOON)
    harness.lead(ControllerRules(bill=bill))
    harness.pod("running", "team-a", core=50)
    for uid in ("ended-before", "gone-before"):
        harness.pod(uid, "team-a", core=30)
    harness.reconcile()
    for seconds in (1800, 3600):
        harness.pass_time(1800)
        report(harness, "running", seconds, 700)
        harness.reconcile()
    harness.finish(harness.source_pod("ended-before"))
    harness.remove("gone-before")
    harness.reconcile()
    assert harness.reconciler is not None
    client, fencing_token = harness.client, harness.reconciler.fencing_token
    assert pack_ledger(client, fencing_token, "a", harness.now + 1)
    assert pack_hours(client, fencing_token, "a", NOON + HOUR)
    ended = harness.pod("ended", "team-a", core=30)
    harness.pod("gone", "team-a", core=30)
    harness.reconcile()
    harness.pass_time(100)
    harness.finish(ended)
    harness.remove("gone")
    harness.reconcile()
    harness.reconcile(200)
    write_statuses(harness)
    shared.write_since(client, fencing_token, NOON)
    shared.note_unmetered(client, fencing_token, {"elsewhere": NOON})
    shared.write_silent(client, fencing_token, {"n9": NOON})
    outbox.write(client, fencing_token, 10, [outbox.Change("budget-a", Announced(NOON, 5), '{"spent":5}')])
    note_late_changes(client, ["2025-12", "2025-12"])
    note_written(client, "2025-12", Export(2, "hash", 1, "tag"))
    client.hset("fairgpu:{book}:present", "running", f"{NOON} {NOON + HOUR} 5000")


def differs(harness: LedgerHarness, bill: Bill) -> bool:
    """Returns whether an audit of the present period, or of any other, finds a difference."""
    starts: Any = harness.client.hkeys(KEYS.periods)
    return any(
        audited(harness, bill=bill.value, period=start).differences for start in (None, *sorted(map(int, starts)))
    )


@pytest.mark.parametrize("bill", [Bill.RESERVED, Bill.MAX])
def test_every_number_that_no_audit_names_is_listed(harness: LedgerHarness, bill: Bill) -> None:
    fill(harness, bill)
    assert not differs(harness, bill)
    unnamed = set()
    for place in places(harness.client):
        with one_more(harness.client, place):
            if not differs(harness, bill):
                unnamed.add(place.name.removeprefix("fairgpu:"))
    assert not differs(harness, bill)
    assert {name for name in unnamed if not any(re.fullmatch(known, name) for known in HELD_ONCE)} == set()
    of_use = re.compile(r"use\||tally|its start and rate")
    never = {known for known in HELD_ONCE if not any(re.fullmatch(known, name) for name in unnamed)}
    assert {known for known in never if bill is Bill.MAX or not of_use.search(known + HELD_ONCE[known])} == set()


def test_the_document_lists_every_number_that_no_audit_names() -> None:
    document = " ".join((Path(__file__).parents[3] / "docs" / "audit.md").read_text().split())
    assert [words for words in HELD_ONCE.values() if words not in document] == []
