from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.pricing import Bill, billed

amounts = st.integers(0, 10**17)


@given(amounts, st.integers(-(10**17), 10**30), amounts)
def test_a_bill_stays_between_nothing_and_what_could_have_been_used(reserved: int, used: int, ceiling: int) -> None:
    most = max(reserved, ceiling)
    assert billed(Bill.RESERVED, reserved, used, ceiling) == reserved
    assert 0 <= billed(Bill.USED, reserved, used, ceiling) <= most
    assert reserved <= billed(Bill.MAX, reserved, used, ceiling) <= most
