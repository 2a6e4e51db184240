"""The sidecar's settings, from environment variables that the webhook writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from sidecar.pacing import MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS

URL = "FAIRGPU_TIMEKEEPER_URL"
CA = "FAIRGPU_TIMEKEEPER_CA"
TOKEN_FILE = "FAIRGPU_TOKEN_FILE"  # noqa: S105 - a path, no secret
USAGE_FOLDER = "FAIRGPU_USAGE_FOLDER"
INTERVAL = "FAIRGPU_REPORT_INTERVAL_SECONDS"

DEFAULT_TOKEN_FILE = "/var/run/secrets/fairgpu/token"  # noqa: S105 - a path, no secret
DEFAULT_USAGE_FOLDER = "/run/fairgpu"
DEFAULT_INTERVAL_SECONDS = 60.0
_HTTPS_PORT = 443


class SettingsError(ValueError):
    """A variable of the sidecar's environment is missing or invalid; the message names the variable."""


class Settings(NamedTuple):
    """The sidecar's settings.

    Attributes:
        host: the name or address of the timekeeper's host.
        port: the timekeeper's port.
        base_path: the part of the timekeeper's URL before the paths of its API; empty for none.
        ca_pem: the CA that signs the timekeeper's certificate, in PEM.
        token_file: the file of the pod's bearer token.
        usage_folder: the folder of the pod's usage volume.
        interval_seconds: the interval between reports until the timekeeper sets another one.
    """

    host: str
    port: int
    base_path: str
    ca_pem: str
    token_file: str
    usage_folder: str
    interval_seconds: float


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Reads the sidecar's settings from environment variables.

    Raises:
        SettingsError: a variable is missing or invalid.
    """
    host, port, base_path = _address(environment.get(URL, ""))
    ca_pem = environment.get(CA, "")
    if "-----BEGIN CERTIFICATE-----" not in ca_pem:
        raise SettingsError(f"{CA} holds no certificate: it must be the PEM of the CA that signed the timekeeper's")
    if not ca_pem.isascii():
        raise SettingsError(f"{CA} holds a character that is not ASCII, perhaps in a comment")
    return Settings(
        host=host,
        port=port,
        base_path=base_path,
        ca_pem=ca_pem,
        token_file=environment.get(TOKEN_FILE, DEFAULT_TOKEN_FILE),
        usage_folder=environment.get(USAGE_FOLDER, DEFAULT_USAGE_FOLDER),
        interval_seconds=_interval(environment.get(INTERVAL)),
    )


def _address(url: str) -> tuple[str, int, str]:
    wanted = f"{URL} must be like https://fairgpu-timekeeper.fairgpu-system.svc, it is {url!r}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(wanted) from error
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise SettingsError(wanted)
    return parts.hostname, port or _HTTPS_PORT, parts.path.rstrip("/")


def _interval(text: str | None) -> float:
    if text is None:
        return DEFAULT_INTERVAL_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not MIN_INTERVAL_SECONDS <= seconds <= MAX_INTERVAL_SECONDS:
        raise SettingsError(f"{INTERVAL} must be {MIN_INTERVAL_SECONDS:g} to {MAX_INTERVAL_SECONDS:g}, it is {text!r}")
    return seconds
