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
    """The actions and threads that an application registers for its worker's start and end.

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
        """Whether the worker is shutting down: it reports itself as not ready, and answers close their connections."""
        return self.ending.is_set()

    def on_start(self, action: Callable[[], None]) -> None:
        """Runs an action before the first request, in a thread; an exception of it stops the start."""
        self._starts.append(action)

    def on_drain(self, action: Callable[[], None]) -> None:
        """Runs an action in the event loop when the shutdown begins, for example to answer long polls."""
        self._drains.append(action)

    def on_stop(self, action: Callable[[], None]) -> None:
        """Runs an action after the last request, in a thread; the last added runs first."""
        self._stops.append(action)

    def run_thread(self, name: str, target: Callable[[], None], failed: Callable[[], object] = lambda: None) -> None:
        """Runs a function in a thread from the start on, and again after an error that it does not know.

        It must return soon after `ending` is set. `failed` is called after each such error.
        """
        run = partial(keep_running, name, target, self.ending.wait, failed)
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        self.on_start(thread.start)

    def start(self) -> None:
        """Runs the actions registered for the start."""
        for action in self._starts:
            action()

    def drain(self) -> None:
        """Begins the shutdown: sets `ending` and runs the actions registered for it."""
        if not self.ending.is_set():
            self.ending.set()
            for action in self._drains:
                action()

    def stop(self) -> None:
        """Runs the actions registered for the end, and waits shortly for all threads together."""
        self.ending.set()
        for action in reversed(self._stops):
            action()
        deadline = time.monotonic() + THREADS_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
