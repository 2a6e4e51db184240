"""The admin's settings of admission. Times are seconds, and every field has a default."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from fairgpu import names
from fairgpu.dialects.reading import DialectSettings
from fairgpu.existing import Existing
from fairgpu.quantity import QuantityError, parse_quantity
from fairgpu.sections import TIMEKEEPER_URL, ServerName, ServerSettings, StatesReaderSettings, TimekeeperAddress
from fairgpu.settings import USUAL_FILE, Section, load_settings

Seconds = Annotated[float, Field(gt=0)]
MAX_AUTHORITY_SECONDS = 100 * 365 * 86400


def _at_least(least: str) -> AfterValidator:
    def check(given: str) -> str:
        try:
            enough = parse_quantity(given) >= parse_quantity(least)
        except QuantityError as error:
            raise ValueError(f"{error}: write one such as {least!r}") from error
        if not enough:
            raise ValueError(f"less than the sidecar needs: write {least!r} or more")
        return given

    return AfterValidator(check)


ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
PriorityValue = Annotated[int, Field(ge=-(2**31), le=10**9)]
"""The values that the API server allows in an admin's priority class."""


class Serving(ServerSettings):
    """The server's addresses, processes and times."""

    keepalive_seconds: Annotated[int, Field(ge=1)] = 120
    """The longest time that a connection may be idle."""
    finish_seconds: Annotated[float, Field(ge=0)] = 15
    """The time after `drain_seconds` in which requests under way may finish."""


class StatesSettings(StatesReaderSettings):
    """The settings of reading budgets' states from the timekeeper, and of admission until it first answers."""

    stale_after_seconds: Seconds = 120
    """The age of the states from which on an audit annotation names it."""
    first_wait_seconds: Annotated[float, Field(ge=0)] = 10
    """The longest time that a new worker waits for states before it accepts reviews; then `when_unknown` applies."""
    when_unknown: Literal["in-budget", "over-budget", "refuse"] = "in-budget"
    """The treatment of a pod whose namespace's state has not been known since the webhook started."""


class Priorities(Section):
    """The priority classes that GPU pods get. If the API server has a class, the class's own value counts."""

    in_budget_class: ObjectName = names.IN_BUDGET_CLASS
    """The PriorityClass of pods whose budget has money left."""
    in_budget_value: PriorityValue = 1000
    """Its value while the API server does not have the class."""
    over_budget_class: ObjectName = names.OVER_BUDGET_CLASS
    """The PriorityClass of pods whose budget is spent."""
    over_budget_value: PriorityValue = 0
    """Its value while the API server does not have the class."""
    preemption: Literal["never", "scheduler"] = "never"
    """`never`: GPU pods evict no other pod; `scheduler`: the stock scheduler may evict for them, without notice."""
    keep: tuple[str, ...] = ()
    """The users' own PriorityClasses: a pod that names one keeps it in each state of the budget."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.in_budget_class == self.over_budget_class:
            raise ValueError("in_budget_class and over_budget_class are one class: a spent budget would change nothing")
        if self.over_budget_value > self.in_budget_value:
            raise ValueError("over_budget_value is above in_budget_value: pods over budget would go first")
        return self


class Sidecar(Section):
    """The sidecar that admission adds to each GPU pod."""

    image: Annotated[str, Field(pattern=r"^\S+$")] = "fairgpu.invalid/sidecar:0.1.0"
    """The image. The manifests set it from the ConfigMap fairgpu-sidecar-image, here and in the policy fairgpu-spec."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """The pull policy of the image."""
    cpu: Annotated[str, _at_least("1m")] = "50m"
    """Its request and its limit of processor; at least 1m."""
    memory: Annotated[str, _at_least("32Mi")] = "40Mi"
    """Its request and its limit of memory; at least 32Mi."""
    run_as_user: Annotated[int, Field(ge=1)] = 65532
    """The user and the group that it runs as."""
    timekeeper_url: TimekeeperAddress = TIMEKEEPER_URL
    """The timekeeper's address, to which it reports."""
    token_seconds: Annotated[int, Field(ge=600, le=2**32)] = 3600
    """The lifetime of each of its tokens; kubelets renew them in time."""


class Dialects(Section):
    """The settings by which dialects read GPU requests."""

    max_gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 16
    """The most GPUs that a node has; a container that asks for more is refused."""
    hami_plain_gpu: Literal["whole", "leave"] = "whole"
    """The meaning of `nvidia.com/gpu` alone: whole GPUs, or another device plugin's, which FairGPU leaves alone."""
    aliyun_memory_unit_mib: Annotated[int, Field(ge=1)] = 1024
    """The size of one unit of `aliyun.com/gpu-mem`."""
    volcano_memory_unit_mib: Annotated[int, Field(ge=1)] = 1
    """The size of one unit of `volcano.sh/vgpu-memory` (Volcano's gpuMemoryFactor)."""
    best_effort: Literal["allow", "refuse"] = "allow"
    """The answer to pods that ask for the GPU time that others leave idle (core 0)."""

    @cached_property
    def reading(self) -> DialectSettings:
        """These settings as the readers of dialects take them, without `best_effort`."""
        return DialectSettings(
            max_gpus_per_node=self.max_gpus_per_node,
            hami_plain_gpu=self.hami_plain_gpu,
            aliyun_memory_unit_mib=self.aliyun_memory_unit_mib,
            volcano_memory_unit_mib=self.volcano_memory_unit_mib,
        )


