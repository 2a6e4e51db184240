"""The `fairgpu` command: finds and runs the commands that the services and the client register."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import NoReturn

from fairgpu.signals import end_while_starting

COMMAND_GROUP = "fairgpu.commands"
"""The entry-point group of functions that take argparse's subparsers and add commands to them.

A command sets the default `run`: a function from the parsed arguments to an exit status. One that needs packages beyond
those of every installation names their extras in the default `extras`.
"""

USAGE_STATUS = 2


class CommandError(RuntimeError):
    """A command of `fairgpu` cannot continue; the message says what to do."""


def a_name(text: str) -> str:
    """Returns an argument of a command that must be a name, unchanged; refuses a blank name.

    With a blank name, the command would be about everything, or about nothing.

    Raises:
        argparse.ArgumentTypeError: the name is blank.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"given {text!r}; allowed: a name (is a variable of your shell not set?)")
    return text


def a_folder(text: str) -> Path:
    """Returns an argument of a command that must be a folder, or the path of one to make, as a path.

    Raises:
        argparse.ArgumentTypeError: the path is that of something else.
    """
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"given {text!r}, which is no folder; allowed: a folder")
    return path


class _Parser(argparse.ArgumentParser):
    """An argument parser that prints its help if the command line names no command."""

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message, and ends the process with the status 2.

        If the command line names no command, prints the help in place of the usage and the message.
        """
        if message.endswith(("required: COMMAND", "required: ACTION")):
            self.print_help(sys.stderr)
            self.exit(USAGE_STATUS)
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of `fairgpu`, with the command of every package that is installed."""
    parser = _Parser(prog="fairgpu", description="Shares a Kubernetes cluster's GPUs fairly.")
    parser.add_argument("--version", action="version", version=f"fairgpu {version('fairgpu')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for entry in sorted(entry_points(group=COMMAND_GROUP), key=lambda entry: entry.name):
        try:
            register = entry.load()
        except ModuleNotFoundError as error:
            # An image holds the packages of its own service alone, and the wheel's metadata names those of all.
            if error.name != entry.module.partition(".")[0]:
                raise
            continue
        register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command of `fairgpu`; returns the exit status: 1 after a CommandError.

    The status is 2 if the command names `extras` and a package that it needs is not installed, 130 after Ctrl-C, and
    141 if the reader of the output has ended. Invalid arguments end the process with the status 2.

    Args:
        arguments: the arguments; None for those of this process.
    """
    end_while_starting()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # No character that the terminal lacks ends a command. Files and other programs get UTF-8, as kubectl writes it.
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    parsed = build_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except CommandError as error:
        print(f"fairgpu: {error}", file=sys.stderr)  # noqa: T201 - a person reads this
        return 1
    except ModuleNotFoundError as error:
        extras = getattr(parsed, "extras", None)
        if extras is None:
            raise
        missing = f"this command needs the package {error.name}, which is not installed"
        print(f"fairgpu: {missing}; in a checkout of FairGPU: pip install '.[{extras}]'", file=sys.stderr)  # noqa: T201 - a person reads this
        return USAGE_STATUS
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # A reader such as `head` has ended. What is left in the buffer must go nowhere, or Python's end fails by it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status
