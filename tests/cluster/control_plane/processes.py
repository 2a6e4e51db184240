"""Start a server for a test session and be sure of its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from demo import children
from tests.support.processes import end, kill

_HELPER = Path(children.__file__).with_name("die_with_parent.py")
_TAIL = 4000
OF_OTHERS_S = 20.0
"""The longest that a program of another project may take to end."""


@dataclass(frozen=True)
class Process:
    """A running server and the file that takes what it prints."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def check_alive(self) -> None:
        """Raise RuntimeError with the end of the log if the server ended by itself."""
        if self.popen.poll() is not None:
            end = self.log.read_text(errors="replace")[-_TAIL:]
            raise RuntimeError(f"{self.name} ended with status {self.popen.returncode}:\n{end}")


@contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    log: Path,
    environment: Mapping[str, str],
    stop_limit_s: float | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[Process]:
    """Run a server in a process group of its own, and end it with `stop_signal` at the end of the block.

    A server that is still there after LIMIT_S fails the test, with an AssertionError. Where `stop_limit_s` is given, as
    for a server whose own end is no concern of the test, SIGKILL ends its group after that time and nothing fails.
    Should this process be killed, the kernel kills the server. `environment` is all that it gets.
    """
    helper: list[str | Path] = [sys.executable, "-I", "-S", _HELPER, str(os.getpid())]
    with log.open("ab") as output:
        popen = subprocess.Popen(
            [*helper, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        yield Process(name, popen, log)
    finally:
        if stop_limit_s is None:
            end(popen, stop_signal)
        else:
            _end_or_kill(popen, stop_signal, stop_limit_s)


class Restartable:
    """A server that a test can take away and bring back with the same ports and files."""

    def __init__(self, start: Callable[[], AbstractContextManager[Process]]) -> None:
        self._start = start
        self._stack = ExitStack()
        self.process = self._stack.enter_context(start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """End the server, and start it again at the end of the block."""
        self._stack.close()
        try:
            yield
        finally:
            self.process = self._stack.enter_context(self._start())


def _end_or_kill(popen: subprocess.Popen[bytes], stop_signal: signal.Signals, limit_s: float) -> None:
    popen.send_signal(stop_signal)
    with suppress(subprocess.TimeoutExpired):
        popen.wait(limit_s)
    kill(popen)
