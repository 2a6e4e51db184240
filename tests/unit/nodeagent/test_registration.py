"""Tests when the device plugin registers again: soon, and never in a fast fight with another plugin."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from nodeagent.kubelet.registration import (
    FIRST_DELAY_SECONDS,
    HIDDEN_SECONDS,
    IN_FLIGHT_SECONDS,
    LAST_DELAY_SECONDS,
    UNFOLLOWED_SECONDS,
    Look,
    Loss,
    Registration,
    foreign_slots,
    is_due,
    loss,
    observed,
    registered,
)
from nodeagent.node_patches import shows_slots, status_written
from nodeagent.offer import slot_ids

KUBELET, NEW_KUBELET = (1, 1), (2, 2)
WELL = Look(KUBELET, written="first")
LONG_AGO = Registration(KUBELET, at_seconds=0.0, followed_seconds=0.0, shown_seconds=0.0, written="first")
NOW = 10_000.0
OTHERS = replace(WELL, foreign=("GPU-1",))
JUST_NOW = registered(LONG_AGO, OTHERS, Loss.TAKEN, NOW)
HIDES = replace(WELL, is_shown=False, written="second")


def lost(look: Look, registration: Registration = LONG_AGO, now: float = NOW) -> Loss | None:
    return loss(observed(registration, look, now), look, now)


def test_nothing_is_lost_while_the_kubelet_follows_and_the_node_shows_the_slots() -> None:
    assert lost(WELL) is None
    assert not is_due(LONG_AGO, None, NOW)


@pytest.mark.parametrize("look", [Look(NEW_KUBELET), Look(None), replace(WELL, is_served=False)])
def test_a_new_kubelet_or_none_or_a_lost_socket_is_a_reason_to_register_at_once(look: Look) -> None:
    just_now = replace(LONG_AGO, at_seconds=NOW, delay_seconds=LAST_DELAY_SECONDS)
    assert lost(look, just_now) is Loss.UNREGISTERED
    assert is_due(just_now, Loss.UNREGISTERED, NOW)


def test_slots_that_are_not_the_agents_show_another_plugin() -> None:
    assert foreign_slots(slot_ids(2)) == ()
    assert foreign_slots(["slot-1", "slot-x", "GPU-1"]) == ("GPU-1", "slot-x")
    assert lost(replace(WELL, foreign=("GPU-1",))) is Loss.TAKEN


def test_another_plugin_is_remembered_until_the_next_registration() -> None:
    """The agent's own list of slots takes the place of the other's in the kubelet's file, and not in whom it asks."""
    seen = observed(LONG_AGO, OTHERS, NOW)
    assert lost(WELL, seen, NOW + 1) is Loss.TAKEN
    assert lost(WELL, registered(seen, WELL, Loss.TAKEN, NOW + 1), NOW + 2) is None


def test_another_plugin_that_names_its_slots_as_the_agent_does_is_known_by_what_it_answered() -> None:
    first, second = ("uid-1", "main"), ("uid-2", "main")
    answered = replace(WELL, answered=frozenset({first}))
    assert lost(answered) is Loss.TAKEN
    again = registered(observed(LONG_AGO, answered, NOW), answered, Loss.TAKEN, NOW)
    assert lost(answered, again, NOW + 60) is None, "that container was there before"
    assert lost(replace(WELL, answered=frozenset({first, second})), again, NOW + 60) is Loss.TAKEN


def test_an_answer_that_the_kubelet_writes_down_right_after_the_registration_is_of_before() -> None:
    in_flight = replace(WELL, answered=frozenset({("uid-1", "main")}))
    seen = observed(JUST_NOW, in_flight, NOW + IN_FLIGHT_SECONDS / 2)
    assert loss(seen, in_flight, NOW + IN_FLIGHT_SECONDS / 2) is None
    assert lost(in_flight, seen, NOW + 60) is None
    assert lost(in_flight, JUST_NOW, NOW + IN_FLIGHT_SECONDS) is Loss.TAKEN


def test_a_kubelet_that_is_slow_to_call_back_shows_the_other_plugins_slots_of_before() -> None:
    """Its file is as it was at the registration, until it has the agent's list."""
    seen = JUST_NOW
    for second in range(9):
        assert lost(OTHERS, seen, NOW + second) is None
        seen = observed(seen, OTHERS, NOW + second)
    assert lost(WELL, observed(seen, WELL, NOW + 9), NOW + 60) is None


