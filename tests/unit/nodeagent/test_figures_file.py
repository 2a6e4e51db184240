"""The driver's figures between the agent and the writer of the pages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.driver_figures import Figure
from nodeagent.figures_file import decode, encode, of_slots

NUMBERS = st.integers(0, 2**64 - 1)
FIGURES = st.builds(Figure, NUMBERS, NUMBERS, trim_permille=st.integers(1, 1000))
KEYED = st.dictionaries(st.tuples(st.integers(0, 63), NUMBERS), FIGURES, max_size=5)


@given(st.dictionaries(st.sampled_from(["GPU-0", "GPU-1"]), KEYED))
def test_a_written_page_is_read(gpus: dict[str, dict[tuple[int, int], Figure]]) -> None:
    assert decode(encode(gpus)) == gpus


CONTAINER = b'{"slot":0,"key":7,"driverBytes":1e999,"sampledNs":2,"trimPermille":1000}'
ENDLESS = b'{"gpus":[{"uuid":"a","containers":[%s]}]}' % CONTAINER


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"gpus":[{}]}', b'{"gpus":[{"uuid":"a","containers":[1]}]}', ENDLESS]
)
def test_a_file_of_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(content)


def test_figures_of_an_earlier_start_are_left_out() -> None:
    figures = {(0, 7): Figure(1), (1, 8): Figure(2)}
    assert of_slots(figures, [(0, 7), (1, 9), (2, 3)]) == {0: Figure(1)}
