from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.sessions import EndProof
from timekeeper.domain.timestamps import format_exact
from timekeeper.ledger.entries import PROOFS, Ending, ending_note, pack_note, unpack_note

instants = st.integers(0, 2**32 * 10**9 - 1)


@given(st.sampled_from(EndProof), instants, instants, st.none() | st.uuids())
def test_a_note_of_an_end_comes_back_from_a_third_of_its_room(
    proof: EndProof, start: int, end: int, uid: object
) -> None:
    note = " ".join([proof, format_exact(start), format_exact(end), *([str(uid)] if uid else [])])
    assert unpack_note(pack_note(note)) == note
    assert len(pack_note(note)) <= 33


@given(
    st.sampled_from(EndProof),
    st.integers(-(10**18), 2**33 * 10**9),
    instants,
    st.just("") | st.uuids().map(str) | st.uuids().map(lambda uid: str(uid).upper()) | st.sampled_from(["x", "a b"]),
)
def test_an_end_is_packed_as_its_note_is(proof: EndProof, start: int, end: int, uid: str) -> None:
    ending = Ending(proof, start, end, uid)
    assert pack_note(ending) == pack_note(ending_note(ending))


@given(st.text())
def test_any_other_note_stays_as_it_is(note: str) -> None:
    text = note.encode(errors="replace").decode()
    assert unpack_note(pack_note(text)) == text


@pytest.mark.parametrize(
    "note",
    [
        "finished 2026-01-01T00:00:00Z 2026-01-01T00:00:00+00:00",
        "finished 2026-01-01T00:00:00Z 2026-01-01T01:00:00Z 0B1C2D3E-0000-4000-8000-000000000001",
        "finished 1960-01-01T00:00:00Z 2026-01-01T01:00:00Z",
        "finished x y",
        "finished",
        "",
    ],
)
def test_an_end_that_is_written_otherwise_stays_as_it_is(note: str) -> None:
    assert pack_note(note) == note.encode()
    assert unpack_note(pack_note(note)) == note


def test_every_proof_has_its_place() -> None:
    assert set(PROOFS) == {proof.value for proof in EndProof}
