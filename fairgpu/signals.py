"""Lets signals such as SIGTERM end a process, whether it starts, was just forked or runs."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


def end_while_starting() -> None:
    """Lets SIGTERM end this process while it starts, until it sets a handler of its own.

    The main thread must call this before anything else. The kernel drops a signal for which the first process of a
    container has no handler (pid_namespaces(7)): a service that is starting would go on until the end of its pod's
    grace period. In any other process, SIGTERM ends the process by default.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end_at_once)


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)  # takes no lock, which the main thread may have


def end_forked_by_default() -> None:
    """Lets SIGTERM, SIGINT and SIGQUIT end each process that this one forks later, until it has its own handlers.

    A forked process has its parent's handlers: a signal that comes before the process sets its own would be lost. A
    signal that comes during the fork waits until the fork is done. A signal for the parent then calls the parent's
    handler; a signal for the new process ends that process.
    """

    def let_end() -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        allow()

    def allow() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDING), after_in_parent=allow, after_in_child=let_end
    )


def call_at_end(end: Callable[[], object], longest_seconds: float | None = None) -> None:
    """Calls a function once, in a thread of its own, after SIGTERM or SIGINT. Only the main thread may call this.

    If the process still runs `longest_seconds` after the function has returned, it is ended at once, with the status 0:
    a thread that waits for a server keeps Python from ending for as long as the server is silent.

    Python runs a signal's handler in the main thread, between two of its instructions: a handler that takes a lock, as
    `Event.set` does, waits for ever if the main thread has the lock. So this handler only puts a value into a
    SimpleQueue, whose `put` can be called while the same thread is in `put`
    (https://docs.python.org/3.11/library/queue.html#queue.SimpleQueue.put).

    Args:
        end: the function.
        longest_seconds: the longest time that the process may go on after `end` returns; None for no limit.
    """
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait() -> None:
        asked.get()
        end()
        if longest_seconds is not None:
            threading.Event().wait(longest_seconds)
            os._exit(0)

    threading.Thread(target=wait, name="end", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.put(number))
