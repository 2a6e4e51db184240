"""The rows of docs/bad-input.md about the scheduler are its real outcomes."""

from __future__ import annotations

import pytest

from tests.support.bad_input_document import documented
from tests.unit.scheduler.odd_input import ODD_INPUT

DOCUMENTED = documented("reaches the scheduler")


@pytest.mark.parametrize("words", ODD_INPUT)
def test_odd_input_has_the_outcome_that_stands_beside_it(words: str) -> None:
    assert DOCUMENTED[words] == ODD_INPUT[words]()


def test_no_input_in_the_document_goes_untried() -> None:
    assert set(DOCUMENTED) == set(ODD_INPUT)
