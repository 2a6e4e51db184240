"""The settings of the timekeeper, with their defaults and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    IPvAnyNetwork,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)

from fairgpu.choices import MODEL
from fairgpu.existing import Existing, ObjectName
from fairgpu.listeners import Listens
from fairgpu.models import tie
from fairgpu.names import SYSTEM_NAMESPACES
from fairgpu.sections import Port, ServerName, ServerSettings
from fairgpu.setting_faults import TIME
from fairgpu.settings import USUAL_FILE, Section, load_settings
from timekeeper.domain.holdings.listed import Listed
from timekeeper.domain.pricing import Bill
from timekeeper.domain.sessions import MeterFrom

SCHEMES = ("redis", "rediss", "unix")
BUNDLED_URL = "rediss://fairgpu-redis.fairgpu-system.svc:6379/0"
"""The URL of the Redis that FairGPU's manifests bring."""
BUNDLED_USER = "timekeeper"
BUNDLED_CA_FILE = "/etc/fairgpu-timekeeper-ca/ca.crt"
"""The path of that Redis's CA certificate, which the Deployment mounts."""
SENTINEL_PORT = 26379
CLUSTER_PORT = 6379


def address(node: str, port: int) -> tuple[str, int]:
    """Splits the address of a Redis node into host and port.

    Args:
        node: `host`, `host:port` or `[IPv6]:port`.
        port: the port to return if the text names none.

    Raises:
        ValueError: the text has none of these forms.
    """
    parts = urlsplit(f"//{node}")
    written = parts.port  # raises ValueError where it is no port
    if not parts.hostname or parts.path or parts.query or parts.fragment or "@" in node:
        raise ValueError("no node")
    return parts.hostname, port if written is None else written


def _node(node: str) -> str:
    try:
        address(node, SENTINEL_PORT)
    except ValueError as error:
        raise ValueError(f"{node!r} is no node: write its host and port, such as redis-0.redis:6379") from error
    return node


Nodes = tuple[Annotated[str, AfterValidator(_node)], ...]


def _has_nodes(given: Any) -> bool:
    return bool(given.get("nodes") if isinstance(given, dict) else getattr(given, "nodes", ()))


class SentinelSettings(Section):
    """The Redis Sentinels that know which server is the master (https://redis.io/docs/latest/develop/reference/sentinel-clients)."""

    nodes: Nodes = ()
    """Each Sentinel as host:port; the default port is 26379. With any, `redis.url` is not used."""
    master: str = "fairgpu"
    """The Sentinels' name for the master."""
    username: str | None = None
    """The ACL user at the Sentinels, not at the servers."""
    password: SecretStr | None = None
    """The password at the Sentinels; `redis.password` is the servers'."""


class ClusterSettings(Section):
    """A Redis Cluster (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/)."""

    nodes: Nodes = ()
    """Some of the cluster's nodes as host:port, which know the others; the default port is 6379. With any,
    `redis.url` is not used."""


class RedisTLS(Section):
    """TLS to servers and Sentinels. Their certificates are always verified, and must name the host that is asked."""

    enabled: bool = False
    """Whether nodes under `sentinel` and `cluster` speak TLS; for `redis.url` write the scheme rediss:// instead."""
    ca_file: Path | None = None
    """The CAs of the servers' certificates, in PEM; default for a store of your own: the system's."""
    certificate_file: Path | None = None
    """The client certificate, in PEM, for servers with tls-auth-clients."""
    key_file: Path | None = None
    """Its key."""