class Certificates(Section):
    """The webhook's own authority and certificate, which `fairgpu webhook certificates` creates and renews."""

    namespace: ObjectName = names.SYSTEM_NAMESPACE
    """The namespace of both Secrets."""
    authority_secret: ObjectName = f"{names.WEBHOOK_SERVICE}-ca"
    """The Secret that holds the authority and its key."""
    secret: ObjectName = f"{names.WEBHOOK_SERVICE}-tls"
    """The Secret that holds the certificate and its key, which the webhook's replicas mount."""
    folder: Path = Path("/etc/fairgpu-webhook-tls")
    """The folder in which that Secret is mounted; standalone, the certificate is in
    `certificates/webhook` instead."""
    names: Annotated[tuple[ServerName, ...], Field(min_length=1)] = (
        f"{names.WEBHOOK_SERVICE}.{names.SYSTEM_NAMESPACE}.svc",
    )
    """The names of the certificate: the DNS name that the API server calls."""
    authority_seconds: Annotated[int, Field(ge=10, le=MAX_AUTHORITY_SECONDS)] = 3 * 365 * 86400
    """The lifetime of an authority; the next one comes well before its end, and both are trusted meanwhile."""
    leaf_seconds: Annotated[int, Field(ge=5)] = 90 * 86400
    """The lifetime of a certificate; it is renewed well before its end."""
    check_seconds: Annotated[float, Field(gt=0, le=86400)] = 30
    """The interval at which `fairgpu webhook certificates` looks for renewals, and each replica for a new chain."""
    spread_seconds: Annotated[float, Field(ge=0, le=MAX_AUTHORITY_SECONDS)] = 600
    """The longest time that an API server may use the previous bundle, and a replica the previous certificate; kubelets
    update a changed Secret in pods within some two minutes."""

    @model_validator(mode="after")
    def _leaf_within_authority(self) -> Self:
        if self.leaf_seconds > self.authority_seconds:
            raise ValueError("leaf_seconds is above authority_seconds: a certificate does not outlive who signed it")
        return self


class Toleration(Section):
    """A toleration, as Kubernetes writes it."""

    key: str = ""
    """The taint's key; empty with the operator `Exists`: every key."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists`: the taint may have any value."""
    value: str = ""
    """The taint's value."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty: every one."""

    @model_validator(mode="after")
    def _has_a_key_or_exists(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError('given a value with the operator "Exists"; leave the value out, or write "Equal"')
        if self.operator == "Equal" and not self.key:
            raise ValueError('given no key with the operator "Equal"; write a key, or "Exists"')
        return self

    @cached_property
    def written(self) -> dict[str, str]:
        """The toleration as JSON of a pod, without its empty fields."""
        fields = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        return {name: value for name, value in fields.items() if value}


class Webhook(Section):
    """The section `webhook` of the settings."""

    mode: Literal["share", "account"] = "share"
    """share: FairGPU places GPU pods and gives them their devices; account: their stack does, and FairGPU budgets them.
    A namespace's label `fairgpu.io/mode` counts more. Policies and webhook rules contain the mode, too: after a change,
    run `fairgpu render`."""
    serving: Serving = Serving()
    states: StatesSettings = StatesSettings()
    priorities: Priorities = Priorities()
    sidecar: Sidecar = Sidecar()
    dialects: Dialects = Dialects()
    certificates: Certificates = Certificates()
    scheduler: ObjectName = names.SCHEDULER_NAME
    """The `schedulerName` of GPU pods."""
    tolerations: tuple[Toleration, ...] = (Toleration(key="nvidia.com/gpu", operator="Exists"),)
    """The tolerations that GPU pods get, one for each taint of your GPU nodes."""
    runtime_classes: tuple[ObjectName, ...] = ("nvidia",)
    """The RuntimeClasses that a pod with a piece of a GPU may name: those whose runtime applies CDI on the node's own
    kernel. Kata and gVisor do not."""
    end_proof: Literal["observe", "finalizer"] = "observe"
    """`finalizer`: GPU pods get the finalizer fairgpu.io/meter, which the timekeeper removes once their end is in
    the ledger; its own setting must be the same."""
    templates: Literal["warn", "refuse", "ignore"] = "warn"
    """The answer to a faulty pod template in a Deployment, Job and so on."""
    timekeeper_ca_config_map: str = f"{names.TIMEKEEPER_SERVICE}-ca"
    """The ConfigMap in which the timekeeper publishes its CA."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged."""

    _existing: Existing = PrivateAttr(default_factory=Existing)

    @property
    def existing(self) -> Existing:
        """The section `existing` of the settings, about other stacks that share the cluster's GPUs."""
        return self._existing

    def beside(self, existing: Existing) -> Webhook:
        """Returns a copy of these settings with another section `existing`, on stacks that share the cluster's GPUs."""
        copied = self.model_copy()
        copied._existing = existing  # noqa: SLF001 - its own
        return copied


class Settings(Section):
    """The sections of the settings file that the webhook reads."""

    webhook: Webhook = Webhook()
    existing: Existing = Existing()


def read_settings(environ: Mapping[str, str], file: Path | None, usual: Path = USUAL_FILE) -> Webhook:
    """Reads the webhook's settings from the environment and a file; the environment's values win.

    Args:
        environ: the environment of the process.
        file: the YAML file to read; None to read `usual`.
        usual: the YAML file that is read if `file` is None; it may be missing.

    Raises:
        SettingsError: a setting is invalid, or the file cannot be read.
    """
    read = load_settings(Settings, environ, file, usual)
    return read.webhook.beside(read.existing)
