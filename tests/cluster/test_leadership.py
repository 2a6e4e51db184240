from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.leadership import LeaseOptions, Term, campaign
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.support.background import in_background
from tests.support.waiting import wait_until


@pytest.fixture
def options(namespace: str) -> LeaseOptions:
    """A Lease that a busy machine does not let run out."""
    return LeaseOptions(namespace, "jobs", "", duration_seconds=30, renew_seconds=0.2)


@contextmanager
def campaigning(
    api: KubernetesAPI, options: LeaseOptions, identity: str, floor: Callable[[], int] = lambda: 0
) -> Iterator[tuple[Term, threading.Event]]:
    """A candidate in a thread. Setting `paused` makes it hang in its next look, as SIGSTOP would."""
    term, paused, end = Term(time.monotonic), threading.Event(), threading.Event()

    def wait(seconds: float) -> bool:
        while paused.is_set() and not end.is_set():
            end.wait(0.05)
        return end.wait(seconds)

    run = partial(campaign, api, replace(options, identity=identity), term, floor, time.monotonic, wait)
    with in_background(run, end.set):
        yield term, paused


def test_one_of_two_leads_and_the_other_follows_at_once_when_it_leaves(
    control_plane: ControlPlane, options: LeaseOptions
) -> None:
    api = control_plane.admin.api
    with campaigning(api, options, "second-to-come") as (second, _):
        with campaigning(api, options, "first") as (first, _):
            wait_until(lambda: first.number() or second.number(), "somebody leads")
            leader, other = (first, second) if first.number() else (second, first)
            number = leader.number()
            assert number is not None
            assert other.number() is None
        assert wait_until(second.number, "the one that is left leads") in (number, number + 1)


def test_a_paused_leader_stops_believing_before_the_next_one_begins(
    control_plane: ControlPlane, options: LeaseOptions
) -> None:
    api, options = control_plane.admin.api, replace(options, duration_seconds=8)
    with campaigning(api, options, "first") as (first, paused):
        number = wait_until(first.number, "the first leads")
        with campaigning(api, options, "second") as (second, _):
            paused.set()
            later = wait_until(lambda: (first.number(), second.number()) if second.number() else None, "the second")
            assert later == (None, number + 1)
            paused.clear()
            lease = f"/apis/coordination.k8s.io/v1/namespaces/{options.namespace}/leases/{options.name}"
            assert api.get(lease)["spec"]["holderIdentity"] == "second"


def test_a_lease_that_was_deleted_begins_a_term_above_what_the_store_has_seen(
    control_plane: ControlPlane, options: LeaseOptions
) -> None:
    with campaigning(control_plane.admin.api, options, "first", floor=lambda: 41) as (term, _):
        assert wait_until(term.number, "a term") == 42


def test_no_term_begins_while_the_store_cannot_number_it(control_plane: ControlPlane, options: LeaseOptions) -> None:
    asked = threading.Event()

    def floor() -> int:
        asked.set()
        raise ConnectionError("the store is down")

    with campaigning(control_plane.admin.api, options, "first", floor) as (term, _):
        wait_until(asked.is_set, "the store is asked")
        assert term.wait(0.5) is None
