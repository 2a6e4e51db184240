"""The number of questions to the API server that callers may cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.auth.access_control import (
    CALLER_REVIEWS,
    CALLER_SECONDS,
    FAMILIAR_SECONDS,
    STRANGER_REVIEWS,
    Action,
    Buckets,
    CachingAccessControl,
    Caller,
    CallRate,
    IdentityUnavailableError,
    TooManyRequestsError,
    UnauthenticatedError,
)


class Server:
    """Knows a caller by each token that begins with good-, named by what is between it and the last dash."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    def authenticate(self, token: str) -> Caller:
        self.asked += 1
        if self.away:
            raise IdentityUnavailableError("away")
        if not token.startswith("good-"):
            raise UnauthenticatedError("unknown")
        return Caller(token.removeprefix("good-").rpartition("-")[0])

    def permits(self, _caller: Caller, _action: Action) -> bool:
        self.asked += 1
        return False


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def reading(number: int) -> Action:
    return Action("get", "gpubudgets", f"team-{number}")


def times_until_refused(attempt: Callable[[int], object]) -> int:
    for number in range(10_000):
        try:
            attempt(number)
        except TooManyRequestsError:
            return number
        except UnauthenticatedError:
            pass
    raise AssertionError("never refused")


def test_a_caller_makes_it_be_asked_so_often_and_then_as_time_goes_by() -> None:
    server, clock = Server(), Clock()
    access = CachingAccessControl(server, clock)
    alice = access.authenticate("good-alice-1", "10.0.0.1")
    assert times_until_refused(lambda number: access.permits(alice, reading(number))) == CALLER_REVIEWS.burst - 1
    clock.now += 2
    more = times_until_refused(lambda number: access.permits(alice, reading(1000 + number)))
    assert more == 2 * CALLER_REVIEWS.per_second
    assert server.asked == CALLER_REVIEWS.burst + more


def test_others_go_on_meanwhile_and_so_does_what_is_still_believed() -> None:
    access = CachingAccessControl(Server(), Clock())
    alice, bob = (access.authenticate(f"good-{name}-1", "10.0.0.1") for name in ("alice", "bob"))
    times_until_refused(lambda number: access.permits(alice, reading(number)))
    assert access.permits(alice, reading(0)) is False
    assert access.permits(bob, reading(0)) is False
    assert access.authenticate("good-alice-1", "10.0.0.1") == alice


def test_tokens_of_one_caller_share_what_it_may_ask() -> None:
    access = CachingAccessControl(Server(), Clock())
    tokens = times_until_refused(lambda number: access.authenticate(f"good-alice-{number}", "10.0.0.1"))
    assert tokens == CALLER_REVIEWS.burst


def test_tokens_of_nobody_count_against_their_address_alone() -> None:
    server, clock = Server(), Clock()
    access = CachingAccessControl(server, clock)
    tried = times_until_refused(lambda number: access.authenticate(f"bad-{number}", "10.0.0.1"))
    assert tried == server.asked == STRANGER_REVIEWS.burst
    with pytest.raises(UnauthenticatedError):
        access.authenticate("bad", "10.0.0.2")
    assert access.authenticate("good-alice-1", "10.0.0.2") == Caller("alice")


def test_a_client_with_a_network_of_ipv6_is_limited_as_one_address() -> None:
    server, clock = Server(), Clock()
    access = CachingAccessControl(server, clock)
    tried = times_until_refused(lambda number: access.authenticate(f"bad-{number}", f"2001:db8:1:2::{number:x}"))
    assert tried == server.asked == STRANGER_REVIEWS.burst
    with pytest.raises(UnauthenticatedError):
        access.authenticate("bad", "2001:db8:1:3::1")
    with pytest.raises(UnauthenticatedError):
        access.authenticate("worse", "::ffff:10.0.0.1")


def test_an_ipv4_address_is_limited_as_one_however_it_is_written() -> None:
    access = CachingAccessControl(Server(), Clock())
    written = ("10.0.0.1", "::ffff:10.0.0.1")
    tried = times_until_refused(lambda number: access.authenticate(f"bad-{number}", written[number % 2]))
    assert tried == STRANGER_REVIEWS.burst


def test_good_tokens_use_up_nothing_of_their_address() -> None:
    access = CachingAccessControl(Server(), Clock())
    for number in range(2 * STRANGER_REVIEWS.burst):
        access.authenticate(f"good-user{number}-1", "10.0.0.1")


def test_no_client_is_asked_to_ask_less_because_no_answer_came() -> None:
    server = Server()
    server.away = True
    access = CachingAccessControl(server, Clock())
    for number in range(2 * STRANGER_REVIEWS.burst):
        with pytest.raises(IdentityUnavailableError):
            access.authenticate(f"good-user{number}-1", "10.0.0.1")
    server.away = False
    assert access.authenticate("good-alice-1", "10.0.0.1") == Caller("alice")


def test_a_caller_accepted_from_an_address_is_not_shut_out_by_others_behind_it() -> None:
    clock = Clock()
    access = CachingAccessControl(Server(), clock)
    alice = access.authenticate("good-alice-1", "10.0.0.1")
    clock.now += CALLER_SECONDS + 1
    times_until_refused(lambda number: access.authenticate(f"bad-{number}", "10.0.0.1"))
    assert access.authenticate("good-alice-1", "10.0.0.1") == alice
    clock.now += FAMILIAR_SECONDS + CALLER_SECONDS
    times_until_refused(lambda number: access.authenticate(f"worse-{number}", "10.0.0.1"))
    with pytest.raises(TooManyRequestsError):
        access.authenticate("good-alice-1", "10.0.0.1")


def test_buckets_take_bounded_memory_and_forget_who_was_silent_for_longest() -> None:
    buckets = Buckets(CallRate(burst=1, per_second=0.001), Clock(), max_kept=10)
    for number in range(1000):
        buckets.take(str(number), "too many")
        assert len(buckets) <= 10
    with pytest.raises(TooManyRequestsError, match=r"too many; try again in 1000 s"):
        buckets.take("999", "too many")
    buckets.take("0", "too many")


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=60))
def test_no_sequence_takes_more_than_the_burst_and_what_time_brings(steps: list[tuple[bool, float]]) -> None:
    clock, rate = Clock(), CallRate(burst=5, per_second=0.5)
    buckets, taken, started = Buckets(rate, clock), 0, clock.now
    for back, seconds in steps:
        clock.now += seconds
        try:
            buckets.take("a", "")
        except TooManyRequestsError:
            continue
        taken += 1
        if back:
            buckets.give_back("a")
            taken -= 1
        assert taken <= rate.burst + rate.per_second * (clock.now - started) + 1e-6
