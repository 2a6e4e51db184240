"""The command `fairgpu scheduler`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fairgpu.commands import CommandError

# A command at a terminal does not wait for the imports of another: each is imported when it runs.


def register(subparsers: Any) -> None:
    """Adds the command to the parser of `fairgpu`."""
    scheduler = subparsers.add_parser("scheduler", help="run the scheduler's extender")
    actions = scheduler.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="answer kube-scheduler until told to end")
    serve.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    serve.set_defaults(run=run_serve, extras="scheduler")


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves until a signal ends it."""
    from fairgpu.cluster.connect import NoClusterError, connect
    from fairgpu.logs import configure_logs
    from scheduler.application import run
    from scheduler.settings import read_settings

    settings = read_settings(os.environ, arguments.settings)
    configure_logs(settings.log_level)
    try:
        api = connect(os.environ)
    except NoClusterError as error:
        raise CommandError(str(error)) from error
    return run(settings, api)
