"""The wait of all tests, by the name that tests of the cluster know it by."""

from __future__ import annotations

from tests.support.waiting import wait_until

__all__ = ["wait_until"]