class RedisSettings(Section):
    """The connection to the Redis that stores the ledger."""

    url: str = BUNDLED_URL
    """One server: redis:// or rediss:// (TLS). Write user and password into `username` and `password`, not here."""
    sentinel: SentinelSettings = SentinelSettings()
    cluster: ClusterSettings = ClusterSettings()
    tls: RedisTLS = RedisTLS()
    username: str | None = None
    """The ACL user: `timekeeper` at the store of the manifests; `default` at a store of your own that names none."""
    password: SecretStr | None = None
    """The password at the servers; set it in the environment, from a Secret."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 5.0
    """The time-out of one answer of Redis."""
    replica_wait_seconds: Annotated[float, Field(ge=0, le=30)] = 1.0
    """The time that the end of a session, or a grant, waits for one of Redis's replicas, if it has any; 0 for none."""

    @property
    def is_bundled(self) -> bool:
        """Whether the settings name the Redis that FairGPU's manifests bring."""
        return self.url == BUNDLED_URL and not (self.sentinel.nodes or self.cluster.nodes)

    @model_validator(mode="before")
    @classmethod
    def _bundled_is_as_the_manifests_have_it(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("url", BUNDLED_URL) != BUNDLED_URL:
            return given
        if any(_has_nodes(given.get(shape)) for shape in ("sentinel", "cluster")):
            return given
        tls = given.get("tls", {})
        with_ca = {"ca_file": BUNDLED_CA_FILE, **tls} if isinstance(tls, dict) else tls
        return {"username": BUNDLED_USER, **given, "tls": with_ca}

    @model_validator(mode="after")
    def _waits_within_an_answer(self) -> Self:
        if self.replica_wait_seconds >= self.timeout_seconds:
            raise ValueError(
                f"replica_wait_seconds is {self.replica_wait_seconds:g}, and must be less than timeout_seconds, which "
                f"is {self.timeout_seconds:g}: the answer would be given up before the replica is"
            )
        return self

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        named = [name for name in ("url", "sentinel", "cluster") if self._names(name)]
        if len(named) > 1:
            raise ValueError(
                f"{' and '.join(named)} name different stores: keep one of url, sentinel.nodes and cluster.nodes"
            )
        return self

    @model_validator(mode="after")
    def _url_can_be_used(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES:
            raise ValueError(f"url begins with {parts.scheme!r}: write redis://, or rediss:// for TLS")
        if parts.username or parts.password:
            raise ValueError("url holds a user or a password, which logs would show: write them in username, password")
        database = parts.path.strip("/")
        if parts.scheme != "unix" and database and not database.isdecimal():
            raise ValueError(
                f"url ends with {parts.path!r}: write the number of the database there, such as /0, or nothing"
            )
        if self.tls.enabled and parts.scheme == "redis" and not (self.sentinel.nodes or self.cluster.nodes):
            raise ValueError("tls.enabled is true and url begins with redis://, without TLS: write rediss://")
        return self

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> Self:
        if (self.tls.certificate_file is None) != (self.tls.key_file is None):
            raise ValueError("tls.certificate_file and tls.key_file go together: name both, or neither")
        return self

    def _names(self, place: str) -> bool:
        if place == "url":
            return "url" in self.model_fields_set
        return bool((self.sentinel if place == "sentinel" else self.cluster).nodes)


class BucketSettings(Section):
    """An S3-compatible bucket. Credentials are never settings: see `credentials_folder`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")] | None = Field(
        default=None, examples=["finance"]
    )
    """The bucket, on S3 or a store that speaks its protocol; without it, nothing is exported into a bucket."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[^/](.*[^/])?$")] | None = Field(
        default=None, examples=["gpu/usage"]
    )
    """The prefix of all file names, followed by a `/`."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/@\s]+/?$")] | None = Field(
        default=None, examples=["https://s3.example.com"]
    )
    """The store's address; default: AWS in `region`. http:// is for a store on the same node."""
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")] = "us-east-1"
    """The bucket's region; any value for a store of your own."""
    virtual_hosted: bool = False
    """Whether the bucket is part of the endpoint's host name, and not of the path."""
    ca_file: Path | None = None
    """Further CAs of the store's certificate, in PEM, beside the system's."""
    credentials_folder: Path | None = None
    """The folder of a mounted Secret with the files access_key_id and secret_access_key, perhaps session_token;
    read each time. Without it: the environment, the role of the service account, the role of the instance, as AWS's
    SDKs do."""
    timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 60.0
    """The time-out of one request; no other job waits for it."""

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.name is None and self.model_fields_set - {"name"}:
            raise ValueError(f"name is missing, and {', '.join(sorted(self.model_fields_set))} is of no use without it")
        return self


