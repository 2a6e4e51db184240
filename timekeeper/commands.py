"""The commands `fairgpu timekeeper` (REST API, leader, exports), `fairgpu audit`, `doctor` and `gpubudgets`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairgpu.commands import CommandError, a_folder

if TYPE_CHECKING:
    from timekeeper.settings import TimekeeperSettings

    Run = Callable[[TimekeeperSettings, Mapping[str, str], Path | None], int]

STANDALONE_SETTINGS = "settings.yaml"

# A command at a terminal does not wait for the imports of another: each is imported when it runs.


def register(subparsers: Any) -> None:
    """Adds the timekeeper's commands to the parser of `fairgpu`."""
    timekeeper = subparsers.add_parser("timekeeper", help="run the timekeeper")
    actions = timekeeper.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add(actions, "serve", "serve the REST API until a signal ends it", run_serve)
    _add(actions, "jobs", "meter pods and keep the ledger while leading, until a signal ends it", run_jobs)
    months = _add(actions, "months", "list each month's file, and resolve one in conflict", run_months)
    months.add_argument(
        "action",
        choices=("list", "keep", "rewrite"),
        help="list: the outcome of each month; keep: the file is right as it is; "
        "rewrite: write what the store holds, and put the old file aside",
    )
    months.add_argument("month", nargs="?", metavar="MONTH", help="which, for keep and rewrite, such as 2026-10")
    audit = _add(subparsers, "audit", "recompute the ledger and report figures that differ", run_audit)
    audit.add_argument("--budget", action="append", metavar="NAME", help="this budget alone; may be given again")
    audit.add_argument("--period", metavar="START", help="the period that starts then, such as 2026-01-01T00:00:00Z")
    audit.add_argument("--store-only", action="store_true", help="do not ask the API server for budgets and pods")
    audit.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print it")
    text = "look at a cluster without changing it: its GPU stacks, its GPU pods, and what they cost an hour"
    doctor = subparsers.add_parser("doctor", help=text, description=text)
    doctor.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the cluster; default: as kubectl finds it")
    doctor.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML, for your prices and resources")
    doctor.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how to print it")
    doctor.set_defaults(run=run_doctor, extras="timekeeper", standalone=None)
    text = "print the budgets of the ConfigMap fairgpu-budgets (mode: look) as GPUBudgets, for kubectl apply -f -"
    gpubudgets = subparsers.add_parser("gpubudgets", help=text, description=text)
    gpubudgets.add_argument("--kubeconfig", type=Path, metavar="FILE", help="the cluster; default: as kubectl finds it")
    gpubudgets.set_defaults(run=run_gpubudgets, extras="timekeeper")


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves the REST API until a signal ends it; returns the exit status.

    Raises:
        CommandError: a setting is invalid, or `--standalone` is not given and the configuration of the API server is
            missing or invalid.
    """
    from timekeeper.api.service import run

    return _run_until_signalled(arguments, run, "serve")


def run_jobs(arguments: argparse.Namespace) -> int:
    """Meters pods and keeps the ledger while this process leads, until a signal ends it; returns the exit status.

    Raises:
        CommandError: a setting is invalid, or `--standalone` is not given and the configuration of the API server is
            missing or invalid.
    """
    from timekeeper.controller.service import run

    return _run_until_signalled(arguments, run, "work")


def run_audit(arguments: argparse.Namespace) -> int:
    """Audits the ledger and prints the differences.

    Returns the exit status: 1 if a figure differs, or a requested budget or its period is not in the store; else 0.

    Raises:
        CommandError: a setting is invalid, or as for `timekeeper.audit.command.run`.
    """
    from fairgpu.logs import configure_logs
    from timekeeper.audit.command import run
    from timekeeper.ledger.connection import connect

    settings = _settings(arguments)
    configure_logs(settings.log_level)
    with connect(settings.redis) as client:
        return run(client, settings, arguments, os.environ)


def run_doctor(arguments: argparse.Namespace) -> int:
    """Examines a cluster, with FairGPU installed or not, and prints the findings; returns the exit status.

    Raises:
        CommandError: a setting is invalid, the configuration of the API server is missing or invalid, or as for
            `timekeeper.doctor.run`.
    """
    from time import time_ns

    from fairgpu.cluster.connect import connect
    from timekeeper.doctor import run

    settings = _settings(arguments)
    return run(connect(os.environ, arguments.kubeconfig), settings, arguments.output, time_ns())


def run_gpubudgets(arguments: argparse.Namespace) -> int:
    """Prints the budgets of the mode look's ConfigMap as manifests of GPUBudgets; returns the exit status.

    Raises:
        CommandError: the configuration of the API server is missing or invalid, or the ConfigMap is missing, cannot be
            read or has an invalid budget.
    """
    import sys

    from fairgpu.cluster.api import ApiError
    from fairgpu.cluster.connect import connect, unreadable
    from fairgpu.names import SYSTEM_NAMESPACE
    from timekeeper.sources.looking import BUDGETS_MAP, LINES, as_gpubudgets

    what = f"the ConfigMap {SYSTEM_NAMESPACE}/{BUDGETS_MAP}"
    try:
        config_map = connect(os.environ, arguments.kubeconfig).get(LINES)
    except ApiError as error:
        if error.not_found:
            raise CommandError(
                f"there is no {what.removeprefix('the ')}: only the mode look has budgets there"
            ) from error
        raise unreadable(error, what, f"this needs `get` of it, in {SYSTEM_NAMESPACE}") from error
    sys.stdout.write(as_gpubudgets(config_map))
    return 0


def run_months(arguments: argparse.Namespace) -> int:
    """Lists the closed months with the states of their exported files, or resolves a conflict; returns the exit status.

    A conflict is a month whose file differs from the store's usage. The admin resolves it by one of two options: to
    keep the file, or to have it written again from the store.

    Raises:
        CommandError: a setting is invalid, or as for `timekeeper.controller.month_conflicts.run`.
    """
    from timekeeper.controller.month_conflicts import run
    from timekeeper.ledger.connection import connect

    settings = _settings(arguments)
    with connect(settings.redis) as client:
        return run(client, settings, arguments)


def _run_until_signalled(arguments: argparse.Namespace, run: Run, what: str) -> int:
    from fairgpu.cluster.connect import NoClusterError
    from fairgpu.logs import configure_logs

    settings = _settings(arguments)
    configure_logs(settings.log_level)
    try:
        return run(settings, os.environ, arguments.standalone)
    except NoClusterError as error:
        raise CommandError(f"{error}; or {what} without one: --standalone FOLDER") from error


def _settings(arguments: argparse.Namespace) -> TimekeeperSettings:
    from fairgpu.settings import USUAL_FILE
    from timekeeper.settings import read_settings

    standalone: Path | None = arguments.standalone
    usual = standalone / STANDALONE_SETTINGS if standalone else USUAL_FILE
    return read_settings(os.environ, arguments.settings, usual)


def _add(actions: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    action.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    action.add_argument(
        "--standalone",
        type=a_folder,
        metavar="FOLDER",
        help="without an API server, on loopback: settings, budgets, pods, keys and certificates are in this folder",
    )
    action.set_defaults(run=run, extras="timekeeper")
    return action
