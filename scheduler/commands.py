"""The commands `fairgpu scheduler`, `fairgpu top`, `fairgpu inspect` and `fairgpu why`."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

from fairgpu.commands import a_name

# A command at a terminal does not wait for the imports of another: each is imported when it runs.


def register(subparsers: Any) -> None:
    """Adds the commands `scheduler`, `top`, `inspect` and `why` to the parser of `fairgpu`."""
    scheduler = subparsers.add_parser("scheduler", help="run the scheduler's extender")
    actions = scheduler.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="answer kube-scheduler until it is stopped")
    serve.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    serve.set_defaults(run=run_serve, extras="scheduler")
    top = subparsers.add_parser("top", help="each node's GPUs, and what pods hold of them")
    inspect = subparsers.add_parser("inspect", help="each GPU, and what pods hold of it")
    inspect.add_argument("node", nargs="?", type=a_name, help="of this node alone")
    inspect.add_argument("-d", "--details", action="store_true", help="with the pods on each GPU")
    for parser in (top, inspect):
        parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print it")
    why = subparsers.add_parser("why", help="what a pod waits for, cause by cause")
    why.add_argument("pod", type=a_name, help="the pod's name")
    why.add_argument(
        "-n", "--namespace", type=a_name, help="its namespace; else that of the kubeconfig's current context"
    )
    why.add_argument("-v", "--verbose", action="store_true", help="with the nodes of each cause")
    for parser, name in ((top, "run_top"), (inspect, "run_inspect"), (why, "run_why")):
        parser.set_defaults(run=partial(_view, name), extras="scheduler")


def _view(name: str, arguments: argparse.Namespace) -> int:
    """Runs the function of this name in `scheduler.view.commands`; returns the exit status of the process."""
    from scheduler.view import commands

    status: int = getattr(commands, name)(arguments)
    return status


def run_serve(arguments: argparse.Namespace) -> int:
    """Runs the scheduler's extender until a signal ends it; returns the exit status of the process.

    Raises:
        CommandError: a setting is invalid, or the configuration of the API server is missing or invalid.
    """
    from fairgpu.cluster.connect import connect
    from fairgpu.logs import configure_logs
    from scheduler.application import run
    from scheduler.settings import read_settings

    settings = read_settings(os.environ, arguments.settings)
    configure_logs(settings.log_level)
    api = connect(os.environ)
    return run(settings, api)
