from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fairgpu import leadership
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.leadership import LeaseOptions, LeaseRecord, Observation, Term, may_take, next_term, observe
from tests.support.background import in_background
from tests.support.processes import ending
from tests.support.waiting import LIMIT_S
from timekeeper.sources.folder import campaign_by_lock

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("6")
file.flush()
print("held", flush=True)
time.sleep(600)
"""

SECONDS = st.floats(min_value=0, max_value=1e6)


@given(since=SECONDS, waited=SECONDS)
def test_a_lease_is_taken_from_another_only_after_its_whole_duration_without_a_change(
    since: float, waited: float
) -> None:
    observation = Observation(LeaseRecord("other", 3, "7"), since)
    assert may_take(observation, "me", 15, since + waited) is (since + waited - since >= 15)


def test_a_lease_that_was_given_up_is_free_at_once() -> None:
    assert may_take(Observation(LeaseRecord("", 3, "7"), 100.0), "me", 15, 100.0)


def test_a_renewal_starts_the_waiting_anew() -> None:
    first = observe(None, LeaseRecord("other", 3, "7"), 10.0)
    assert observe(first, LeaseRecord("other", 3, "7"), 20.0).since == 10.0
    assert observe(first, LeaseRecord("other", 3, "8"), 20.0).since == 20.0


@given(term=st.integers(0, 10**9), floor=st.integers(0, 10**9))
def test_a_term_is_above_every_term_before_it(term: int, floor: int) -> None:
    number = next_term(LeaseRecord("", term, "1"), floor)
    assert number > term
    assert number > floor
    assert next_term(None, floor) > floor


def test_a_term_ends_by_the_clock_though_nobody_says_so() -> None:
    clock = [0.0]
    term = Term(lambda: clock[0])
    term.hold(4, until=10.0)
    assert term.number() == 4
    clock[0] = 10.0
    assert term.number() is None


def test_on_one_machine_the_lock_goes_to_the_next_process_when_its_holder_is_killed(tmp_path: Path) -> None:
    file, end = tmp_path / "leader", threading.Event()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(file),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with ending(holder), holder.stdout:
        holder.stdout.readline()
        term = Term(lambda: 0.0)
        with in_background(partial(campaign_by_lock, file, term, lambda: 0, end.wait, 0.01), end.set):
            assert term.wait(0.1) is None
            holder.kill()
            holder.wait(LIMIT_S)
            assert term.wait(LIMIT_S) == 7
    assert term.number() is None


class Refusing:
    """An API server that refuses every look at the Lease, in the words that it is given one after the other."""

    def __init__(self, *errors: ApiError) -> None:
        self.errors = list(errors)

    def get(self, _path: str) -> Json:
        raise self.errors.pop(0)


def test_why_the_lease_is_not_to_be_had_is_shown_once_for_as_long_as_it_lasts() -> None:
    forbidden = [ApiError(403, "Forbidden", f"try {number}") for number in range(3)]
    errors = [*forbidden, ApiError(409, "Conflict", "a race"), ApiError(0, "Unreachable", "refused"), forbidden[0]]
    api = Refusing(*errors)
    options = LeaseOptions("ns", "lease", "me")
    term = Term(lambda: 0.0)
    with capture_logs() as logs:
        leadership.campaign(
            cast("KubernetesAPI", api), options, term, lambda: 0, lambda: 0.0, lambda _: len(api.errors) == 1
        )
    shown = [entry["reason"] for entry in logs if entry["log_level"] == "warning"]
    assert shown == ["the API server: 403 Forbidden", "the API server: 0 Unreachable"]
