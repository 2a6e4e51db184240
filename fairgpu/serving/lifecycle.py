"""The life of one worker process: the actions at its start, when its shutdown begins, and at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from fairgpu.keeping import keep_running
from fairgpu.serving.options import ServerOptions

THREADS_SECONDS = 1.0
"""The longest wait for threads at the end; they are daemons, so a waiting one ends with the process."""


class Lifecycle:
    """The actions and threads that an application registers for the start and end of its worker process.

    Attributes:
        options: the options of the server.
        ending: set when the worker's shutdown begins; background threads wait on it instead of sleeping.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.ending = threading.Event()
        self._starts: list[Callable[[], None]] = []
        self._drains: list[Callable[[], None]] = []
        self._stops: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []

    @property
    def draining(self) -> bool:
        """Whether the worker is shutting down: its readiness probe fails, and its answers close their connections."""
        return self.ending.is_set()

    def on_start(self, action: Callable[[], None]) -> None:
        """Registers an action to run in a thread before the worker's first request.

        Args:
            action: the action. If it raises, the worker does not start.
        """
        self._starts.append(action)

    def on_drain(self, action: Callable[[], None]) -> None:
        """Registers an action to run in the event loop when the worker's shutdown begins, such as to end long polls."""
        self._drains.append(action)

    def on_stop(self, action: Callable[[], None]) -> None:
        """Registers an action to run in a thread after the worker's last request.

        Args:
            action: the action. The last one registered runs first.
        """
        self._stops.append(action)

    def run_thread(self, name: str, target: Callable[[], None], failed: Callable[[], object] = lambda: None) -> None:
        """Registers a function to run in a thread from the worker's start on, and again after each exception.

        Args:
            name: the name of the thread and, in the log, of the function.
            target: the function; it must return soon after `ending` is set.
            failed: called after each exception.
        """
        run = partial(keep_running, name, target, self.ending.wait, failed)
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        self.on_start(thread.start)

    def start(self) -> None:
        """Runs the actions registered for the worker's start."""
        for action in self._starts:
            action()

    def drain(self) -> None:
        """Begins the worker's shutdown: sets `ending`, and runs the actions of `on_drain` at the first call only."""
        if not self.ending.is_set():
            self.ending.set()
            for action in self._drains:
                action()

    def stop(self) -> None:
        """Runs the actions registered for the worker's end, and waits at most THREADS_SECONDS for its threads."""
        self.ending.set()
        for action in reversed(self._stops):
            action()
        deadline = time.monotonic() + THREADS_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
