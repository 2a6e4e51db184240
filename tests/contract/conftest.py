"""Who waits longest begins first: then others run meanwhile, and nobody waits for the last one alone."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("patient") is None)
