"""What the admin sets for admission. Times are seconds; every field has a default but the sidecar's timekeeper."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from fairgpu import names
from fairgpu.commands import CommandError
from fairgpu.dialects.reading import DialectSettings
from fairgpu.quantity import QuantityError, parse_quantity
from fairgpu.settings import Section, SettingsError, load_settings

USUAL_FILE = Path("/etc/fairgpu/settings.yaml")

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


def _at_least(least: str) -> AfterValidator:
    def check(given: str) -> str:
        try:
            enough = parse_quantity(given) >= parse_quantity(least)
        except QuantityError as error:
            raise ValueError(f"{error}: write one such as {least!r}") from error
        if not enough:
            raise ValueError(f"less than the reporter needs: write {least!r} or more")
        return given

    return AfterValidator(check)


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
PriorityClassName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
PriorityValue = Annotated[int, Field(ge=-(2**31), le=10**9)]
"""What the API server allows in a class that is not one of its own
(https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/#priorityclass)."""


class Serving(Section):
    """Where and how the webhook listens."""

    host: str = "0.0.0.0"  # noqa: S104 - in its pod it is reached from outside
    port: Port = 8443
    metrics_port: Port = 9090
    workers: Annotated[int, Field(ge=1, le=64)] = 2
    keepalive_seconds: Annotated[int, Field(ge=1)] = 120
    drain_seconds: Annotated[float, Field(ge=0)] = 5
    finish_seconds: Annotated[float, Field(ge=0)] = 15
    access_log: bool = False


class States(Section):
    """The timekeeper, and what holds while it has not answered."""

    url: TimekeeperAddress = f"https://{names.TIMEKEEPER_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"
    ca_file: Path | None = None
    """The timekeeper's CA in PEM; without it, the ConfigMap that the timekeeper keeps it in is read."""
    token_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    """Read again at each request."""
    wait_seconds: Annotated[float, Field(gt=0, le=60)] = 30
    stale_after_seconds: Seconds = 120
    first_wait_seconds: Annotated[float, Field(ge=0)] = 10
    """How long a worker that has just started takes no review for want of states; then it goes by `when_unknown`."""
    when_unknown: Literal["in-budget", "over-budget", "refuse"] = "in-budget"
    """For a pod whose namespace's state was never known since the webhook started."""


class Priorities(Section):
    """The classes that GPU pods get. Where the API server knows a class, its own value and policy win."""

    in_budget_class: PriorityClassName = names.IN_BUDGET_CLASS
    in_budget_value: PriorityValue = 1000
    over_budget_class: PriorityClassName = names.OVER_BUDGET_CLASS
    over_budget_value: PriorityValue = 0
    preemption: Literal["never", "scheduler"] = "never"
    keep: tuple[str, ...] = ()
    """Classes of the users' own that stay on their pods, whatever the budget says."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.in_budget_class == self.over_budget_class:
            raise ValueError("in_budget_class and over_budget_class are one class: a spent budget would change nothing")
        if self.over_budget_value > self.in_budget_value:
            raise ValueError("over_budget_value is above in_budget_value: pods over budget would go first")
        return self


class Sidecar(Section):
    """The reporter that is put into each GPU pod."""

    image: Annotated[str, Field(pattern=r"^\S+$")] = "fairgpu/sidecar:0.1.0"
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    cpu: Annotated[str, _at_least("1m")] = "10m"
    memory: Annotated[str, _at_least("32Mi")] = "40Mi"
    run_as_user: Annotated[int, Field(ge=1)] = 65532
    timekeeper_url: TimekeeperAddress = f"https://{names.TIMEKEEPER_SERVICE}.{names.SYSTEM_NAMESPACE}.svc"
    token_seconds: Annotated[int, Field(ge=600, le=2**32)] = 3600


class Dialects(Section):
    """How requests are read."""

    max_gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 16
    hami_plain_gpu: Literal["whole", "leave"] = "whole"
    aliyun_memory_unit_mib: Annotated[int, Field(ge=1)] = 1024
    volcano_memory_unit_mib: Annotated[int, Field(ge=1)] = 1
    best_effort: Literal["allow", "refuse"] = "allow"

    @cached_property
    def reading(self) -> DialectSettings:
        """What the readers of requests take of it."""
        return DialectSettings(
            max_gpus_per_node=self.max_gpus_per_node,
            hami_plain_gpu=self.hami_plain_gpu,
            aliyun_memory_unit_mib=self.aliyun_memory_unit_mib,
            volcano_memory_unit_mib=self.volcano_memory_unit_mib,
        )


class Certificates(Section):
    """The webhook's own authority and certificate."""

    namespace: str = names.SYSTEM_NAMESPACE
    secret: str = f"{names.WEBHOOK_SERVICE}-tls"
    names: tuple[str, ...] = (f"{names.WEBHOOK_SERVICE}.{names.SYSTEM_NAMESPACE}.svc",)
    """What the certificate is for: the DNS name that the API server calls."""
    authority_seconds: Annotated[int, Field(ge=10)] = 3 * 365 * 86400
    leaf_seconds: Annotated[int, Field(ge=5)] = 90 * 86400
    check_seconds: Seconds = 30
    spread_seconds: Annotated[float, Field(ge=0)] = 120
    """How long an API server may go on with an authority that is no longer in the configurations."""

    @model_validator(mode="after")
    def _leaf_within_authority(self) -> Self:
        if self.leaf_seconds > self.authority_seconds:
            raise ValueError("leaf_seconds is above authority_seconds: a certificate does not outlive who signed it")
        return self


class Webhook(Section):
    """The section `webhook` of the settings."""

    serving: Serving = Serving()
    states: States = States()
    priorities: Priorities = Priorities()
    sidecar: Sidecar = Sidecar()
    dialects: Dialects = Dialects()
    certificates: Certificates = Certificates()
    scheduler: str = names.SCHEDULER_NAME
    end_proof: Literal["observe", "finalizer"] = "observe"
    """finalizer: GPU pods get the finalizer fairgpu.io/meter, which the timekeeper, told the same, removes once their
    end is in the ledger."""
    templates: Literal["warn", "refuse", "ignore"] = "warn"
    """What a faulty pod template in a Deployment, Job and so on gets."""
    timekeeper_ca_config_map: str = f"{names.TIMEKEEPER_SERVICE}-ca"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class Settings(Section):
    """What the webhook reads of the settings file."""

    webhook: Webhook = Webhook()


def read_settings(environ: Mapping[str, str], file: Path | None, usual: Path = USUAL_FILE) -> Webhook:
    """The webhook's settings from the environment and a file: the one that is named, else the usual one if it is there.

    Raises:
        CommandError: a setting cannot be used.
    """
    try:
        return load_settings(Settings, environ, file or (usual if usual.exists() else None)).webhook
    except SettingsError as error:
        raise CommandError(str(error)) from error