class ExportSettings(Section):
    """The place to which the usage of each closed month is written before the store drops it; none by default."""

    folder: Path | None = None
    """A folder, such as a mounted volume, that both replicas see."""
    bucket: BucketSettings = BucketSettings()
    cache_mib: Annotated[int, Field(ge=1, le=4096)] = 64
    """The size of a worker's cache of files of old months, compressed as they were read."""

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if self.folder is not None and not self.folder.is_absolute():
            raise ValueError(f"folder begins with no slash: write the whole path, such as /var/lib/{self.folder}")
        if self.folder is not None and self.bucket.name is not None:
            raise ValueError("folder and bucket.name name different places: keep one")
        return self

    @property
    def wanted(self) -> bool:
        """Whether a destination for months is configured."""
        return self.folder is not None or self.bucket.name is not None


class ServeSettings(ServerSettings):
    """The server of the REST API and the dashboard."""

    max_connections: Annotated[int, Field(ge=1)] = 2000
    """The most connections of a worker; one more closes the connection that has been silent for longest."""
    certificate_names: tuple[ServerName, ...] = ()
    """Further DNS names and addresses in the server's certificate, beside those of the Service."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """The networks of proxies in front of the API, such as an Ingress's pods; the last address that they write into
    `X-Forwarded-For` counts as the client's."""
    people_tokens: Literal["any", "own-audience"] = "any"
    """own-audience: the API accepts only tokens of the audience fairgpu-timekeeper from people and services; any:
    tokens for the API server, too."""
    report_interval_seconds: Annotated[int, Field(ge=1, le=300)] = 60
    """The interval at which sidecars are asked to report."""


def _dated(given: Any) -> Any:
    """Returns a timestamp unchanged; raises ValueError for a number, as pydantic takes 2026 for seconds since 1970."""
    if isinstance(given, int | float) or (isinstance(given, str) and "-" not in given[1:]):
        raise ValueError(f"allowed: {TIME}")
    return given


class PriceSetting(Section):
    """The price of a GPU model from an instant on."""

    effective_from: Annotated[AwareDatetime, BeforeValidator(_dated)] = datetime(1970, 1, 1, tzinfo=UTC)
    """The instant from which the price holds."""
    price: Annotated[Decimal, Field(ge=0, le=1_000_000, max_digits=12)]
    """GPU-hours charged for an hour of a whole GPU."""


class CurrencySetting(Section):
    """The currency that people see beside GPU-hours."""

    code: Annotated[str, Field(pattern=r"^[A-Z]{3}$", examples=["EUR"])]
    """The code of the currency in ISO 4217, such as EUR."""
    per_gpu_hour: Annotated[Decimal, Field(gt=0, le=1_000_000, max_digits=12)]
    """The cost of an hour of a whole GPU at price 1."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [{"price": value}]


class MeteringSettings(Section):
    """The rules by which use becomes money."""

    meter_from: MeterFrom = MeterFrom.BIND
    """bind: a pod is charged from its binding on; running: from when a container of it that holds a GPU
    was first observed running, so that its reservation while images are pulled is free."""
    end_proof: Literal["observe", "finalizer"] = "observe"
    """observe: a pod that ends while no timekeeper watches is charged up to its last observation; finalizer: the
    webhook, with the same setting, keeps GPU pods on the API server until their end is in the ledger. With observe, the
    finalizers of pods that have one are removed."""
    bill: Bill = Bill.RESERVED
    """The charged quantity: reserved; used, by the pod's reports; or max, the larger of the two."""
    best_effort_floor_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """The least that a best-effort share costs, in percent of a GPU."""
    unknown_device_mib: Annotated[int, Field(ge=1)] = 16384
    """The memory of a device that no allocation names, against which a pod's request for memory counts."""
    prices: dict[str, Annotated[tuple[PriceSetting, ...], BeforeValidator(_listed)]] = Field(default_factory=dict)
    """By model, `*` for every other, else 1: a number, or a list of effective_from and price. A model is a run of
    whole words of the driver's name, in any case; if several match, the one with most words counts."""
    currency: CurrencySetting | None = None
    """The currency of amounts beside GPU-hours; nothing is computed with it."""
    default_budget: dict[str, Any] | None = None
    """The spec of a GPUBudget without namespaces: each namespace that no budget names gets one of its own."""

    @field_validator("prices")
    @classmethod
    def _unambiguous(cls, prices: Mapping[str, Any]) -> Mapping[str, Any]:
        models = [key for key in prices if key != "*"]
        wordless = next((key for key in models if not MODEL.fullmatch(key)), None)
        if wordless is not None:
            raise ValueError(f"{wordless!r} is no part of a GPU's name; write such as A100, and * for any other")
        tied = tie(models)
        if tied is not None:
            one, other, model = tied
            raise ValueError(f"{one!r} and {other!r} name {model!r} by as many words; write more words in one of them")
        return prices


