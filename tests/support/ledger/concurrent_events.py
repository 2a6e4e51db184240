"""Reconciles while something happens to the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.ledger.chaos_model import ChaosModel


@contextmanager
def alongside(happening: Callable[[], object]) -> Iterator[threading.Thread]:
    """Runs `happening` in a thread during the block; raises its error at the end of the block."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            happening()
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the test's to hear
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(120)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def live_through(model: ChaosModel, happening: Callable[[], object]) -> None:
    """Has the model take steps while `happening` runs, and one more step afterwards."""
    with alongside(happening) as thread:
        while thread.is_alive():
            model.live(1)
    model.live(1)