def test_another_plugin_that_registers_after_the_kubelet_had_the_agents_list_is_seen_at_once() -> None:
    seen = observed(JUST_NOW, WELL, NOW + 1)
    assert lost(OTHERS, seen, NOW + 2) is Loss.TAKEN


def test_another_plugin_that_registers_right_after_the_agent_is_seen_at_once() -> None:
    """After a restart of the kubelet both do so."""
    first = registered(Registration(), WELL, Loss.UNREGISTERED, NOW)
    assert lost(OTHERS, first, NOW + 0.5) is Loss.TAKEN
    assert lost(replace(OTHERS, foreign=("GPU-1", "GPU-2")), JUST_NOW, NOW + 0.5) is Loss.TAKEN


def test_another_plugins_slots_that_stay_are_not_of_before() -> None:
    assert lost(OTHERS, JUST_NOW, NOW + UNFOLLOWED_SECONDS) is Loss.TAKEN


def test_the_kubelet_has_time_to_call_back() -> None:
    look, last = replace(WELL, is_followed=False), replace(LONG_AGO, at_seconds=NOW)
    assert lost(look, last, NOW + UNFOLLOWED_SECONDS - 1) is None
    assert lost(look, last, NOW + UNFOLLOWED_SECONDS) is Loss.UNFOLLOWED


def test_the_kubelet_has_time_to_write_the_node() -> None:
    last = replace(LONG_AGO, at_seconds=NOW)
    assert lost(HIDES, last, NOW + HIDDEN_SECONDS - 1) is None
    assert lost(HIDES, last, NOW + HIDDEN_SECONDS) is Loss.HIDDEN


def test_a_node_that_the_kubelet_has_not_written_since_hides_nothing() -> None:
    """The API server is away, or the kubelet is set to write its status once in minutes."""
    assert lost(replace(HIDES, written="first")) is None
    seen = observed(observed(JUST_NOW, HIDES, NOW + 1), HIDES, NOW + 5)
    assert lost(HIDES, seen, NOW + 3600) is None
    assert lost(replace(HIDES, written="third"), seen, NOW + 3600) is Loss.HIDDEN


def test_the_version_of_a_status_is_the_kubelets_own() -> None:
    ready = {"type": "Ready", "status": "Unknown", "lastHeartbeatTime": "10:00", "lastTransitionTime": "10:05"}
    pressure = {"type": "MemoryPressure", "lastHeartbeatTime": "10:01"}
    assert status_written({"status": {"conditions": [pressure, ready]}}) == "10:00"
    assert status_written({"status": {}}) == ""


def test_two_plugins_that_both_want_the_resource_take_turns_ever_more_slowly() -> None:
    registration, times, now = LONG_AGO, [], NOW
    while now < NOW + 3600:
        look = OTHERS if now > registration.at_seconds + 1 else WELL  # the other one answers each registration
        registration = observed(registration, look, now)
        found = loss(registration, look, now)
        assert found is (Loss.TAKEN if look is OTHERS else None)
        if is_due(registration, found, now):
            registration = registered(registration, look, found, now)
            times.append(now)
        now += 1.0
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] == FIRST_DELAY_SECONDS
    assert gaps == sorted(gaps)
    assert gaps[-1] == LAST_DELAY_SECONDS
    assert len(times) < 20


def test_after_a_registration_that_lasted_the_next_loss_is_answered_at_once() -> None:
    slow = replace(LONG_AGO, at_seconds=NOW, delay_seconds=LAST_DELAY_SECONDS)
    later = NOW + 2 * LAST_DELAY_SECONDS
    assert is_due(slow, Loss.TAKEN, later)
    assert registered(slow, OTHERS, Loss.TAKEN, later).delay_seconds == FIRST_DELAY_SECONDS


@pytest.mark.parametrize(
    ("shown", "all_are"), [("128", True), ("1k", True), ("64", False), ("0", False), (None, False)]
)
def test_the_node_shows_the_slots_once_the_kubelet_has_written_all_of_them(shown: str | None, *, all_are: bool) -> None:
    allocatable = {} if shown is None else {"fairgpu.io/gpu": shown}
    assert shows_slots({"status": {"allocatable": allocatable}}, 128) is all_are