class UsageSettings(Section):
    """The labels of pods by which use can be queried, and the time for which use is kept."""

    labels: tuple[Annotated[str, Field(min_length=1, max_length=317, pattern=r"^[^,\s]+$")], ...] = (
        "app.kubernetes.io/name",
        "app.kubernetes.io/part-of",
        "app",
        "project",
        "team",
        "kueue.x-k8s.io/queue-name",
        "kueue.x-k8s.io/local-queue-name",
        "kueue.x-k8s.io/cluster-queue-name",
    )
    """The labels of pods that are kept with their use. Each value is kept as long as the use, so name no label that
    has a new value for every pod."""
    hourly_days: Annotated[int, Field(ge=1, le=62)] = 8
    """The number of whole days before today whose use is kept by the hour; older use is kept by the day."""
    months: Annotated[int, Field(ge=2, le=120)] = 13
    """The number of whole months before the present one that are kept: use, ledgers, periods and grants."""


class JobsSettings(Section):
    """The intervals of the leader's tasks, its Lease and its metrics."""

    react_seconds: Annotated[float, Field(ge=0.05, le=10)] = 0.25
    """The delay until a change of a pod, a budget or a grant is reconciled."""
    settle_seconds: Annotated[float, Field(ge=0.1, le=300)] = 10.0
    """The interval at which every running session is settled."""
    status_seconds: Annotated[float, Field(ge=0.1, le=30)] = 10.0
    """The interval at which the statuses of budgets are compared; a checkpoint is never older than 30 seconds."""
    audit_seconds: Annotated[float, Field(ge=60, le=86_400)] = 3600.0
    """The interval at which the leader recomputes the ledger and reports differences."""
    without_notice_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """The time for which a notice of eviction is tried that cannot be written on a pod. The pod is then evicted
    without it, but no sooner than with the notice."""
    lease_name: ObjectName = "fairgpu-timekeeper"
    """The name of the leader's Lease."""
    lease_seconds: Annotated[int, Field(ge=2, le=300)] = 15
    """The time for which a leader that stops renewing keeps the Lease."""
    metrics_host: str = ""
    """The address of the metrics of the jobs and of their probes; without one, each address that the pod has, of IPv4
    and IPv6."""
    metrics_port: Annotated[Port, Listens("metrics_host")] = 9091
    """Their port, without TLS."""
    budget_series: Annotated[int, Field(ge=0, le=100_000)] = 2000
    """The most budgets with metrics of their own, GPUBudgets before those of single namespaces; 0 for none."""


