"""Admission as pure functions, without a server: mutate and validate, from the body to the answer."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from tests.bench._builds import builds
from tests.bench._reviews import both_reviews, four_kilobyte_pod
from tests.support.admission import SETTINGS, knowing
from webhook.admission.review import answer

CALLS = 4000
GOAL_MICROSECONDS = 150


def rows() -> Iterator[dict[str, Any]]:
    """The median of each build, in a process of its own."""
    size = len(orjson.dumps(four_kilobyte_pod()))
    for build, environment in builds().items():
        command = [sys.executable, "-P", "-m", "tests.bench.verdicts"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        micros, account = (float(each) for each in done.stdout.split())
        yield {
            "name": f"mode account beside mutate + validate of share, pure, {build}, medians",
            "value": account / micros,
            "unit": "",
            "goal": "<= 1",
            "met": account <= micros,
            "context": f"the same pod of {size} bytes in one process; account has no validating webhook",
        }
        yield {
            "name": f"mutate + validate, pure, {build}, median",
            "value": micros,
            "unit": "us",
            "goal": f"< {GOAL_MICROSECONDS}",
            "met": micros < GOAL_MICROSECONDS,
            "context": f"a pod of {size} bytes in HAMi's dialect",
        }


def both() -> Callable[[], None]:
    """Returns the function that is measured: one mutation and one validation."""
    knowledge = knowing()
    (_, mutated), (_, validated) = both_reviews()

    def judge() -> None:
        answer("mutate", mutated, knowledge, SETTINGS, 0.0)
        answer("validate", validated, knowledge, SETTINGS, 0.0)

    return judge


def account() -> Callable[[], object]:
    """The same pod where its namespace's mode is account."""
    knowledge = knowing()
    (_, mutated), _ = both_reviews()
    return lambda: answer("account", mutated, knowledge, SETTINGS, 0.0)


def median_micros(call: Callable[[], object], times: int) -> float:
    """The median of single calls, after a tenth of them to warm up."""
    for _ in range(times // 10):
        call()
    taken = []
    for _ in range(times):
        started = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - started)
    return statistics.median(taken) / 1000


if __name__ == "__main__":
    print(median_micros(both(), CALLS), median_micros(account(), CALLS))
