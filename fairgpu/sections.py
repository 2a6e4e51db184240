"""Sections of settings that several services have: the server of a service, and reading budgets' states."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from fairgpu import names
from fairgpu.listeners import Listens
from fairgpu.settings import Section

Port = Annotated[int, Field(ge=0, le=65535)]
MAX_DNS_NAME = 253
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")


def _server_name(name: str) -> str:
    try:
        ip_address(name)
    except ValueError as error:
        if not _DNS_NAME.fullmatch(name) or len(name) > MAX_DNS_NAME:
            raise ValueError("allowed: a DNS name or an address alone, such as gpus.example.org") from error
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]
"""A DNS name or an IP address that a server's certificate can have."""


def _https(url: str) -> str:
    try:
        parts = urlsplit(url)
        whole = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.username or parts.query or parts.fragment:
        raise ValueError(
            "tokens are sent there: write an address such as https://fairgpu-timekeeper.fairgpu-system.svc"
        )
    return url


TimekeeperAddress = Annotated[str, AfterValidator(_https)]
TIMEKEEPER_URL = f"https://{names.TIMEKEEPER_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"


class ServerSettings(Section):
    """The addresses and processes of a service's HTTPS server."""

    host: str = ""
    """The address on which it listens; without one, each address that the pod has, of IPv4 and IPv6."""
    port: Annotated[Port, Listens("host")] = 8443
    """The port of requests and probes, over TLS."""
    metrics_port: Annotated[Port, Listens("host")] = 9090
    """The port of metrics, without TLS."""
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    """The number of processes that answer."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5
    """The time after SIGTERM in which new connections are still accepted, while balancers learn of the end."""
    access_log: bool = False
    """Whether each request is an event in the log."""


class StatesReaderSettings(Section):
    """The settings by which a service reads budgets' states from the timekeeper."""

    url: TimekeeperAddress = TIMEKEEPER_URL
    """The timekeeper's address, at which the states of budgets are read."""
    ca_file: Path | None = None
    """The timekeeper's CA in PEM; without it, the ConfigMap is read in which the timekeeper publishes it."""
    token_file: Path = Path("/var/run/secrets/fairgpu-timekeeper/token")
    """The file of the token by which the timekeeper knows the service, valid for nothing else; read at each request."""
    wait_seconds: Annotated[float, Field(gt=0, le=60)] = 30
    """The longest time that the timekeeper may hold a request while no state changes."""