class NotificationSettings(Section):
    """Notifications of budgets' milestones to a receiver outside the cluster; none without a URL."""

    url_file: Path | None = None
    """The file with the URL to which messages are posted; a Slack URL is a secret itself. Read each time."""
    secret_file: Path | None = None
    """The file with the key that signs messages (HMAC-SHA256); without it they are unsigned. Read each time."""
    ca_file: Path | None = None
    """The CAs of the receiver's certificate; without it, the system's."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0
    """The time-out of an answer; no job waits for it."""
    max_waiting: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """The most messages that wait for a receiver; beyond it, the oldest are dropped."""


LabelPairs = tuple[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*/[a-zA-Z_][a-zA-Z0-9_]*$")], ...]


class PrometheusSettings(Section):
    """A Prometheus that knows how busy pods keep their GPUs. Its figures are advisory, and no part of any bill."""

    url: str | None = None
    """The address of a Prometheus that knows how busy pods keep their GPUs, such as
    https://prometheus.monitoring.svc:9090, with the path in front of `/api/v1` if there is one; or of a server with the
    same API, such as Thanos, Mimir or VictoriaMetrics. None is asked by default."""
    query: Annotated[str, Field(min_length=1, max_length=4000)] = (
        "avg by (namespace, pod, exported_namespace, exported_pod, dra_claim_namespace, dra_claim_name) "
        "(avg_over_time(DCGM_FI_DEV_GPU_UTIL[2m]))"
    )
    """The query whose series say how busy the GPUs of pods are; the mean of a pod's series counts. The default is for
    NVIDIA's DCGM exporter."""
    scale: Literal["percent", "ratio"] = "percent"
    """The value of a GPU in full use: 100, or 1."""
    pod_labels: Annotated[LabelPairs, Field(min_length=1, max_length=8)] = (
        "exported_namespace/exported_pod",
        "namespace/pod",
    )
    """The labels that name a pod, each as NAMESPACE_LABEL/POD_LABEL; the first pair that a series has counts."""
    claim_labels: Annotated[LabelPairs, Field(max_length=8)] = ("dra_claim_namespace/dra_claim_name",)
    """The labels that name a claim of Dynamic Resource Allocation, as above; they count before those of pods."""
    token_file: Path | None = None
    """The file with a bearer token for it, over https:// alone. Read each time."""
    ca_file: Path | None = None
    """The CAs of its certificate, in PEM; without it, the system's."""
    every_seconds: Annotated[int, Field(ge=5, le=3600)] = 60
    """The interval of queries. A figure is shown for three intervals, unless a later answer replaces it."""
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 10.0
    """The longest time for a whole answer; no other job waits for it."""
    max_answer_mib: Annotated[int, Field(ge=1, le=256)] = 16
    """The largest answer that is read; 50,000 pods take some 10."""

    @model_validator(mode="after")
    def _is_reached(self) -> Self:
        if self.url is None:
            if self.model_fields_set - {"url"}:
                unused = ", ".join(sorted(self.model_fields_set - {"url"}))
                raise ValueError(f"url is missing, and {unused} is of no use without it")
            return self
        try:
            parts = urlsplit(self.url)
            named = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port)
        except ValueError:
            named = False
        if not named or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise ValueError(f"url is {self.url!r}: write http:// or https://, a host, and perhaps a port and a path")
        if parts.username or parts.password:
            raise ValueError("url holds a user or a password, which logs would show: write a token into `token_file`")
        if parts.query or parts.fragment:
            raise ValueError("url holds a query or a fragment: write the query into `query`")
        for name in ("token_file", "ca_file"):
            if parts.scheme == "http" and getattr(self, name) is not None:
                raise ValueError(f"{name} is named and url begins with http://, without TLS: write https://")
        return self


class ResourceSetting(Section):
    """An extended resource of accelerators beside those that FairGPU knows: the units of a device, and its model."""

    parts: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """The units of a whole device."""
    devices: str = ""
    """A resource or label of the node whose number says how many devices the node's units stand for; counts more than
    `parts`."""
    model_labels: tuple[str, ...] = ()
    """The labels of the node that name the model; the first that it has counts."""
    model: str = ""
    """The model where no label names one; without it, the price of `*` holds."""


