"""Ledger entries packed into segments."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.domain.sessions import EndProof
from timekeeper.domain.timestamps import format_exact
from timekeeper.ledger.entries import LedgerEntry, SegmentError, pack_entries, unpack_entries
from timekeeper.ledger.writing import Kind

instants = st.integers(0, 2**63 - 1)
endings = st.builds(
    lambda proof, start, end, uid: " ".join([proof, format_exact(start), format_exact(end), *uid]),
    st.sampled_from(EndProof),
    st.integers(0, 2**33 * 10**9),
    st.integers(0, 2**33 * 10**9),
    st.just([]) | st.uuids().map(lambda uid: [str(uid)]),
)
entries = st.builds(
    LedgerEntry,
    st.tuples(st.integers(0, 2**43), st.integers(0, 2**20)).map(lambda place: f"{place[0]}-{place[1]}"),
    st.sampled_from(Kind).map(str),
    instants,
    st.integers(-(10**24) + 1, 10**24 - 1),
    instants,
    st.uuids().map(str) | st.text(),
    st.text(),
    st.text(),
    st.text() | endings,
)


@given(st.lists(entries, min_size=1, max_size=20))
def test_entries_come_back_as_they_were(given_entries: list[LedgerEntry]) -> None:
    assert unpack_entries(pack_entries(given_entries)) == given_entries


def ended_session(chance: random.Random, number: int) -> LedgerEntry:
    start, lasted = (1_767_225_600 + 26_000 * number) * 10**9, chance.randrange(7_200 * 10**9)
    at = start + lasted + chance.randrange(10 * 10**9)
    owner = UUID(int=7)
    note = f"finished {format_exact(start)} {format_exact(start + lasted)} {owner}"
    pod = f"train-{number % 20}-{chance.randrange(16**5):05x}"
    uid = str(UUID(int=chance.getrandbits(128)))
    place = f"{at // 10**6}-0"
    return LedgerEntry(place, "close", 0, chance.randrange(10**10), at, uid, "team-a", pod, note)


def segment() -> bytes:
    return pack_entries([ended_session(random.Random(1), 0)])


def test_a_hundred_ended_sessions_take_less_than_sixty_bytes_each() -> None:
    chance = random.Random(1)
    assert len(pack_entries([ended_session(chance, number) for number in range(100)])) < 6000


@pytest.mark.parametrize("broken", [b"", b"\x01", b"\x01\x00\x00\x00\x05hello", segment()[:-1]])
def test_bytes_that_are_no_segment_are_refused(broken: bytes) -> None:
    with pytest.raises(SegmentError):
        unpack_entries(broken)


def test_a_segment_of_a_later_timekeeper_is_refused_by_its_version() -> None:
    with pytest.raises(SegmentError, match="version 2"):
        unpack_entries(b"\x02" + segment()[1:])
