"""`fairgpu webhook serve` and `fairgpu admit`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fairgpu.commands import CommandError
from fairgpu.settings import SettingsError, load_settings
from webhook.settings import Settings, Webhook

SETTINGS_FILE = Path("/etc/fairgpu/settings.yaml")
STANDALONE_SETTINGS = "settings.yaml"


def register(subparsers: Any) -> None:
    """Adds the commands."""
    webhook = subparsers.add_parser("webhook", help="run the admission webhook")
    actions = webhook.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="serve admission reviews until told to end")
    serve.add_argument("--settings", type=Path, metavar="FILE", help=f"settings in YAML (default: {SETTINGS_FILE})")
    serve.add_argument(
        "--standalone",
        type=Path,
        metavar="FOLDER",
        help="without an API server: settings and certificates in this folder",
    )
    serve.set_defaults(run=run_serve)


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves until told to end."""
    # A command at a terminal is not to wait for the imports of a server.
    from fairgpu.cluster.connect import NoClusterError  # noqa: PLC0415
    from fairgpu.logs import configure_logs  # noqa: PLC0415
    from webhook.service import run  # noqa: PLC0415

    standalone: Path | None = arguments.standalone
    settings = read_settings(arguments.settings, standalone)
    configure_logs(settings.log_level)
    try:
        return run(settings, os.environ, standalone)
    except NoClusterError as error:
        raise CommandError(f"{error}; or serve without one: --standalone FOLDER") from error


def read_settings(file: Path | None, standalone: Path | None = None) -> Webhook:
    """The webhook's settings from the file that is named, else from the usual place.

    Raises:
        CommandError: a setting cannot be used.
    """
    usual = standalone / STANDALONE_SETTINGS if standalone else SETTINGS_FILE
    try:
        return load_settings(Settings, os.environ, file or (usual if usual.exists() else None)).webhook
    except SettingsError as error:
        raise CommandError(str(error)) from error
