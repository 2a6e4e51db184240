"""Ledger entries packed into segments."""

from __future__ import annotations

import json
import random
import struct
import zlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ledger import old_segments
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
sessions = st.tuples(st.uuids().map(str) | st.text(), st.text(), st.text())


def entries_of(sessions: st.SearchStrategy[tuple[str, str, str]]) -> st.SearchStrategy[LedgerEntry]:
    """Returns a strategy of entries, each of one of the sessions."""
    return st.builds(
        lambda place, kind, period, amount, at, session, note: LedgerEntry(
            f"{place[0]}-{place[1]}", kind, period, amount, at, session[0], session[1], session[2], note
        ),
        st.tuples(st.integers(0, 2**43), st.integers(0, 2**20)),
        st.sampled_from(Kind).map(str),
        instants,
        st.integers(-(10**24) + 1, 10**24 - 1),
        instants,
        sessions,
        st.text() | endings,
    )


segments = st.lists(sessions, min_size=1, max_size=4).flatmap(
    lambda few: st.lists(entries_of(st.sampled_from(few) | sessions), min_size=1, max_size=20)
)
"""Entries in their order, some of the same session."""


@given(segments)
def test_entries_come_back_as_they_were(given_entries: list[LedgerEntry]) -> None:
    assert unpack_entries(pack_entries(given_entries)) == given_entries


@given(segments)
def test_entries_that_the_version_before_packed_are_read_as_they_were(given_entries: list[LedgerEntry]) -> None:
    assert unpack_entries(old_segments.pack_entries(given_entries)) == given_entries


STORED = (
    "01000000b578da8d50cb0e832010fc9586f392002ac8b7180fb4d26a8298a026f5efbb88da473c141276989d25335415575209a10563"
    "5c64c095d6659903aba162c0416025ed3007b7102037378c16eb23183f116ca5e142b2f7823fb938cdca5d50e43ba2993c04142dedb4"
    "60792195fe4028f0b373b01e24da2193353d35e8f000890ea6f394d3a7c61dbb3ff77e08761592edb1eb72318d59a97be7bbb1b50dca"
    "ce60faa793c8e9078f5cdf29b77c241a8c1eeb17cdcb61c9d3b07384d1134ec6a5d1000000000007d3b07384d1134ec6a5d100000000"
    "0007"
)
"""A segment that version 1 left in a store."""


def test_a_segment_of_the_version_before_is_read() -> None:
    assert unpack_entries(bytes.fromhex(STORED)) == [
        LedgerEntry(
            "1767229200123-0",
            "hourly",
            1767225600000000000,
            1080000000,
            1767229200000000000,
            "d3b07384-d113-4ec6-a5d1-000000000007",
            "team-a",
            "train-1-x9x9x",
            "",
        ),
        LedgerEntry(
            "1767231000007-1",
            "close",
            1767225600000000000,
            540000000,
            1767230999986543210,
            "d3b07384-d113-4ec6-a5d1-000000000007",
            "team-a",
            "train-1-x9x9x",
            "finished 2026-01-01T00:00:00Z 2026-01-01T01:30:00Z",
        ),
        LedgerEntry(
            "1767231000007-2", "grant", 1767225600000000000, -36000000, 1767230999986543210, "", "", "more", "by ada"
        ),
    ]


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
    with pytest.raises(SegmentError, match="version 3"):
        unpack_entries(b"\x03" + segment()[1:])


def test_a_segment_with_fewer_ends_than_its_entries_state_is_refused() -> None:
    packed = segment()
    (length,) = struct.unpack_from(">I", packed, 1)
    rows, _, sessions = json.loads(zlib.decompress(packed[5 : 5 + length]))
    document = zlib.compress(json.dumps([rows, [], sessions]).encode())
    with pytest.raises(SegmentError):
        unpack_entries(packed[:1] + struct.pack(">I", len(document)) + document + packed[5 + length :])


def hourly_entry(hour: int, number: int) -> LedgerEntry:
    at = 1_767_225_600_000 + 3_600_000 * hour
    chance = random.Random(number)
    uid, pod = str(UUID(int=chance.getrandbits(128))), f"train-{number}-{chance.randrange(16**5):05x}"
    return LedgerEntry(f"{at + 7}-{number}", "hourly", 0, 1_080_000_000, at * 10**6, uid, "team-a", pod, "")


def test_further_entries_of_a_session_take_a_tenth_of_the_first_one() -> None:
    def packed(hours: int) -> int:
        return len(pack_entries([hourly_entry(hour, number) for hour in range(hours) for number in range(30)]))

    assert packed(8) - packed(1) < packed(1) * 7 / 10
