"""Divides the tests among workers: files that share servers go to one, and the tests that wait longest begin first.

Then others run meanwhile, and no worker waits for the last one alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.servers.s3_server import running_s3_server, s3_server

__all__ = ["running_s3_server", "s3_server"]

SHARING = {
    "deploy/test_export_as_documented.py": "S3",
    "timekeeper_rest/test_forgotten_months.py": "S3",
    "timekeeper_usage/test_bucket.py": "S3",
    "timekeeper_rest/": "REST",
    "serving/": "serving",
}
"""The folders whose tests share a server. A worker starts it once for all of them that it runs."""


class ByServers(LoadFileScheduling):
    """A worker keeps to a file, or to all those that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((server for place, server in SHARING.items() if place in file), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByServers:
    """Replaces the scheduler that `--dist` names.

    The mark `xdist_group` would say as much beside each test, and is not heard: its place in a test's id is gone from
    pytest 9.2, so that xdist 3.8 spreads all tests.
    """
    return ByServers(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("patient") is None)
