"""The timekeeper's settings: the section `timekeeper` of the settings file, one group for each concern."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from fairgpu.commands import CommandError
from fairgpu.settings import Section, SettingsError, load_settings

USUAL_FILE = Path("/etc/fairgpu/settings.yaml")

Port = Annotated[int, Field(ge=0, le=65535)]


class RedisSettings(Section):
    """Where the ledger is stored."""

    url: str = "redis://fairgpu-redis.fairgpu-system.svc:6379/0"
    """redis:// or rediss:// (TLS); the password stands in `password`, not here."""
    password: SecretStr | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """How long one answer of Redis may take."""


class ServeSettings(Section):
    """How the REST API is served."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod's address is not known before it starts
    port: Port = 8443
    metrics_port: Port = 9090
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    max_connections: Annotated[int, Field(ge=1)] = 2000
    """Per worker."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5
    """After SIGTERM, how long new connections are still served."""
    access_log: bool = False
    certificate_names: tuple[str, ...] = ()
    """Further DNS names and addresses in the server's certificate, beside those of the Service."""
    report_interval_seconds: Annotated[int, Field(ge=1, le=300)] = 60
    """How often sidecars are asked to report."""


class TimekeeperSettings(Section):
    """All of the timekeeper's settings."""

    folder: Path | None = None
    """Standalone mode: the folder that stands in for a cluster. Served on loopback alone."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    redis: RedisSettings = RedisSettings()
    serve: ServeSettings = ServeSettings()


class Settings(Section):
    """The sections of the settings file that the timekeeper reads."""

    timekeeper: TimekeeperSettings = TimekeeperSettings()


def read_settings(environ: Mapping[str, str], file: Path | None, usual: Path = USUAL_FILE) -> TimekeeperSettings:
    """The settings from the environment and a file: the one that is named, else the usual one if it is there.

    Raises:
        CommandError: a setting cannot be used.
    """
    try:
        return load_settings(Settings, environ, file or (usual if usual.exists() else None)).timekeeper
    except SettingsError as error:
        raise CommandError(str(error)) from error
