"""The CA and the certificate are renewed in steps, and at none of them somebody's trust is missing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.certificates import Pair, serves
from webhook.certificates.authority import Holding, Step, next_step, pack, take, unpack
from webhook.settings import Certificates

START = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = Certificates()
LEAF = timedelta(seconds=SETTINGS.leaf_seconds)
AUTHORITY = timedelta(seconds=SETTINGS.authority_seconds)
SPREAD = timedelta(seconds=SETTINGS.spread_seconds)
FIRST = take(Step.START, None, SETTINGS, START)


def signed_by(holding: Holding) -> bytes:
    """The one trusted authority that signed the leaf; fails where none did."""
    signers = [pem for pem in holding.authorities if serves(holding.leaf.certificate_pem, pem, SETTINGS.names)]
    assert len(signers) == 1
    return signers[0]


def test_it_starts_with_an_authority_and_a_leaf_for_the_services_name() -> None:
    assert next_step(None, SETTINGS, START) is Step.START
    assert FIRST.authorities == (FIRST.newest.certificate_pem,)
    assert signed_by(FIRST) == FIRST.newest.certificate_pem


@pytest.mark.parametrize(
    ("age", "step"),
    [
        (timedelta(0), Step.NOTHING),
        (LEAF * 0.6, Step.NOTHING),
        (LEAF * 0.7, Step.ISSUE_LEAF),
        (LEAF * 1.1, Step.START),
        (-timedelta(days=1), Step.TRUST_NEW_AUTHORITY),
    ],
)
def test_what_is_due_follows_from_the_time(age: timedelta, step: Step) -> None:
    assert next_step(FIRST, SETTINGS, START + age) is step


def test_a_leaf_for_other_names_is_issued_anew() -> None:
    renamed = SETTINGS.model_copy(update={"names": ("other.example.svc",)})
    assert next_step(FIRST, renamed, START) is Step.ISSUE_LEAF
    again = take(Step.ISSUE_LEAF, FIRST, renamed, START)
    assert next_step(again, renamed, START) is Step.NOTHING


def test_an_authority_changes_in_three_steps_with_time_between_them() -> None:
    now = START + AUTHORITY * 0.7
    held = take(Step.ISSUE_LEAF, FIRST, SETTINGS, now)
    assert next_step(held, SETTINGS, now) is Step.TRUST_NEW_AUTHORITY
    trusted = take(Step.TRUST_NEW_AUTHORITY, held, SETTINGS, now)
    assert len(trusted.authorities) == 2
    assert signed_by(trusted) == FIRST.newest.certificate_pem
    assert next_step(trusted, SETTINGS, now + SPREAD * 0.9) is Step.NOTHING
    now += SPREAD
    assert next_step(trusted, SETTINGS, now) is Step.ISSUE_LEAF
    issued = take(Step.ISSUE_LEAF, trusted, SETTINGS, now)
    assert len(issued.authorities) == 2
    assert signed_by(issued) == issued.newest.certificate_pem
    assert next_step(issued, SETTINGS, now + SPREAD * 0.9) is Step.NOTHING
    now += SPREAD
    assert next_step(issued, SETTINGS, now) is Step.DROP_OLD_AUTHORITIES
    dropped = take(Step.DROP_OLD_AUTHORITIES, issued, SETTINGS, now)
    assert dropped.authorities == (issued.newest.certificate_pem,)
    assert next_step(dropped, SETTINGS, now) is Step.NOTHING


def test_certificates_that_cannot_be_read_are_made_anew() -> None:
    broken = replace(FIRST, leaf=Pair(b"no certificate", b""))
    assert next_step(broken, SETTINGS, START) is Step.START


def test_what_is_packed_is_what_is_unpacked() -> None:
    assert unpack(pack(FIRST)) == FIRST
    two = take(Step.TRUST_NEW_AUTHORITY, FIRST, SETTINGS, START)
    assert unpack(pack(two)) == two


@pytest.mark.parametrize("data", [{}, {"ca.crt": b""}, {**pack(FIRST), "changed-at": b"yesterday"}])
def test_what_is_no_holding_unpacks_to_nothing(data: dict[str, bytes]) -> None:
    assert unpack(data) is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.01, 20), min_size=5, max_size=25))
def test_who_lags_by_one_step_still_trusts_what_is_served(days: list[float]) -> None:
    """API servers read the bundle late, replicas serve a new leaf late; neither lags by more than a step."""
    quick = SETTINGS.model_copy(update={"authority_seconds": 40 * 86400, "leaf_seconds": 25 * 86400})
    now, before = START, FIRST
    for elapsed in days:
        now += timedelta(days=elapsed)
        step = next_step(before, quick, now)
        after = take(step, before, quick, now)
        assert signed_by(after) in after.authorities
        if step is not Step.START:
            assert signed_by(after) in before.authorities
            assert signed_by(before) in after.authorities
        before = after
