"""The timekeeper's settings: the section `timekeeper` of the settings file, one group for each concern."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Field, IPvAnyNetwork

from fairgpu.commands import CommandError
from fairgpu.settings import Section, SettingsError, load_settings
from timekeeper.export_settings import ExportSettings
from timekeeper.metering.bill import Bill
from timekeeper.metering.sessions import MeterFrom
from timekeeper.redis_settings import RedisSettings

USUAL_FILE = Path("/etc/fairgpu/settings.yaml")

Port = Annotated[int, Field(ge=0, le=65535)]


class ServeSettings(Section):
    """How the REST API is served."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod's address is not known before it starts
    """The address that it listens on."""
    port: Port = 8443
    """The port of the REST API and the dashboard, over TLS."""
    metrics_port: Port = 9090
    """The port of metrics, without TLS."""
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    """How many processes answer."""
    max_connections: Annotated[int, Field(ge=1)] = 2000
    """How many connections a worker holds; one more takes the place of the one that is idle for longest."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5
    """After SIGTERM, how long new connections are still served."""
    access_log: bool = False
    """Whether each request is an event in the log."""
    certificate_names: tuple[str, ...] = ()
    """Further DNS names and addresses in the server's certificate, beside those of the Service."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """The networks of proxies before the API, such as an Ingress's pods: what they write into `X-Forwarded-For` counts
    as the client's address."""
    people_tokens: Literal["any", "own-audience"] = "any"
    """own-audience: people and services are known by tokens of the audience fairgpu-timekeeper alone; any: by those
    that they show to the API server, too."""
    report_interval_seconds: Annotated[int, Field(ge=1, le=300)] = 60
    """How often sidecars are asked to report."""


class PriceSetting(Section):
    """What an hour of a whole GPU of a model costs from an instant on."""

    effective_from: AwareDatetime = datetime(1970, 1, 1, tzinfo=UTC)
    price: Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=12)]
    """GPU-hours charged for an hour of a whole GPU."""


class CurrencySetting(Section):
    """What people see beside GPU-hours."""

    code: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    """As in ISO 4217: EUR, USD."""
    per_gpu_hour: Annotated[Decimal, Field(gt=0, le=1_000_000, max_digits=12)]
    """What an hour of a whole GPU at price 1 costs."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [{"price": value}]


class MeteringSettings(Section):
    """How use becomes money."""

    meter_from: MeterFrom = MeterFrom.BIND
    """bind: a pod is charged from its binding on; running: from when a container of it that holds a GPU
    was first seen running, so that what it holds while its images are pulled is free."""
    end_proof: Literal["observe", "finalizer"] = "observe"
    """observe: a pod that ends while nobody watches is charged to when it was last seen; finalizer: the webhook, told
    the same, keeps GPU pods on the API server until their end is in the ledger. With observe those held are let go."""
    bill: Bill = Bill.RESERVED
    """What of a reservation is charged: reserved, used (what the pod reports of it), or max of the two."""
    best_effort_floor_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """What a best-effort share costs at least, in percent of a GPU."""
    unknown_device_mib: Annotated[int, Field(ge=1)] = 16384
    """The memory of a device that no allocation names, against which a pod's request for memory counts."""
    prices: dict[str, Annotated[tuple[PriceSetting, ...], BeforeValidator(_listed)]] = Field(default_factory=dict)
    """By model, `*` for every other; a number, or a list of effective_from and price. 1 where none is named."""
    currency: CurrencySetting | None = None
    """In which amounts are shown beside GPU-hours; nothing is computed with it."""
    default_budget: dict[str, Any] | None = None
    """The spec of a GPUBudget without namespaces: each namespace that no budget names gets one of its own."""


class UsageSettings(Section):
    """What use can be asked for by."""

    labels: tuple[Annotated[str, Field(min_length=1, max_length=317, pattern=r"^[^,\s]+$")], ...] = (
        "app.kubernetes.io/name",
        "app.kubernetes.io/part-of",
        "app",
        "project",
        "team",
    )
    """The labels of pods that are kept with their use. Each value is kept for as long as the use is, so name none that
    is new for every pod."""
    hourly_days: Annotated[int, Field(ge=1, le=62)] = 8
    """Of how many whole days before today hours can be told apart; older ones are kept as days."""
    months: Annotated[int, Field(ge=2, le=120)] = 13
    """How many whole months before the present one are kept: use, ledgers, periods and grants."""


class JobsSettings(Section):
    """How often the leading process does what."""

    react_seconds: Annotated[float, Field(ge=0.05, le=10)] = 0.25
    """How soon a change of a pod, a budget or a grant is taken up."""
    settle_seconds: Annotated[float, Field(ge=0.1, le=300)] = 10.0
    """How often every running session is settled."""
    status_seconds: Annotated[float, Field(ge=0.1, le=30)] = 10.0
    """How often the statuses of budgets are looked at; a checkpoint is never older than 30 seconds."""
    audit_seconds: Annotated[float, Field(ge=60, le=86_400)] = 3600.0
    """How often the leading process recomputes the books and says where they differ."""
    without_notice_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """How long the notice of an eviction is tried where it cannot be written on a pod. The pod is then evicted without
    it, though no sooner than the notice would have let it."""
    lease_name: str = "fairgpu-timekeeper"
    """The Lease that whoever runs the jobs holds."""
    lease_seconds: Annotated[int, Field(ge=2, le=300)] = 15
    """How long a leader that falls silent keeps the Lease."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a pod's address is not known before it starts
    """The address of the metrics of the jobs."""
    metrics_port: Port = 9091
    """Their port, without TLS."""
    budget_series: Annotated[int, Field(ge=0, le=100_000)] = 2000
    """How many budgets get metrics of their own, GPUBudgets before those of single namespaces; 0 for none."""


class NotificationSettings(Section):
    """Who is told, outside the cluster, what budgets come to. Nobody, where no URL is named."""

    url_file: Path | None = None
    """Holds the URL that messages are posted to, which is a secret itself with Slack and its like; read each time."""
    secret_file: Path | None = None
    """Holds the key that messages are signed with (HMAC-SHA256); without it they are not; read each time."""
    ca_file: Path | None = None
    """The CAs that the receiver's certificate is held to; without it, the system's."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0
    """How long an answer may take; no job waits for it."""
    max_waiting: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """How many messages may wait for a receiver that is away; of more, the oldest are given up."""


class TimekeeperSettings(Section):
    """All of the timekeeper's settings."""

    folder: Path | None = None
    """Standalone mode: the folder that stands in for a cluster. Served on loopback alone."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least that is logged."""
    redis: RedisSettings = RedisSettings()
    serve: ServeSettings = ServeSettings()
    metering: MeteringSettings = MeteringSettings()
    usage: UsageSettings = UsageSettings()
    export: ExportSettings = ExportSettings()
    jobs: JobsSettings = JobsSettings()
    notifications: NotificationSettings = NotificationSettings()


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