class OtherStacksSettings(Section):
    """The metering of pods that hold GPUs by other stacks than FairGPU's."""

    resources: dict[Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")], ResourceSetting] = Field(
        default_factory=dict, examples=["example.com/npu"]
    )
    """Further resources by name, such as example.com/npu, each with any of parts (the units of a whole device),
    devices (a resource or label of the node that counts its devices), model_labels and model. A line for a resource
    that FairGPU knows counts more than what it knows."""
    drivers: list[ObjectName] = Field(default_factory=list, examples=["npu.example.com"])
    """Further drivers of Dynamic Resource Allocation whose devices are accelerators, such as npu.example.com. Claims of
    a driver that is neither listed here nor known to FairGPU cost nothing."""


class TimekeeperSettings(Section):
    """All of the timekeeper's settings."""

    mode: Literal["share", "account", "look"] = "share"
    """share: FairGPU places GPU pods and gives them their devices; account: it meters what pods hold by other stacks as
    well, for a cluster that has any namespace of the mode account; look: it meters those pods, and writes nothing
    outside its namespace but the status of GPUBudgets, where `budgets_from` names them."""
    budgets_from: Literal["config-map", "objects"] = "config-map"
    """With mode look: config-map: budgets are the lines of the ConfigMap fairgpu-budgets; objects: they are GPUBudgets,
    whose CRD must be there. In the other modes they are GPUBudgets."""

    folder: Path | None = None
    """Standalone mode: the folder that stands in for a cluster. Served on loopback alone."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged."""
    redis: RedisSettings = RedisSettings()
    serve: ServeSettings = ServeSettings()
    metering: MeteringSettings = MeteringSettings()
    usage: UsageSettings = UsageSettings()
    export: ExportSettings = ExportSettings()
    jobs: JobsSettings = JobsSettings()
    notifications: NotificationSettings = NotificationSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    other_stacks: OtherStacksSettings = OtherStacksSettings()
    _existing: Existing = PrivateAttr(default_factory=Existing)

    @property
    def existing(self) -> Existing:
        """The section `existing` of the settings file, about GPUs of other stacks; the webhook reads it, too."""
        return self._existing

    @property
    def gives_classes(self) -> bool:
        """Whether the settings give GPU pods that name no priority class the one of their budget's state.

        False in the mode account if `existing.classes` is `never`, else True: also in the mode look, where pods get
        none.
        """
        return self.mode != "account" or self._existing.classes != "never"

    def beside(self, existing: Existing) -> TimekeeperSettings:
        """Returns a copy of these settings with another section `existing`."""
        copied = self.model_copy()
        copied._existing = existing  # noqa: SLF001 - its own
        return copied

    @property
    def own_resources(self) -> dict[str, Listed] | None:
        """The resources of other stacks that the admin lists, keyed by name; None if their pods are not metered."""
        if self.mode == "share":
            return None
        return {
            name: Listed(name, line.parts, line.devices, model_labels=line.model_labels, model=line.model)
            for name, line in self.other_stacks.resources.items()
        }

    @property
    def overhead_namespaces(self) -> frozenset[str]:
        """The namespaces, such as kube-system, whose pods are charged to the account `overhead`.

        There are none if pods of other stacks are not metered.
        """
        return frozenset() if self.mode == "share" else SYSTEM_NAMESPACES.union(self.existing.left_alone)


class Settings(Section):
    """The sections of the settings file that the timekeeper reads."""

    timekeeper: TimekeeperSettings = TimekeeperSettings()
    existing: Existing = Existing()


def read_settings(environ: Mapping[str, str], file: Path | None, usual: Path = USUAL_FILE) -> TimekeeperSettings:
    """Reads the timekeeper's settings from the environment and a file; if both have a setting, the environment counts.

    Args:
        environ: the environment variables.
        file: the settings file; None for the file at `usual`, if that exists.
        usual: the path of the settings file that needs no naming.

    Raises:
        SettingsError: a setting is invalid, or the file cannot be read.
    """
    read = load_settings(Settings, environ, file, usual)
    return read.timekeeper.beside(read.existing)
