"""The budget states that the timekeeper publishes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.states import (
    BudgetState,
    NamespaceState,
    StatesDocument,
    StatesError,
    decode_document,
    encode_charge,
    encode_state,
)
from tests.unit.fairgpu.json_values import JSON

MONEY = st.integers(-(10**20), 10**20)
NAMES = st.text(max_size=20)
STATES = st.builds(NamespaceState, NAMES, NAMES, st.sampled_from(BudgetState), MONEY, MONEY, MONEY)
DOCUMENTS = st.builds(
    StatesDocument,
    cursor=NAMES,
    full=st.booleans(),
    states=st.lists(STATES, max_size=4).map(tuple),
    default=st.sampled_from(BudgetState),
    prices=st.dictionaries(NAMES, st.floats(0, 100), max_size=3),
    unused=st.none() | STATES,
)


def encode_document(document: StatesDocument) -> dict[str, Any]:
    """A document as the timekeeper answers it."""
    return {
        "cursor": document.cursor,
        "full": document.full,
        "states": [encode_state(state) for state in document.states],
        "default": document.default.value,
        "prices": dict(document.prices),
        "charge": encode_charge(document.charge),
    } | ({} if document.unused is None else {"unused": encode_state(document.unused)})


@given(DOCUMENTS)
def test_a_value_encoded_as_json_is_decoded_as_itself_to_the_last_digit(document: StatesDocument) -> None:
    assert decode_document(json.loads(json.dumps(encode_document(document)))) == document


def test_money_is_a_decimal_string() -> None:
    state = NamespaceState("team-a", "a", BudgetState.OPEN, 2**60 + 1, -1, 300_000)
    document = encode_document(StatesDocument("e.1", True, (state,), BudgetState.UNLIMITED, {"*": 1.0}))
    assert document["states"] == [
        {
            "namespace": "team-a",
            "budget": "a",
            "state": "open",
            "available": "1152921504606846977",
            "remaining": "-1",
            "rate": "300000",
        }
    ]


@pytest.mark.parametrize("missing", ["cursor", "full", "states", "default", "prices"])
def test_a_document_without_one_of_its_fields_is_refused(missing: str) -> None:
    document = encode_document(StatesDocument("e.1", True, (), BudgetState.UNLIMITED, {}))
    del document[missing]
    with pytest.raises(StatesError, match=missing):
        decode_document(document)


@given(JSON | st.dictionaries(st.sampled_from(("cursor", "full", "states", "default", "prices")), JSON))
def test_any_json_is_a_states_document_or_a_states_error(value: Any) -> None:
    try:
        decode_document(value)
    except StatesError:
        return
