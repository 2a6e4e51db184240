"""The commands `fairgpu webhook`, `fairgpu admit`, `fairgpu render` and `fairgpu apiserver-cidrs`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fairgpu.commands import CommandError, a_folder

STANDALONE_SETTINGS = "settings.yaml"

# Each command imports its modules when it runs, so that none waits for the imports of another.


def register(subparsers: Any) -> None:
    """Adds the commands `webhook`, `admit`, `apiserver-cidrs` and `render` to the parser of `fairgpu`."""
    webhook = subparsers.add_parser("webhook", help="run the admission webhook")
    actions = webhook.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="serve admission reviews until SIGTERM")
    serve.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    serve.add_argument(
        "--standalone",
        type=a_folder,
        metavar="FOLDER",
        help="without an API server, on loopback: settings.yaml and certificates/ are in this folder",
    )
    serve.set_defaults(run=run_serve, extras="webhook")
    certificates = actions.add_parser(
        "certificates", help="make and renew the webhook's CA and certificate until SIGTERM"
    )
    certificates.add_argument("--settings", type=Path, metavar="FILE", help="settings in YAML")
    certificates.add_argument("--alive", type=Path, metavar="FILE", help="a file to touch after each check")
    certificates.set_defaults(run=run_certificates, extras="webhook")
    _add_admit(subparsers)
    _add_api_servers(subparsers)
    _add_render(subparsers)


def run_serve(arguments: argparse.Namespace) -> int:
    """Serves admission reviews until SIGTERM; returns the exit status.

    Raises:
        CommandError: a setting is invalid, or `--standalone` is not given and the configuration of the API server is
            missing or invalid.
    """
    from fairgpu.cluster.connect import NoClusterError
    from fairgpu.logs import configure_logs
    from fairgpu.settings import USUAL_FILE
    from webhook.service import run
    from webhook.settings import read_settings

    standalone: Path | None = arguments.standalone
    usual = standalone / STANDALONE_SETTINGS if standalone else USUAL_FILE
    settings = read_settings(os.environ, arguments.settings, usual)
    configure_logs(settings.log_level)
    try:
        return run(settings, os.environ, standalone)
    except NoClusterError as error:
        raise CommandError(f"{error}; or serve without one: --standalone FOLDER") from error


def run_certificates(arguments: argparse.Namespace) -> int:
    """Renews the webhook's certificates until SIGTERM; returns the exit status.

    Raises:
        CommandError: a setting is invalid, or the configuration of the API server is missing or invalid.
    """
    import threading

    from fairgpu.certificates import utc_now
    from fairgpu.cluster.connect import connect
    from fairgpu.logs import configure_logs
    from fairgpu.signals import call_at_end
    from webhook.certificates.rotation import cluster_places, run_rotation
    from webhook.settings import read_settings

    settings = read_settings(os.environ, arguments.settings)
    configure_logs(settings.log_level)
    api = connect(os.environ)
    ending = threading.Event()
    call_at_end(ending.set)
    run_rotation(
        cluster_places(api, settings.certificates), settings.certificates, utc_now, ending.wait, arguments.alive
    )
    return 0


def run_api_servers(arguments: argparse.Namespace) -> int:
    """Prints the addresses from which API servers call the webhook; returns the exit status.

    Raises:
        CommandError: the configuration of the API server is missing or invalid, the server does not answer or refuses,
            or no address is found.
    """
    import json

    from fairgpu.cluster.api import ApiError
    from fairgpu.cluster.connect import connect, unreadable
    from webhook.ingress import as_document, as_patch, as_text, find_sources

    try:
        sources = find_sources(connect(os.environ))
    except ApiError as error:
        raise unreadable(error, "the API servers' addresses") from error
    if not sources:
        raise CommandError(
            "the cluster shows no address of an API server: find out from which addresses it calls webhooks, and let "
            "these in (docs/install.md)"
        )
    if arguments.output == "json":
        text = json.dumps(as_document(sources), indent=2)
    else:
        text = as_patch(sources) if arguments.output == "yaml" else as_text(sources)
    print(text)  # noqa: T201 - a person or a script reads this
    return 0


def run_render(arguments: argparse.Namespace) -> int:
    """Prints the policies, webhook rules and role bindings that follow from the settings; returns the exit status.

    The output is a file of patches for an overlay over deploy/base.

    Raises:
        CommandError: a setting is invalid, or the file of settings cannot be read.
    """
    import sys

    from webhook.rendering import as_patches
    from webhook.settings import read_settings

    sys.stdout.write(as_patches(read_settings(os.environ, arguments.settings)))
    return 0


def run_admit(arguments: argparse.Namespace) -> int:
    """Prints the outcome of manifests in admission without creating anything; returns the exit status."""
    from webhook.dryrun.command import run

    return run(arguments)


def _add_api_servers(subparsers: Any) -> None:
    text = "print the addresses that the cluster's API servers call from, for the webhook's NetworkPolicy"
    parser = subparsers.add_parser("apiserver-cidrs", help=text, description=text)
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "yaml", "json"),
        default="text",
        help="text; the line for an overlay alone (yaml); or json",
    )
    parser.set_defaults(run=run_api_servers, extras="webhook")


def _add_render(subparsers: Any) -> None:
    text = "print the policies, webhook rules and role bindings that hold your settings, as patches for your overlay"
    parser = subparsers.add_parser("render", help=text, description=text)
    parser.add_argument("--settings", type=Path, metavar="FILE", help="the settings of your overlay")
    parser.set_defaults(run=run_render, extras="webhook")


def _add_admit(subparsers: Any) -> None:
    admit = subparsers.add_parser(
        "admit",
        help="show what would happen to manifests",
        description="Shows what FairGPU would make of pods, and of the pods that workloads make. "
        "The exit status is 0 if all would be admitted, 1 if any would be refused, 2 if that is unknown.",
    )
    admit.add_argument(
        "-f", "--filename", action="append", required=True, metavar="FILE", help="manifests; a folder, or - for stdin"
    )
    admit.add_argument("-n", "--namespace", default="default", help="for manifests that name none (default: default)")
    admit.add_argument("-o", "--output", choices=("text", "json"), default="text", help="a diff, or json")
    asked = admit.add_argument_group("ask a running webhook")
    asked.add_argument("--webhook", metavar="URL", help="such as https://localhost:8443; else this process answers")
    asked.add_argument("--ca-file", type=Path, metavar="FILE", help="the CA that the webhook is known by, in PEM")
    supposed = admit.add_argument_group("or suppose")
    supposed.add_argument("--settings", type=Path, metavar="FILE", help="the webhook's settings")
    supposed.add_argument("--mode", choices=("share", "account"), help="the namespace's; default: webhook.mode")
    supposed.add_argument("--state", default="unlimited", help="the budget's: unlimited, open, grace, over or held")
    supposed.add_argument("--allow", default="", metavar="LIST", help="the namespace's fairgpu.io/allow")
    admit.set_defaults(run=run_admit, extras="webhook")
