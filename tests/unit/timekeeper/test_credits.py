from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.credits import OWN, Credit, burn, carried, expiring, rolled_over

END = 1000
NAMES = ("a", "b", "c", "d")


@st.composite
def periods(draw: st.DrawFn) -> tuple[int, dict[str, Credit], int]:
    """A period's own money, its credits, and what was spent."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    held = {
        name: Credit(name, draw(st.integers(0, 50)), draw(st.integers(900, 1100)), draw(st.integers(0, 80)))
        for name in names
    }
    return draw(st.integers(-20, 60)), held, draw(st.integers(-30, 200))


def one_by_one(own: int, held: dict[str, Credit], spent: int) -> tuple[dict[str, int], int]:
    """The definition itself: unit by unit, each burns what expires soonest of what is there."""
    own, spent = own - min(spent, 0), max(spent, 0)
    left, debt = {OWN: max(own, 0)}, max(-own, 0)
    expiry = {OWN: (END, 0, "")} | {
        credit.name: (credit.expires, 1 if credit.expires >= END else 0, credit.name) for credit in held.values()
    }
    waiting = sorted(held.values(), key=lambda credit: (credit.since, credit.expires, credit.name))
    for unit in range(spent + 1):
        while waiting and (waiting[0].since <= unit or unit == spent):
            credit = waiting.pop(0)
            paid = min(debt, credit.amount)
            left[credit.name], debt = credit.amount - paid, debt - paid
        if unit == spent:
            break
        burning = min((name for name, rest in left.items() if rest), key=lambda name: expiry[name], default=None)
        if burning is None:
            debt += 1
        else:
            left[burning] -= 1
    return left, debt


@given(periods())
def test_every_unit_burns_what_expires_soonest_of_what_is_there(period: tuple[int, dict[str, Credit], int]) -> None:
    own, held, spent = period
    found = burn(own, held.values(), END, spent)
    left, debt = one_by_one(own, held, spent)
    assert ({OWN: found.own, **found.credits}, found.debt) == (left, debt)


@given(periods())
def test_money_left_less_what_is_owed_is_what_came_less_what_was_spent(
    period: tuple[int, dict[str, Credit], int],
) -> None:
    own, held, spent = period
    found = burn(own, held.values(), END, spent)
    assert (
        found.own + sum(found.credits.values()) - found.debt
        == own + sum(credit.amount for credit in held.values()) - spent
    )
    assert min(found.own, found.debt, *found.credits.values(), 0) == 0


@given(periods(), st.integers(0, 200))
def test_a_pot_that_lapses_changes_nothing_about_what_the_others_have_left_then(
    period: tuple[int, dict[str, Credit], int], later: int
) -> None:
    own, held, spent = period
    soonest = min(held.values(), key=lambda credit: (credit.expires, credit.name), default=None)
    if soonest is None or soonest.expires >= END:
        return
    before = burn(own, held.values(), END, max(spent, soonest.since))
    held = held | {soonest.name: expiring(own, held, soonest.name, END, max(spent, soonest.since))}
    after = burn(own, held.values(), END, max(spent, soonest.since))
    assert after.credits == before.credits | {soonest.name: 0}
    assert (after.own, after.debt) == (before.own, before.debt)
    assert burn(own, held.values(), END, max(spent, soonest.since) + later).credits[soonest.name] == 0


@given(periods(), st.integers(0, 100), st.integers(0, 100))
def test_no_more_is_carried_into_the_next_period_than_was_left(
    period: tuple[int, dict[str, Credit], int], cap: int, lasting: int
) -> None:
    own, held, spent = period
    over = carried(own, held, END, spent)
    rolled = rolled_over(cap, own, held.values(), END, spent, lasting)
    came = own + sum(credit.amount for credit in held.values())
    assert sum(credit.amount for credit in over) + rolled <= max(0, came - spent)
    assert all(credit.expires > END and credit.amount > 0 and credit.since == 0 for credit in over)
    assert 0 <= rolled <= cap


@given(periods(), st.integers(1, 50))
def test_spending_more_leaves_no_pot_fuller(period: tuple[int, dict[str, Credit], int], more: int) -> None:
    own, held, spent = period
    before, after = burn(own, held.values(), END, spent), burn(own, held.values(), END, spent + more)
    arrived = [credit.name for credit in held.values() if credit.since <= spent]
    assert all(after.credits[name] <= before.credits[name] for name in arrived)


def test_the_pot_that_expires_in_this_period_burns_before_the_allowance_and_the_later_one_after_it() -> None:
    held = {"soon": Credit("soon", 20, END - 1), "later": Credit("later", 50, END + 500)}
    assert burn(100, held.values(), END, 10).credits == {"soon": 10, "later": 50}
    assert burn(100, held.values(), END, 60) == burn(100, reversed(list(held.values())), END, 60)
    assert (burn(100, held.values(), END, 60).own, burn(100, held.values(), END, 130).credits["later"]) == (60, 40)


def test_spending_before_a_grant_came_burns_nothing_of_it() -> None:
    late = Credit("late", 20, END - 1, since=50)
    assert burn(100, [late], END, 50).credits == {"late": 20}
    assert expiring(100, {"late": late}, "late", END, 55) == Credit("late", 5, END - 1, 50, expired=True)


def test_a_grant_pays_what_was_overspent_before_it_came() -> None:
    assert burn(100, [Credit("help", 50, END + 1, since=130)], END, 130).credits == {"help": 20}
