"""The CA and the certificate are renewed in steps, and at none of them somebody's trust is missing."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fairgpu.certificates import CertificateError, Pair, expires_at, make_authority, published_bundle, serves
from webhook.certificates.authority import (
    Authorities,
    Observation,
    Step,
    certificates_in,
    first_authorities,
    new_leaf,
    newest_alone,
    next_step,
    pack_authorities,
    pack_leaf,
    seen_published,
    unpack_authorities,
    unpack_leaf,
    with_new_authority,
)
from webhook.settings import Certificates

START = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Certificates()
LEAF = timedelta(seconds=SETTINGS.leaf_seconds)
AUTHORITY = timedelta(seconds=SETTINGS.authority_seconds)
SPREAD = timedelta(seconds=SETTINGS.spread_seconds)
FIRST = seen_published(first_authorities([], SETTINGS, START), START)
FIRST_LEAF = new_leaf(FIRST, SETTINGS, START)


def settled(authorities: Authorities = FIRST, leaf: Pair | None = FIRST_LEAF) -> Observation:
    """Everything as it is once the authorities stand in every configuration."""
    return Observation(frozenset({authorities.bundle}), leaf, authorities)


def step_at(observed: Observation, now: datetime) -> Step:
    return next_step(observed, SETTINGS, now)


def test_an_installation_makes_the_authority_publishes_it_and_then_issues_without_waiting() -> None:
    nothing = Observation(frozenset({b""}), None, None)
    assert step_at(nothing, START) is Step.START
    made = first_authorities([b""], SETTINGS, START)
    assert step_at(Observation(frozenset({b""}), None, made), START) is Step.PUBLISH
    published = Observation(frozenset({made.bundle}), None, made)
    assert step_at(published, START) is Step.NOTE_PUBLICATION
    noted = replace(published, authorities=seen_published(made, START))
    assert step_at(noted, START) is Step.ISSUE_LEAF
    assert step_at(replace(noted, leaf=new_leaf(made, SETTINGS, START)), START) is Step.NOTHING


@pytest.mark.parametrize(
    ("age", "step"),
    [
        (timedelta(0), Step.NOTHING),
        (LEAF * 0.6, Step.NOTHING),
        (LEAF * 0.7, Step.ISSUE_LEAF),
        (LEAF * 1.1, Step.ISSUE_LEAF),
        (AUTHORITY * 1.1, Step.START),
        (-timedelta(days=1), Step.TRUST_NEW_AUTHORITY),
    ],
)
def test_the_step_that_is_due_follows_from_the_time(age: timedelta, step: Step) -> None:
    assert step_at(settled(), START + age) is step


def test_an_authority_changes_in_three_steps_with_time_between_them() -> None:
    now = START + AUTHORITY * 0.7
    leaf = new_leaf(FIRST, SETTINGS, now)
    assert step_at(settled(leaf=leaf), now) is Step.TRUST_NEW_AUTHORITY
    both = with_new_authority(FIRST, SETTINGS, now)
    assert len(both.trusted) == 2
    assert step_at(Observation(frozenset({FIRST.bundle}), leaf, both), now) is Step.PUBLISH
    assert step_at(settled(both, leaf), now + 9 * SPREAD) is Step.NOTE_PUBLICATION
    both = seen_published(both, now)
    assert step_at(settled(both, leaf), now + SPREAD * 0.9) is Step.NOTHING
    now += SPREAD
    assert step_at(settled(both, leaf), now) is Step.ISSUE_LEAF
    issued = new_leaf(both, SETTINGS, now)
    assert serves(issued.certificate_pem, both.trusted[1], SETTINGS.names)
    assert step_at(settled(both, issued), now + SPREAD * 0.9) is Step.NOTHING
    now += SPREAD
    assert step_at(settled(both, issued), now) is Step.DROP_OLD_AUTHORITIES
    alone = newest_alone(both)
    assert (alone.trusted, alone.newest, alone.published_at) == (both.trusted[1:], both.newest, None)
    assert step_at(Observation(frozenset({both.bundle}), issued, alone), now) is Step.PUBLISH
    assert step_at(settled(seen_published(alone, now), issued), now) is Step.NOTHING


def test_the_time_to_spread_counts_from_the_publication_however_late_that_is() -> None:
    now = START + AUTHORITY * 0.7
    leaf = new_leaf(FIRST, SETTINGS, now)
    late = seen_published(with_new_authority(FIRST, SETTINGS, now), now + 5 * SPREAD)
    assert step_at(settled(late, leaf), now + 5.9 * SPREAD) is Step.NOTHING
    assert step_at(settled(late, leaf), now + 6 * SPREAD) is Step.ISSUE_LEAF


def test_a_single_webhook_without_the_bundle_has_it_published_again() -> None:
    observed = Observation(frozenset({FIRST.bundle, b""}), FIRST_LEAF, FIRST)
    assert step_at(observed, START) is Step.PUBLISH


def test_a_leaf_for_other_names_is_issued_anew() -> None:
    renamed = SETTINGS.model_copy(update={"names": ("other.example.svc",)})
    assert next_step(settled(), renamed, START) is Step.ISSUE_LEAF
    again = new_leaf(FIRST, renamed, START)
    assert next_step(settled(leaf=again), renamed, START) is Step.NOTHING


def test_authorities_that_are_lost_are_made_anew_beside_those_that_are_trusted() -> None:
    ended = make_authority("ended", START - timedelta(days=3), timedelta(days=1)).certificate_pem
    made = first_authorities([FIRST.bundle, FIRST.bundle + ended, b"no PEM"], SETTINGS, START)
    assert made.trusted[:-1] == FIRST.trusted
    assert step_at(settled(seen_published(made, START)), START) is Step.NOTHING
    assert step_at(settled(seen_published(made, START)), START + SPREAD) is Step.ISSUE_LEAF


FOREIGN = first_authorities([], SETTINGS, START)


def damaged(pem: bytes, part: bytes, other: bytes) -> bytes:
    """A certificate or a key, in which the last of these bytes have become others."""
    first, *lines, last = pem.splitlines()
    before, found, behind = base64.b64decode(b"".join(lines)).rpartition(part)
    assert found
    return b"\n".join((first, base64.b64encode(before + other + behind), last))


VERSION_3, VERSION_9 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x08"
EC_KEY, UNKNOWN_KEY = bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d0209")
P_256, UNKNOWN_CURVE = bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03017f")
DAMAGED_CERTIFICATES = [
    damaged(FIRST.bundle, VERSION_3, VERSION_9),
    damaged(FIRST.bundle, EC_KEY, UNKNOWN_KEY),
    damaged(FIRST.bundle, P_256, UNKNOWN_CURVE),
    damaged(FIRST.bundle, b"\x0c\x0ffairgpu-webhook", b"\x09\x0ffairgpu-webhook"),
]


@pytest.mark.parametrize(
    "authorities",
    [
        replace(FIRST, newest_key=b"no key"),
        replace(FIRST, newest_key=damaged(FIRST.newest_key, P_256, UNKNOWN_CURVE)),
        *(replace(FIRST, trusted=(certificate,)) for certificate in DAMAGED_CERTIFICATES),
        replace(FIRST, newest_key=FOREIGN.newest_key),
        replace(FIRST, trusted=(b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",)),
    ],
)
def test_authorities_that_cannot_sign_are_made_anew(authorities: Authorities) -> None:
    assert step_at(settled(authorities), START) is Step.START


@pytest.mark.parametrize(
    "leaf",
    [
        None,
        Pair(b"no certificate", FIRST_LEAF.key_pem),
        Pair(damaged(FIRST_LEAF.certificate_pem, VERSION_3, VERSION_9), FIRST_LEAF.key_pem),
        Pair(damaged(FIRST_LEAF.certificate_pem, EC_KEY, UNKNOWN_KEY), FIRST_LEAF.key_pem),
        Pair(FIRST_LEAF.certificate_pem, FOREIGN.newest_key),
        new_leaf(FOREIGN, SETTINGS, START),
    ],
)
def test_a_leaf_that_no_api_server_takes_is_issued_anew_at_once(leaf: Pair | None) -> None:
    both = seen_published(with_new_authority(FIRST, SETTINGS, START), START)
    assert step_at(settled(both, leaf), START) is Step.ISSUE_LEAF


def test_a_leaf_that_a_clock_ahead_has_made_is_issued_anew_once_the_clock_is_right() -> None:
    """No API server takes a certificate that is not valid yet: all GPU pods would be refused until then."""
    now, ahead = START + AUTHORITY * 0.7, START + AUTHORITY * 0.7 + timedelta(days=1)
    both = seen_published(with_new_authority(FIRST, SETTINGS, now), now)
    issued_ahead = new_leaf(both, SETTINGS, ahead)
    assert step_at(settled(both, issued_ahead), now + 2 * SPREAD) is Step.ISSUE_LEAF
    assert step_at(settled(both, new_leaf(both, SETTINGS, now)), now) is Step.NOTHING


def test_an_authority_that_a_clock_ahead_has_made_is_followed_by_one_that_signs_at_once() -> None:
    now, ahead = START + AUTHORITY * 0.7, START + AUTHORITY * 0.7 + timedelta(days=1)
    both = seen_published(with_new_authority(FIRST, SETTINGS, ahead), ahead)
    served = new_leaf(both, SETTINGS, ahead)
    assert step_at(settled(both, served), now) is Step.TRUST_NEW_AUTHORITY
    three = with_new_authority(both, SETTINGS, now)
    assert step_at(Observation(frozenset({both.bundle}), served, three), now) is Step.PUBLISH
    assert step_at(settled(three, served), now) is Step.NOTE_PUBLICATION
    three = seen_published(three, now)
    assert step_at(settled(three, served), now) is Step.ISSUE_LEAF
    assert step_at(settled(three, new_leaf(three, SETTINGS, now)), now) is Step.NOTHING


def test_a_publication_that_is_noted_for_a_later_time_is_noted_again_for_the_present() -> None:
    """An API server trusts the CAs from their publication on; a clock that was ahead must not delay the renewal."""
    now = START + AUTHORITY * 0.7
    leaf = new_leaf(FIRST, SETTINGS, now)
    for later in (now + timedelta(days=365), datetime.max.replace(tzinfo=UTC)):
        both = seen_published(with_new_authority(FIRST, SETTINGS, now), later)
        assert step_at(settled(both, leaf), now) is Step.NOTE_PUBLICATION
        assert step_at(settled(seen_published(both, now), leaf), now + SPREAD) is Step.ISSUE_LEAF


def test_a_leaf_does_not_outlive_its_authority() -> None:
    late = START + AUTHORITY - timedelta(days=1)
    assert expires_at(new_leaf(FIRST, SETTINGS, late).certificate_pem) == START + AUTHORITY


def test_an_authority_that_has_ended_signs_no_leaf() -> None:
    with pytest.raises(CertificateError, match="ended at"):
        new_leaf(FIRST, SETTINGS, START + AUTHORITY)


def test_a_bundle_that_is_no_base64_counts_as_empty() -> None:
    assert published_bundle("é") == published_bundle("a") == published_bundle(1) == b""


def test_packed_authorities_are_what_is_unpacked() -> None:
    for authorities in (FIRST, first_authorities([], SETTINGS, START), with_new_authority(FIRST, SETTINGS, START)):
        assert unpack_authorities(pack_authorities(authorities)) == authorities
    assert unpack_leaf(pack_leaf(FIRST_LEAF)) == FIRST_LEAF
    assert certificates_in(FIRST.bundle) == FIRST.trusted


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"ca.crt": b"", "ca.key": b""},
        {**pack_authorities(FIRST), "published-at": b"yesterday"},
        {**pack_authorities(FIRST), "published-at": b"2026-03-01T00:00:00"},
        {**pack_authorities(FIRST), "published-at": "2026-03-01T00:00:00\u00e9".encode()},
    ],
)
def test_bytes_that_are_no_authorities_unpack_to_nothing(data: dict[str, bytes]) -> None:
    assert unpack_authorities(data) is None


def test_the_key_of_the_authority_is_not_beside_the_certificate() -> None:
    assert set(pack_leaf(FIRST_LEAF)) == {"tls.crt", "tls.key"}
    assert FIRST.newest_key not in pack_leaf(FIRST_LEAF).values()
