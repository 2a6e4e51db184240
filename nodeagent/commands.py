"""The command `fairgpu nodeagent`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def register(subparsers: Any) -> None:
    """Adds the command `nodeagent` to the parser of `fairgpu`."""
    nodeagent = subparsers.add_parser("nodeagent", help="run the agent of a GPU node")
    actions = nodeagent.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="offer this node's GPUs, and give containers their pieces of them")
    serve.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    serve.set_defaults(run=run_serve, extras="nodeagent")


def run_serve(arguments: argparse.Namespace) -> int:
    """Runs the node agent until a signal ends it; returns the exit status of the process.

    Raises:
        CommandError: a setting is invalid, or the configuration of the API server is missing or invalid.
        OSError: as for `Agent.run`.
    """
    from fairgpu.cluster.connect import connect
    from fairgpu.logs import configure_logs
    from fairgpu.signals import call_at_end
    from nodeagent.service import END_SECONDS, Agent, vendor_of
    from nodeagent.settings import read_settings

    settings = read_settings(os.environ, arguments.settings)
    configure_logs(settings.log_level)
    agent = Agent(settings, connect(os.environ), vendor_of(settings))
    call_at_end(agent.stop, END_SECONDS)
    agent.run()
    return 0
