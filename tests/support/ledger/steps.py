"""The steps of a reconciliation. Before each step a test can act: end the leader, pause it, or break the store."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from timekeeper.controller.reconcile import apply_orders, open_and_close_periods, reconciler, recovery, settle_accounts
from timekeeper.ledger import conversion, shared

Hook = Callable[[str], object]


class KilledError(BaseException):
    """Raised to end the leader's process as SIGKILL does: nothing of it runs any more, and its memory is lost.

    It is a BaseException, since a reconciliation goes on with other accounts after an Exception.
    """


_running = threading.local()

POINTS = {
    "load": (reconciler, "take_over"),
    "convert": (conversion, "_convert"),
    "restore": (recovery, "restore"),
    "assign": (shared, "write_budgets"),
    "open": (open_and_close_periods, "open_periods"),
    "grant": (apply_orders, "apply_grants"),
    "correct": (apply_orders, "apply_corrections"),
    "close": (open_and_close_periods, "close_balances"),
    "index": (settle_accounts, "_write_index"),
    "prices": (shared, "write_prices"),
    "publish": (reconciler, "publish"),
    "watched": (shared, "write_watched"),
}
"""The function that begins each step, as a module and a name, keyed by step."""


@contextmanager
def stepping(hook: Hook) -> Iterator[None]:
    """Calls the hook with each step's name before the step begins in this thread, for as long as a block lasts."""
    before = getattr(_running, "hook", None)
    _running.hook = hook
    try:
        yield
    finally:
        _running.hook = before


def _reach(name: str) -> None:
    hook = getattr(_running, "hook", None)
    if hook is not None:
        hook(name)


def _with_step(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def act(*arguments: Any, **options: Any) -> Any:
        _reach(name)
        return function(*arguments, **options)

    return act


def _with_sending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def act(*arguments: Any) -> Any:
        _reach("settle" if arguments[-1] is settle_accounts.KEEPING else "remove")
        return function(*arguments)

    return act


for _name, (_module, _attribute) in POINTS.items():
    setattr(_module, _attribute, _with_step(_name, getattr(_module, _attribute)))
settle_accounts._send_batches = _with_sending(settle_accounts._send_batches)
