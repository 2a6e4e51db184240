"""The rows of docs/bad-input.md about odd pods are their real outcomes."""

from __future__ import annotations

import pytest

from tests.support.bad_input_document import documented
from tests.unit.webhook.odd_pods import ODD_PODS, outcome, said

DOCUMENTED = documented("pod")


@pytest.mark.parametrize("words", ODD_PODS)
def test_an_odd_pod_becomes_what_stands_beside_it(words: str) -> None:
    answer = ODD_PODS[words]()
    assert DOCUMENTED[words] == (outcome(answer), said(answer))


def test_no_pod_in_the_document_goes_untried() -> None:
    assert set(DOCUMENTED) == set(ODD_PODS)
