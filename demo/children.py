"""The demonstration's child processes: started with logs in files, and ended by their ids in every case."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

END_SECONDS = 10.0
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 2000
PORTS = range(15000, 32000)
DIE_WITH_PARENT = str(Path(__file__).with_name("die_with_parent.py"))


class StepError(RuntimeError):
    """A step of the demonstration failed; the message says which, and shows the evidence."""


@dataclass
class Child:
    """A child process of the demonstration.

    Attributes:
        name: the process's name in messages.
        process: the process.
        log: the file with the process's output.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        """Returns the end of the process's log, at most LOG_TAIL_BYTES."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def check(self) -> None:
        """Checks that the process still runs.

        Raises:
            StepError: the process has ended.
        """
        status = self.process.poll()
        if status is not None:
            raise StepError(f"{self.name} ended with {status}:\n{self.tail()}")

    def end(self, limit_seconds: float = END_SECONDS) -> int:
        """Ends the process by SIGTERM; returns its exit status.

        Args:
            limit_seconds: the time after which SIGKILL ends the process.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@dataclass
class Children:
    """The child processes of the demonstration: a context that ends all of them when the with block is left.

    Attributes:
        logs: the folder of the processes' logs.
        running: the processes that `start` has started and `end` has not ended.
    """

    logs: Path
    running: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Starts a child process, which the kernel kills if this process ends without ending it.

        Args:
            name: the process's name in messages and in the name of its log file.
            command: the program and its arguments.
            environment: the environment of the process beside PATH.
        """
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own commands, no shell
                [
                    sys.executable,
                    "-I",
                    "-S",
                    DIE_WITH_PARENT,
                    str(os.getpid()),
                    shutil.which(command[0]) or command[0],
                    *command[1:],
                ],
                env={"PATH": os.environ.get("PATH", os.defpath), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        child = Child(name, process, log)
        self.running.append(child)
        return child

    def check(self) -> None:
        """Checks that all processes still run.

        Raises:
            StepError: a process has ended.
        """
        for child in self.running:
            child.check()

    def end(self, child: Child, limit_seconds: float = END_SECONDS) -> int:
        """Ends one of the processes by SIGTERM; returns its exit status.

        Args:
            child: the process, one of `running`.
            limit_seconds: the time after which SIGKILL ends the process.
        """
        self.running.remove(child)
        return child.end(limit_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.running:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        for child in reversed(self.running):
            child.end()


def wait_until(what: str, condition: Callable[[], bool], children: Children, limit_seconds: float) -> None:
    """Waits until a condition holds.

    Args:
        what: the condition in words, for the error's message.
        condition: returns whether the condition holds.
        children: the processes that must go on running.
        limit_seconds: the longest wait.

    Raises:
        StepError: the condition does not hold in time, or a child process has ended.
    """
    deadline = time.monotonic() + limit_seconds
    while not condition():
        children.check()
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {child.name}\n{child.tail()}" for child in children.running)
            raise StepError(f"not within {limit_seconds:g} s: {what}\n{tails}")
        time.sleep(POLL_SECONDS)


_given: set[int] = set()
"""The ports that `free_port` has returned: its caller need not listen on it yet."""


def free_port() -> int:
    """Returns a port of loopback on which no process listens now, and never the same port twice.

    The port is below 32768: by default, Linux takes higher ports for outgoing connections.
    """
    while True:
        port = secrets.choice([port for port in PORTS if port not in _given])
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
