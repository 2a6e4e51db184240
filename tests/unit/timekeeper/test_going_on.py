"""A session of which only the amount changes is settled as any other session is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from timekeeper.controller.reconcile.compute_settlement import (
    Case,
    Settlement,
    amount_going_on,
    compute_settlements,
    make_basis,
    with_amount,
)
from timekeeper.controller.state.accounts import Account
from timekeeper.controller.state.sessions import NOTHING, Acknowledged
from timekeeper.domain.budgets import Budget
from timekeeper.domain.money import SECOND
from timekeeper.domain.periods import Period
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger.writing import Item

if TYPE_CHECKING:
    from timekeeper.domain.charges import Assignments
    from timekeeper.domain.reservations import Tariff

BOUNDARY = 10 * HOUR
PERIODS = [Period(0, BOUNDARY), Period(BOUNDARY, 2 * BOUNDARY)]
INSTANTS = st.integers(BOUNDARY - 2 * HOUR, BOUNDARY + 2 * HOUR)
RATES = st.sampled_from([0, 300_000, 1_000_000])


def account(name: str, until: int) -> Account:
    """An account whose periods are open up to an instant."""
    found = Account(name, Budget(name))
    found.periods = [period for period in PERIODS if period.start <= until]
    return found


STARTS = st.integers(BOUNDARY - 4 * HOUR, BOUNDARY - HOUR)
TARIFFS = st.one_of(
    st.builds(lambda rate: ((0, rate),), RATES),
    st.builds(lambda since, one, other: ((0, one), (since, other)), INSTANTS, RATES, RATES),
)
PAYERS = st.one_of(
    st.just(((0, "a"),)), st.just(((0, "b"),)), st.builds(lambda since: ((0, "a"), (since, "b")), INSTANTS)
)


@settings(max_examples=500)
@given(
    start=STARTS,
    tariff=TARIFFS,
    first=st.one_of(st.integers(0, HOUR), st.integers(0, 5 * HOUR)),
    later=st.one_of(st.integers(0, 2 * HOUR), st.sampled_from([HOUR - 1, HOUR])),
    payers_first=PAYERS,
    payers_later=PAYERS,
    same_record=st.booleans(),
)
def test_a_session_that_goes_on_is_settled_to_the_amount_that_any_settlement_finds(
    *,
    start: int,
    tariff: Tariff,
    first: int,
    later: int,
    payers_first: Assignments,
    payers_later: Assignments,
    same_record: bool,
) -> None:
    session = Session("uid", "team", "pod", "n1", start, tariff)
    before, now = start + first, start + first + later
    known = settled(NOTHING, session, payers_first, before).following
    shown = session if same_record else replace(session, tariff=((0, 1),))
    found = amount_going_on(known, shown, payers_later, accounts(now), now)
    if found is not None:
        key, amount = found
        changes = amount != known.amount(key)
        whole = settled(known, shown, payers_later, now)
        assert whole.items == ({key: Item(session.uid, amount)} if changes else {})
        assert whole.following == (with_amount(known, key, amount) if changes else known)


def test_a_session_that_runs_on_in_its_period_only_changes_its_amount() -> None:
    session = Session("uid", "team", "pod", "n1", HOUR, ((HOUR, 300_000),))
    known = settled(NOTHING, session, ((0, "a"),), HOUR).following
    found = amount_going_on(known, session, ((0, "a"),), accounts(HOUR), HOUR + 10 * SECOND)
    assert found == (("a", 0), 3_000_000)


def test_a_session_that_began_before_its_period_is_charged_from_the_start_of_that() -> None:
    session = Session("uid", "team", "pod", "n1", HOUR, ((HOUR, 300_000),))
    later = BOUNDARY + HOUR // 2
    known = settled(NOTHING, session, ((0, "a"),), later).following
    found = amount_going_on(known, session, ((0, "a"),), accounts(later), BOUNDARY + 3500 * SECOND)
    assert found == (("a", BOUNDARY), 3500 * 300_000)


def accounts(until: int) -> dict[str, Account]:
    """Two accounts whose periods are open up to an instant."""
    return {name: account(name, until) for name in ("a", "b")}


def settled(known: Acknowledged, session: Session, payers: Assignments, until: int) -> Settlement:
    """The whole settlement of a running session up to an instant by which all time has passed."""
    basis = make_basis({session.namespace: payers}, accounts(until), until)
    return compute_settlements(basis, [Case(known, session, until)])[0]
