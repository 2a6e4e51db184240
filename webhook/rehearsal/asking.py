"""`fairgpu admit`: asks a running webhook, or the same functions within this process, about manifests."""

from __future__ import annotations

import argparse
import getpass
import os
import ssl
import sys
import time
from pathlib import Path

import urllib3

from fairgpu.commands import USAGE_STATUS, CommandError
from fairgpu.faults import show
from fairgpu.permissions import parse_permissions
from fairgpu.states import BudgetState
from webhook.admission.knowledge import DEFAULT_PRICES, Knowledge, States
from webhook.admission.review import answer
from webhook.rehearsal.manifests import read_manifests
from webhook.rehearsal.rehearsal import Outcome, Rehearsal, RehearsalError, Review, rehearse
from webhook.rehearsal.reporting import as_json, as_text
from webhook.rehearsal.shape import NAMESPACE_ALLOWED, is_namespace
from webhook.settings import read_settings

TIMEOUT_SECONDS = 10.0
REFUSED_STATUS = 1
FETCH_CA = (
    "kubectl get mutatingwebhookconfiguration zz-fairgpu -o jsonpath='{.webhooks[0].clientConfig.caBundle}' | base64 -d"
)
CA_SHOWN = "(the timekeeper's CA)"


def run(arguments: argparse.Namespace) -> int:
    """Shows what would happen.

    The exit status is 1 if anything would be refused, and 2 if that cannot be told of some, whatever comes of the rest.
    """
    try:
        _check_namespace(arguments.namespace)
        manifests = read_manifests(arguments.filename)
        spaces = {manifest.namespace or arguments.namespace for manifest in manifests.objects}
        review = _remote(arguments.webhook, arguments.ca_file) if arguments.webhook else _local(arguments, spaces)
        user = getpass.getuser()
        rehearsals = [
            found for manifest in manifests.objects for found in rehearse(manifest, arguments.namespace, user, review)
        ]
    except (RehearsalError, CommandError) as error:
        print(f"fairgpu admit: {error}", file=sys.stderr)  # noqa: T201 - a person reads this
        return USAGE_STATUS
    for problem in manifests.errors:
        print(f"fairgpu admit: {problem}", file=sys.stderr)  # noqa: T201 - as above
    if manifests.objects:
        _show(arguments, rehearsals)
    if manifests.errors or any(rehearsal.outcome is Outcome.UNDECIDED for rehearsal in rehearsals):
        return USAGE_STATUS
    refused = any(rehearsal.outcome is Outcome.REFUSED for rehearsal in rehearsals)
    return REFUSED_STATUS if refused else 0


def _show(arguments: argparse.Namespace, rehearsals: list[Rehearsal]) -> None:
    if arguments.output == "json":
        sys.stdout.write(as_json(rehearsals))
    else:
        sys.stdout.write(as_text(rehearsals, colours=sys.stdout.isatty()))


def _check_namespace(given: str) -> None:
    if not is_namespace(given):
        raise CommandError(f"--namespace: given {show(given)}; allowed: {NAMESPACE_ALLOWED}")


def _local(arguments: argparse.Namespace, namespaces: set[str]) -> Review:
    settings = read_settings(os.environ, arguments.settings)
    try:
        state = BudgetState(arguments.state)
    except ValueError as error:
        allowed = ", ".join(state.value for state in BudgetState)
        raise CommandError(f"--state: given {arguments.state}; allowed: {allowed}") from error
    permissions = parse_permissions(arguments.allow)
    knowledge = Knowledge(
        states=States({}, state, DEFAULT_PRICES, time.monotonic()),
        permissions=dict.fromkeys(namespaces, permissions),
        timekeeper_ca=CA_SHOWN,
    )
    return lambda route, body: answer(route, body, knowledge, settings, time.monotonic())


def _remote(url: str, ca_file: Path | None) -> Review:
    if not url.startswith("https://"):
        raise CommandError(f"--webhook: given {url}; allowed: an https:// address; write https://localhost:8443")
    context = _trust(ca_file)
    pool = urllib3.PoolManager(ssl_context=context, timeout=TIMEOUT_SECONDS, retries=False)

    def review(route: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        try:
            response = pool.request("POST", f"{url.rstrip('/')}/{route}", body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise RehearsalError(f"{url}: {error}") from error
        if response.status != 200:
            raise RehearsalError(f"{url}: status {response.status}: {response.data[:200].decode(errors='replace')}")
        return bytes(response.data)

    return review


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise CommandError(
            f"--ca-file: given {ca_file} ({error.strerror or error}); allowed: a file with the webhook's CA in PEM;"
            f" write what this prints into one:\n    {FETCH_CA}"
        ) from error
