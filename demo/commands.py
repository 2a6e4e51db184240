"""The command `fairgpu demo`."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Adds the command `fairgpu demo` to the parser of `fairgpu`."""
    parser = subparsers.add_parser(
        "demo",
        help="the whole journey of GPU pods on this machine, in under a minute",
        description="Starts every service for real on this machine, and plays the cluster around them.",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="leave all files and logs in this new folder")
    parser.set_defaults(run=_run, extras="demo,scheduler,timekeeper,webhook")


def _run(arguments: argparse.Namespace) -> int:
    from demo import demonstration

    return demonstration.run(arguments.keep)
