"""Who waits longest begins first: then others run meanwhile, and nobody waits for the last one alone.

A worker keeps to all tests that share a server, and to those of a file; patient tests that share none are spread.
"""

from __future__ import annotations

import pytest

from tests.s3_server import running_s3_server, s3_server

__all__ = ["running_s3_server", "s3_server"]

SHARED = ("running_rest", "running_s3_server", "served", "impatient", "pair", "told")
"""Fixtures that take long to start, and are there for more than one test of a worker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: item.get_closest_marker("patient") is None)


def group(item: pytest.Item) -> str:
    """What one worker runs."""
    shared = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), None)
    file = f"{item.path.parent.name}/{item.path.stem}"
    return shared or (f"{file}/{item.name}" if item.get_closest_marker("patient") else file)
