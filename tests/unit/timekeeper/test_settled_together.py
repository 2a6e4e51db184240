"""Sessions that are settled together get the settlements that each gets alone."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from timekeeper.controller.reconcile.compute_settlement import (
    Basis,
    Case,
    compute_settlements,
    make_basis,
    report_marks,
    split_grown,
    with_stored_amounts,
)
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.sessions import NOTHING, MeteredSession
from timekeeper.domain.budgets import Budget
from timekeeper.domain.periods import Period
from timekeeper.domain.pricing import Bill
from timekeeper.domain.reports import HeldDevice, Intake, ReportLimits, Sample
from timekeeper.domain.sessions import EndProof, Session
from timekeeper.domain.timestamps import HOUR, MINUTE
from timekeeper.ledger.reports import SessionReports

if TYPE_CHECKING:
    from timekeeper.domain.charges import Assignments
    from timekeeper.domain.reservations import Tariff

NAMESPACES = ("one", "two", "three")
LENGTHS = {"a": HOUR, "b": 2 * HOUR, "c": 5 * HOUR}
"""The length of the periods of each account."""
RATE = 300_000
FIRST, LAST = 20 * HOUR, 26 * HOUR
INSTANTS = st.one_of(
    st.integers(FIRST // MINUTE, LAST // MINUTE).map(lambda minute: minute * MINUTE),
    st.sampled_from([hour * HOUR + beside for hour in range(21, 26) for beside in (-1, 0, 1)]),
)


class History(NamedTuple):
    """A session that is settled twice.

    Attributes:
        instants: its start, and the instants up to which it is settled.
        ended: whether it ended at the last of these; its pod may be deleted then.
        reported: the instants at which its reports were received; the first settlement knows of two at most.
    """

    namespace: str
    instants: list[int]
    tariff: Tariff
    ended: bool
    deleted: bool
    reported: list[int]


TARIFFS = st.one_of(
    st.just(((0, RATE),)), st.builds(lambda since, rate: ((0, RATE), (since, rate)), INSTANTS, st.sampled_from([0, 7]))
)
STORIES = st.builds(
    History,
    st.sampled_from(NAMESPACES),
    st.lists(INSTANTS, min_size=3, max_size=3).map(sorted),
    TARIFFS,
    st.booleans(),
    st.booleans(),
    st.lists(INSTANTS, max_size=4, unique=True).map(sorted),
)
PAYERS = st.one_of(
    st.sampled_from(sorted(LENGTHS)).map(lambda name: ((0, name),)),
    st.builds(lambda since, one, other: ((0, one), (since, other)), INSTANTS, st.just("a"), st.sampled_from("bc")),
)


def accounts() -> dict[str, Account]:
    """Accounts whose periods are open beyond all instants."""
    found = {name: Account(name, Budget(name)) for name in LENGTHS}
    for name, length in LENGTHS.items():
        found[name].periods = [Period(start, start + length) for start in range(0, LAST + HOUR, length)]
    return found


def reports(session: Session, received: list[int]) -> SessionReports | None:
    """Reports that name the only device of a session, each of a minute's use."""
    after = [instant for instant in received if instant > session.start]
    if not after:
        return None
    limits = ReportLimits(session.start, (HeldDevice("GPU", 1, Fraction(1), 81_920, RATE),), True, RATE, RATE)
    samples = [Sample(at, 60 * RATE * count, 60 * RATE * count, 0) for count, at in enumerate(after, start=1)]
    return SessionReports(limits, Intake((), (0,), tuple(samples)))


def known_of(history: History, number: int, basis: Basis) -> tuple[MeteredSession, Case]:
    """The session as it is after its first settlement, and the case of its second."""
    start, first, later = history.instants
    session = Session(f"uid-{number}", history.namespace, "pod", "n1", start, history.tariff)
    opening = Case(NOTHING, session, first, reports=reports(session, history.reported[:2]))
    known = compute_settlements(basis, [opening])[0].following
    shown = replace(session, end=later, proof=EndProof.FINISHED) if history.ended else session
    deleted = history.ended and history.deleted
    case = Case(known, shown, later, deleted, reports(session, history.reported))
    return MeteredSession(shown, None, deleted, known), case


@settings(max_examples=200)
@given(
    histories=st.lists(STORIES, min_size=2, max_size=6),
    payers=st.tuples(PAYERS, PAYERS, PAYERS),
    surely_past=INSTANTS,
    bill=st.sampled_from(Bill),
)
def test_sessions_that_are_settled_together_get_the_settlements_that_each_gets_alone(
    histories: list[History], payers: tuple[Assignments, Assignments, Assignments], surely_past: int, bill: Bill
) -> None:
    def basis() -> Basis:
        return make_basis(dict(zip(NAMESPACES, payers, strict=True)), accounts(), surely_past, bill)

    shared = basis()
    known = [known_of(history, number, shared) for number, history in enumerate(histories)]
    metered = [(session, case.until) for session, case in known]
    cases = [case for _, case in known]
    together = compute_settlements(shared, cases)
    assert together == [compute_settlements(basis(), [case])[0] for case in cases]
    phases = [(number,) for number in range(len(cases))]
    alone = [report_marks(basis(), [each], [own])[0] for each, own in zip(metered, phases, strict=True)]
    assert report_marks(shared, metered, phases) == alone
    partly = [
        (case.acknowledged, each, list(each.items)[:1])
        for case, each in zip(cases, together, strict=True)
        if each.items
    ]
    assert with_stored_amounts(partly) == [with_stored_amounts([each])[0] for each in partly]
    grown, others = split_grown(shared, metered)
    each_split = [split_grown(basis(), [each]) for each in metered]
    assert grown == [each for split, _ in each_split for each in split]
    assert others == [each for _, split in each_split for each in split]
