"""Finds the timekeeper that client commands talk to, the CAs that they trust, and their bearer token."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fairgpu.commands import CommandError

SERVER = "FAIRGPU_SERVER"
TOKEN = "FAIRGPU_TOKEN"  # noqa: S105 - the name of a variable, no secret
CA_FILE = "FAIRGPU_CA_FILE"

_DEFAULT_PORT = 443


@dataclass(frozen=True, slots=True)
class Server:
    """The timekeeper that client commands talk to.

    Attributes:
        host: the name or address of the timekeeper's host.
        port: the timekeeper's port.
        base_path: the path that comes before each path of the REST API; empty for none.
        tls: the TLS context, with the CAs that may sign the timekeeper's certificate.
        token: the bearer token that each request carries.
    """

    host: str
    port: int
    base_path: str
    tls: ssl.SSLContext
    token: str = field(repr=False)


def from_environment(environ: Mapping[str, str]) -> Server:
    """Returns the timekeeper that the environment names in FAIRGPU_SERVER, with a bearer token.

    The token is that of FAIRGPU_TOKEN; without this variable, it is that of the kubeconfig's current user. The CAs are
    those of FAIRGPU_CA_FILE; without it, the system's.

    Args:
        environ: the environment of the process.

    Raises:
        CommandError: a variable or the token is missing or invalid; the message says what to set.
    """
    host, port, base_path = _address(environ.get(SERVER, ""))
    tls = _tls(environ.get(CA_FILE, ""))
    token = environ.get(TOKEN, "").strip() or _token_of_kubeconfig(environ)
    if not all("!" <= letter <= "~" for letter in token):
        raise CommandError(f"{TOKEN} holds a space, a line's end or a letter that no token has: give the token alone")
    return Server(host, port, base_path, tls, token)


def _address(url: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme != "https" or not parts.hostname:
        given = f"is {url!r}" if url else "is not set"
        raise CommandError(
            f"{SERVER} {given}; allowed: the timekeeper's https:// address. Ask your admin for it; who may forward "
            "ports in fairgpu-system can run\n"
            "    kubectl -n fairgpu-system port-forward service/fairgpu-timekeeper 8443:443\n"
            f"and write {SERVER}=https://localhost:8443"
        )
    return parts.hostname, port, parts.path.rstrip("/")


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"{CA_FILE} is {ca_file!r}, which holds no CA certificate in PEM: {error}") from error


def _token_of_kubeconfig(environ: Mapping[str, str]) -> str:
    """Returns the bearer token that the kubeconfig, or its exec plugin, gives its current user.

    Raises:
        CommandError: the kubeconfig is missing or invalid, or its current user has no token.
    """
    # The Kubernetes client takes a quarter of a second to import, which only this path needs.
    from fairgpu.cluster.connect import KubeconfigError, read_kubeconfig  # noqa: PLC0415 - see above

    named = environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config")
    try:
        header = str(read_kubeconfig(named).auth_settings().get("BearerToken", {}).get("value") or "")
    except KubeconfigError as error:
        raise CommandError(_no_token(f"no kubeconfig can be used: {str(error).rstrip('.')}")) from error
    scheme, _, token = header.partition(" ")  # a password is in the same header, as Basic
    if scheme != "Bearer" or not token:
        raise CommandError(_no_token(f"the current user of {named} has no token"))
    return token


def _no_token(why: str) -> str:
    return (
        f"{TOKEN} is not set and {why}. Make a token for an account that may read budgets:\n"
        f"    export {TOKEN}=$(kubectl create token ACCOUNT -n NAMESPACE)"
    )
