"""An account whose keys cannot be read is named by the audit, and the audits of all others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.ledger.audited import audited, write_statuses
from tests.support.ledger.harness import MONTH, LedgerHarness, report
from timekeeper.audit.difference import Figure
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.pricing import Bill
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import keys

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = keys.AccountKeys("a")


@pytest.fixture
def teams(harness: LedgerHarness) -> LedgerHarness:
    """Two teams with one running pod each, which are charged by their reports."""
    for team in ("a", "b"):
        harness.budget(team, [f"team-{team}"])
        harness.grant(f"more-{team}", team, 1)
        harness.pod(f"pod-{team}", f"team-{team}")
    harness.lead(ControllerRules(bill=Bill.USED))
    harness.reconcile()
    for sequence in (1, 2):
        harness.pass_time(3600)
        for team in ("a", "b"):
            report(harness, f"pod-{team}", sequence, 60 * sequence)
        harness.reconcile()
    harness.reconcile(60)
    write_statuses(harness)
    return harness


def named(harness: LedgerHarness) -> dict[str, str]:
    """Returns the stored values of all differences of an audit, one text for each account; the other is audited."""
    result = audited(harness, bill=Bill.USED.value)
    assert result.accounts == 2
    texts: dict[str, str] = {}
    for difference in result.differences:
        texts[difference.account] = f"{texts.get(difference.account, '')} {difference.subject} {difference.stored}"
    return texts


def of_the_rows(harness: LedgerHarness) -> str:
    return f"{KEYS.hours}:{max(map(int, harness.client.hkeys(KEYS.hour_index)))}"


@pytest.mark.parametrize(
    "key",
    [
        KEYS.head,
        KEYS.periods,
        KEYS.period(MONTH),
        KEYS.amounts(MONTH),
        KEYS.sessions,
        KEYS.ended,
        KEYS.grants,
        KEYS.corrections,
        KEYS.credits(MONTH),
        KEYS.ledger,
        KEYS.segments,
        KEYS.hour_index,
        KEYS.folded,
        of_the_rows,
        lambda harness: f"{of_the_rows(harness)}:sums",
    ],
)
def test_an_account_s_key_of_another_type_is_named_and_ends_no_audit(
    teams: LedgerHarness, key: str | Callable[[LedgerHarness], str]
) -> None:
    assert named(teams) == {}
    place = key(teams) if callable(key) else key
    teams.client.delete(place)
    teams.client.rpush(place, "of another type")
    found = named(teams)
    assert found.keys() == {"a"}
    assert place in found["a"]


def test_an_account_of_which_neither_head_nor_periods_can_be_read_is_named(teams: LedgerHarness) -> None:
    for key in (KEYS.head, KEYS.periods):
        teams.client.delete(key)
        teams.client.set(key, "of another type")
    found = named(teams)
    assert found.keys() == {"a"}
    assert KEYS.head in found["a"]
    assert KEYS.periods in found["a"]


@pytest.mark.parametrize("broken", ["nonsense", "", "-7", "9" * 40, None])
def test_an_account_whose_head_does_not_state_its_period_is_audited_and_named(
    teams: LedgerHarness, broken: str | None
) -> None:
    if broken is None:
        teams.client.hdel(KEYS.head, "period")
    else:
        teams.client.hset(KEYS.head, "period", broken)
    assert named(teams) == {"a": f" latest {'nothing' if broken is None else broken}"}


def test_the_reports_of_a_pod_under_a_key_of_another_type_end_no_audit(teams: LedgerHarness) -> None:
    teams.client.delete(keys.report("pod-a"))
    teams.client.set(keys.report("pod-a"), "of another type")
    assert named(teams).keys() <= {"a"}


@pytest.mark.parametrize(("name", "subject"), [("lasting", "credit lasting"), ("", "rolled over")])
def test_a_credit_that_was_carried_over_and_is_missing_is_named(
    harness: LedgerHarness, name: str, subject: str
) -> None:
    harness.budget("a", ["team-a"], 1, period={"every": "hour"}, rollover={"gpuHours": 1})
    harness.grant("lasting", "a", 2, expires="2026-06-01T00:00:00Z")
    harness.reconcile()
    harness.reconcile(3600)
    harness.lead()
    harness.reconcile(60)
    place = KEYS.credits(harness.now // HOUR * HOUR)
    known = harness.client.hgetall(place)
    assert harness.client.hdel(place, name) == 1
    harness.lead()
    harness.reconcile(60)
    (missing,) = [each for each in audited(harness).differences if each.figure is Figure.GRANTED]
    assert (missing.account, missing.subject, missing.stored) == ("a", subject, "nothing")
    assert missing.expected == known[name.encode()].split()[0].decode()
