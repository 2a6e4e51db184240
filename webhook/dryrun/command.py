"""`fairgpu admit`: reviews manifests with a running webhook, or with the same functions in this process."""

from __future__ import annotations

import argparse
import difflib
import getpass
import os
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import urllib3
import yaml

from fairgpu.cluster.api import cause_of
from fairgpu.commands import USAGE_STATUS, CommandError
from fairgpu.faults import show
from fairgpu.permissions import Permission, parse_permissions, unknown_permissions
from fairgpu.states import BudgetState
from webhook.admission.knowledge import DEFAULT_PRICES, BudgetStates, Knowledge
from webhook.admission.review import answer
from webhook.dryrun.dry_run import DryRun, DryRunError, Outcome, Review, accounted, dry_run
from webhook.dryrun.manifests import read_manifests
from webhook.dryrun.schema import NAMESPACE_ALLOWED, is_namespace
from webhook.settings import Webhook, read_settings

TIMEOUT_SECONDS = 10.0
REFUSED_STATUS = 1
FETCH_CA = (
    "kubectl get mutatingwebhookconfiguration zz-fairgpu -o jsonpath='{.webhooks[0].clientConfig.caBundle}' | base64 -d"
)
CA_SHOWN = "(the timekeeper's CA)"

_PLAIN, _RED, _GREEN, _YELLOW, _BOLD = "\033[0m", "\033[31m", "\033[32m", "\033[33m", "\033[1m"


def run(arguments: argparse.Namespace) -> int:
    """Prints the outcome that manifests would have in admission; returns the exit status.

    The status is 2 if the outcome of any manifest is unknown, or a manifest, a setting or a webhook's answer cannot be
    read. Else it is 1 if any manifest would be refused, else 0.
    """
    try:
        _check_namespace(arguments.namespace)
        manifests = read_manifests(arguments.filename)
        namespaces = {manifest.namespace or arguments.namespace for manifest in manifests.objects}
        settings = read_settings(os.environ, arguments.settings)
        local = not arguments.webhook
        review = _local(arguments, settings, namespaces) if local else _remote(arguments.webhook, arguments.ca_file)
        if (arguments.mode or settings.mode) == "account":
            review = accounted(review)
        user, exempt = _user(), settings.existing.unseen_namespaces
        results = [
            result
            for manifest in manifests.objects
            for result in dry_run(manifest, arguments.namespace, user, review, exempt)
        ]
    except (DryRunError, CommandError) as error:
        print(f"fairgpu admit: {error}", file=sys.stderr)  # noqa: T201 - a person reads this
        return USAGE_STATUS
    for problem in manifests.errors:
        print(f"fairgpu admit: {problem}", file=sys.stderr)  # noqa: T201 - as above
    if manifests.objects:
        _show(arguments, results)
    if manifests.errors or any(result.outcome is Outcome.UNDECIDED for result in results):
        return USAGE_STATUS
    refused = any(result.outcome is Outcome.REFUSED for result in results)
    return REFUSED_STATUS if refused else 0


def _user() -> str:
    """Returns the name of the user that runs the command, or its number if it has no name, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _show(arguments: argparse.Namespace, results: list[DryRun]) -> None:
    if arguments.output == "json":
        sys.stdout.write(as_json(results))
    else:
        sys.stdout.write(as_text(results, colours=sys.stdout.isatty()))


def _check_namespace(given: str) -> None:
    if not is_namespace(given):
        raise CommandError(f"--namespace: given {show(given)}; allowed: {NAMESPACE_ALLOWED}")


def _local(arguments: argparse.Namespace, settings: Webhook, namespaces: set[str]) -> Review:
    try:
        state = BudgetState(arguments.state)
    except ValueError as error:
        allowed = ", ".join(state.value for state in BudgetState)
        raise CommandError(f"--state: given {arguments.state}; allowed: {allowed}") from error
    permissions = _permissions(arguments.allow)
    knowledge = Knowledge(
        states=BudgetStates({}, state, DEFAULT_PRICES, time.monotonic()),
        permissions=dict.fromkeys(namespaces, permissions),
        timekeeper_ca=CA_SHOWN,
    )
    return lambda route, body: answer(route, body, knowledge, settings, time.monotonic()).body


def _permissions(given: str | None) -> frozenset[Permission]:
    if unknown := unknown_permissions(given):
        raise CommandError(f"--allow: given {', '.join(unknown)}; allowed: {', '.join(Permission)}")
    return parse_permissions(given)


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
            raise DryRunError(f"{url} does not answer: {cause_of(error)}") from error
        if response.status != 200:
            raise DryRunError(f"{url}: status {response.status}: {response.data[:200].decode(errors='replace')}")
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


def as_text(results: list[DryRun], *, colours: bool) -> str:
    """Formats the results of a dry run for people: a diff of each changed pod, or the refusal.

    Args:
        results: the results, in the order of the manifests.
        colours: whether the text has escape sequences for a terminal's colours.
    """
    lines = [line for result in results for line in _lines(result)]
    return "\n".join(_coloured(line) if colours else line for line in lines) + "\n"


def as_json(results: list[DryRun]) -> str:
    """Formats the results of a dry run for programs: a JSON array with an object for each result."""
    documents = [
        {
            # The name of a file may have bytes that are no text.
            "source": result.manifest.source.encode(errors="backslashreplace").decode(),
            "kind": result.manifest.kind,
            "name": result.manifest.name,
            "namespace": result.namespace,
            "template": result.template,
            "outcome": result.outcome.value,
            "message": result.message,
            "warnings": result.warnings,
            "patch": result.operations,
        }
        for result in results
    ]
    return orjson.dumps(documents, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _lines(result: DryRun) -> Iterator[str]:
    manifest = result.manifest
    yield f"# {manifest.kind} {result.namespace}/{manifest.name}{_summary(result)}"
    if result.outcome is Outcome.REFUSED:
        yield from (f"!  {line}" for line in result.message.splitlines())
    yield from (f"~  warning: {warning}" for warning in result.warnings)
    if result.outcome is Outcome.CHANGED:
        yield from _diff(result.before, result.after)
    yield ""


def _summary(result: DryRun) -> str:
    """Returns the words for a result that `fairgpu admit` prints behind the object's name, such as `: refused`."""
    pods = f"the pods made from {result.template}" if result.template else ""
    if result.outcome is Outcome.REFUSED:
        if not result.admitted:
            return ": refused"
        return f": admitted{' with a warning' if result.warned else ''}; {pods}: refused"
    said = "admitted, and changed as follows" if result.outcome is Outcome.CHANGED else result.message
    return f", and {pods}: {said}" if pods else f": {said}"


def _diff(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = (yaml.safe_dump(side, sort_keys=False, width=120).splitlines() for side in (before, after))
    for line in list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]:
        yield f"   {line}" if line.startswith("@@") else f" {line}"


def _coloured(line: str) -> str:
    for start, colour in (("#", _BOLD), ("!", _RED), ("~", _YELLOW), (" +", _GREEN), (" -", _RED)):
        if line.startswith(start):
            return f"{colour}{line}{_PLAIN}"
    return line
