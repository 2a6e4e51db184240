"""The command `fairgpu demo`."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from fairgpu.commands import CommandError


def register(subparsers: Any) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "demo",
        help="the whole journey of GPU pods on this machine, in under a minute",
        description="Starts every service for real on this machine, and plays the cluster around them.",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="leave all files and logs in this new folder")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here because it needs the packages of the extra `demo`, and every other command is to work without.
    try:
        story = importlib.import_module("fairgpu.demo.story")
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the demonstration needs the package {error.name}: pip install 'fairgpu[demo,timekeeper,webhook]'"
        ) from error
    status: int = story.tell(arguments.keep)
    return status
