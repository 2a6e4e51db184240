"""Sets the number of random examples of each property: few while writing, many where CI=true.

Health checks of the machine's speed and of luck are no reason to fail. Hypothesis draws the same examples in each run
where it sees CI; here the seed decides.

Logged tracebacks come without local variables: those of a leader take seconds of processor time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
COMMON = settings(deadline=None, derandomize=False, suppress_health_check=CHECKS)
settings.register_profile("quick", COMMON, max_examples=50)
settings.register_profile("ci", COMMON, max_examples=1000)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "quick")

PLAIN = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure([*structlog.get_config()["processors"][:-1], PLAIN])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests live to the end: to look for garbage among them costs each process a sixth of its start."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
