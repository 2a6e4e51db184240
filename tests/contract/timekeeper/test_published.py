from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support.waiting import LIMIT_S
from timekeeper.domain.pricing import PricePoint
from timekeeper.domain.reports import MAX_BOOTS, Counter, HeldDevice, Marks, ReportLimits
from timekeeper.domain.sessions import EndProof, Session
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import FencedError
from timekeeper.ledger.codec import decode_session, encode_session
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission, close_and_read, write_report_limits
from timekeeper.ledger.shared import (
    Terms,
    index_sessions,
    publish_states,
    write_assignments,
    write_prices,
    write_watched,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.redis_server import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client(decode_responses=True) as connected:
        yield connected


def test_states_change_under_a_growing_version_that_waiting_readers_hear_of(client: redis.Redis) -> None:
    with client.pubsub() as subscription:
        subscription.subscribe(keys.STATES_CHANNEL)
        confirmation = subscription.get_message(timeout=LIMIT_S)
        assert confirmation is not None
        assert confirmation["type"] == "subscribe"
        first = publish_states(client, 1, "id-1", {"a": "A1", "b": "B1"}, Terms({"*": 1.0}, "unlimited"))
        second = publish_states(client, 1, "id-2", {"b": "B2"}, Terms({"*": 1.0}, "unlimited"))
        heard = []
        while len(heard) < 2:
            message = subscription.get_message(ignore_subscribe_messages=True, timeout=LIMIT_S)
            heard += [message["data"]] if message else []
    assert (first.id, first.version, second.id, second.version) == ("id-1", 1, "id-1", 2)
    assert heard == ["1", "2"]
    assert client.hgetall(keys.STATES_VALUES) == {"a": "A1", "b": "B2"}
    assert client.zrangebyscore(keys.STATES_CHANGES, "(1", "+inf") == ["b"]


def test_publishing_nothing_new_makes_no_version(client: redis.Redis) -> None:
    first = publish_states(client, 1, "id", {}, Terms({"*": 1.0}, "unlimited"))
    assert publish_states(client, 1, "other", {}, Terms({"*": 1.0}, "unlimited")) == first
    assert publish_states(client, 1, "other", {}, Terms({"*": 2.0}, "unlimited")).version == first.version + 1


def test_a_replaced_leader_publishes_no_states(client: redis.Redis) -> None:
    publish_states(client, 2, "id", {"a": "new"}, Terms({}, "unlimited"))
    with pytest.raises(FencedError):
        publish_states(client, 1, "id", {"a": "old"}, Terms({}, "unlimited"))
    assert client.hget(keys.STATES_VALUES, "a") == "new"


def test_states_have_a_new_id_once_the_store_was_emptied(client: redis.Redis) -> None:
    publish_states(client, 1, "id-1", {"a": "A"}, Terms({}, "unlimited"))
    client.flushall()
    assert publish_states(client, 1, "id-2", {"a": "A"}, Terms({}, "unlimited")).id == "id-2"


def take(client: redis.Redis, shown: list[tuple[str, int, int]]) -> list[IntakeOutcome | Exception]:
    """Returns the outcomes of a running pod's reports: boot, sequence, and the microseconds of its GPU's work."""
    write_report_limits(
        client, 1, {"uid": ReportLimits(0, (HeldDevice("GPU-1", 1, Fraction(1), 1000, 1_000_000),))}, {}
    )
    index_sessions(client, 1, [("uid", "a")], [])
    reports = [
        Submission("uid", boot, sequence, HOUR, (Counter("GPU-1", used * 1000, used * 1000, 0),))
        for boot, sequence, used in shown
    ]
    return ReportIntake(client).take(reports)


def test_only_later_reports_of_a_boot_are_taken_over(client: redis.Redis) -> None:
    reports = [("boot-1", 1), ("boot-1", 3), ("boot-1", 2), ("boot-1", 3), ("boot-2", 0), ("boot-1", 2), ("boot-1", 4)]
    taken = [outcome is IntakeOutcome.TAKEN for outcome in take(client, [(*each, 0) for each in reports])]
    assert taken == [True, True, False, False, True, False, True]
    (known,) = close_and_read(client, 1, [("uid", Marks())])
    assert known is not None
    assert [boot[:2] for boot in known.intake.boots] == [("boot-2", 0), ("boot-1", 4)]
    assert client.ttl(keys.report("uid")) > 0


def test_use_adds_up_over_boots_whatever_comes_twice_or_late(client: redis.Redis) -> None:
    shown = [("a", 1, 100), ("a", 3, 300), ("b", 1, 20), ("a", 2, 200), ("b", 1, 20), ("a", 4, 310), ("b", 2, 25)]
    take(client, shown)
    assert reading.used(client, ["uid"]) == [335]


def test_no_number_of_boots_grows_a_pods_reports_without_bound(client: redis.Redis) -> None:
    take(client, [(f"boot-{number}", 1, 7) for number in range(500)])
    (known,) = close_and_read(client, 1, [("uid", Marks())])
    assert known is not None
    assert len(known.intake.boots) == MAX_BOOTS
    assert reading.used(client, ["uid", "other"]) == [3500, None]


def test_open_sessions_are_found_by_uid_and_page_by_page(client: redis.Redis) -> None:
    index_sessions(client, 1, [("u2", "b"), ("u1", "a"), ("u10", "a"), ("u3", "c")], [])
    index_sessions(client, 1, [], [("u3", "c")])
    assert reading.open_sessions(client, "", 2) == [("u1", "a"), ("u10", "a")]
    assert reading.open_sessions(client, "u10", 2) == [("u2", "b")]
    assert reading.open_sessions(client, "u1", 1) == [("u10", "a")]


def test_the_book_is_read_as_it_was_written(client: redis.Redis) -> None:
    assignments = {"team-a": ((0, "a"), (2**60 + 1, "b"))}
    prices = {"A100": (PricePoint(5, Fraction(1, 3)), PricePoint(9, Fraction(5, 2)))}
    write_assignments(client, 1, assignments)
    write_prices(client, 1, prices)
    write_watched(client, 1, 2**60 + 1, 2**60 + 2)
    assert reading.assignments(client) == assignments
    assert reading.account_names(client) == ["a", "b"]
    assert reading.prices(client) == prices
    assert (reading.watched(client), reading.watched_claims(client)) == (2**60 + 1, 2**60 + 2)


def test_a_session_survives_its_record() -> None:
    session = Session("u", "ns", "pod", "n1", 2**60 + 1, ((2**60 + 1, 10**6), (2**61, 5)))
    assert decode_session(encode_session(session)) == session
    ended = Session("u", "ns", "pod", "n1", 1, ((1, 2),), 2**60, EndProof.FINISHED, namespace_uid="n")
    assert decode_session(encode_session(ended)) == ended
    assert json.loads(encode_session(ended))["proof"] == "finished"


def test_states_have_a_new_id_once_other_servers_hold_them_as_versions_may_have_been_forgotten(
    client: redis.Redis,
) -> None:
    terms = Terms({}, "unlimited")
    first = publish_states(client, 1, "id-1", {"a": "A"}, terms, "run-1")
    assert publish_states(client, 1, "id-2", {"a": "B"}, terms, "run-1").id == first.id
    assert publish_states(client, 1, "id-3", {}, terms, "run-2").id == "id-3"


SECOND = 10**9


def take_at(client: redis.Redis, shown: list[tuple[str, int, float, bool]]) -> list[IntakeOutcome | Exception]:
    """Returns the outcomes of reports sent one by one: boot, sequence, time in seconds, and whether it is the last."""
    write_report_limits(
        client, 1, {"uid": ReportLimits(0, (HeldDevice("GPU-1", 1, Fraction(1), 1000, 1_000_000),))}, {}
    )
    index_sessions(client, 1, [("uid", "a")], [])
    intake = ReportIntake(client, SECOND)
    reports = (
        Submission("uid", boot, number, int(at * SECOND) + 10**18, last=last) for boot, number, at, last in shown
    )
    return [intake.take([report])[0] for report in reports]


def test_one_report_of_a_pod_a_second_is_written(client: redis.Redis) -> None:
    found = take_at(client, [("b", number, number / 10, False) for number in range(41)])
    assert [number / 10 for number, outcome in enumerate(found) if outcome is IntakeOutcome.TAKEN] == [0, 1, 2, 3, 4]
    assert set(found) == {IntakeOutcome.TAKEN, IntakeOutcome.EARLY}


def test_no_number_of_starts_and_ends_lets_a_pod_write_more_than_a_few_reports_and_two_a_second(
    client: redis.Redis,
) -> None:
    found = take_at(client, [(f"b{number}", 1, number / 100, True) for number in range(1000)])
    assert found.count(IntakeOutcome.TAKEN) <= 10 + 4 + 10


def test_a_clock_that_was_ahead_does_not_silence_a_pod(client: redis.Redis) -> None:
    found = take_at(client, [("b", 1, 5000, False), ("b", 2, 10, False), ("b", 3, 10.5, False), ("b", 4, 11, False)])
    assert found == [IntakeOutcome.TAKEN, IntakeOutcome.TAKEN, IntakeOutcome.EARLY, IntakeOutcome.TAKEN]


def test_proofs_of_life_are_written_once_a_second(client: redis.Redis) -> None:
    assert set(take_at(client, [("", 0, 1, False), ("", 0, 1.5, False)])) == {IntakeOutcome.TAKEN}
    assert client.hget(keys.report("uid"), "at") == str(10**18 + SECOND)
