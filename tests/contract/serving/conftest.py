"""The servers that tests of several files share, which leave them as they found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.serving.served import Served, serving

PATIENCE_SECONDS = 4.0
"""Longer than a busy machine keeps a client waiting that does not want to be late."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that waits for its clients as long as any test does."""
    with serving(tmp_path_factory.mktemp("served")) as shared:
        yield shared


@pytest.fixture(scope="session")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One that waits for seconds for what its clients owe it."""
    with serving(tmp_path_factory.mktemp("impatient"), patience=PATIENCE_SECONDS) as shared:
        yield shared
