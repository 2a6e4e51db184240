"""The admin's settings of the extender."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fairgpu import names
from fairgpu.listeners import Listens
from fairgpu.sections import Port, StatesReaderSettings
from fairgpu.settings import USUAL_FILE, Section, load_settings


class ExtenderSettings(Section):
    """The extender's settings: its addresses, preemption, and how long devices are held for a gang."""

    host: str = "127.0.0.1"
    """The address that it listens on: kube-scheduler alone may reach it, as it authenticates no caller."""
    port: Annotated[Port, Listens("host")] = 8088
    """The port, plain HTTP. `urlPrefix` in kube-scheduler's configuration names it, too."""
    preempt: bool = False
    """Whether kube-scheduler may ask for victims. The component `deploy/preemption` sets it, with all else that
    preemption needs."""
    gang_seconds: Annotated[float, Field(gt=0, le=600)] = 30
    """For how many seconds devices are held for all pods of a gang until kube-scheduler is about to bind each of them.
    The extender's `httpTimeout` in kube-scheduler's configuration must be longer by 45 seconds."""
    metrics_host: str = ""
    """The address of the metrics and of the kubelet's probes; without one, each address that the pod has, of IPv4 and
    IPv6."""
    metrics_port: Annotated[Port, Listens("metrics_host")] = 9090
    """The port of the metrics, plain HTTP. In the same pod kube-scheduler has port 10259."""


class LeaseSettings(Section):
    """The settings of the Lease by which kube-scheduler elects a leader."""

    pod_name: str = ""
    """This pod's name, by the downward API; empty where there is one replica alone, which then always acts."""
    namespace: str = names.SYSTEM_NAMESPACE
    """The Lease's namespace, and this pod's."""
    name: str = names.SCHEDULER_NAME
    """The Lease's name, as `leaderElection.resourceName` says in kube-scheduler's configuration."""


class StatesSettings(StatesReaderSettings):
    """The settings by which the scheduler reads the budgets' states from the timekeeper."""

    ca_namespace: str = names.SYSTEM_NAMESPACE
    """The namespace of the ConfigMap in which the timekeeper publishes its CA."""
    ca_config_map: str = f"{names.TIMEKEEPER_SERVICE}-ca"
    """The name of that ConfigMap."""


class ReclaimSettings(Section):
    """The settings of the eviction of pods that frees devices for waiting pods within their budget."""

    enabled: bool = True
    """Whether pods of spent budgets, and pods of normal task priority for those of high, are evicted at all."""
    notice_seconds: Annotated[float, Field(ge=0, le=86400)] = 60
    """The time between a pod's notice and its eviction."""
    placed_seconds: Annotated[float, Field(gt=0, le=3600)] = 30
    """The time for which freed devices are kept for a waiting pod. If the pod is not placed there by then, later plans
    for the pod leave out the node."""
    give_up_seconds: Annotated[float, Field(gt=0, le=86400)] = 600
    """The time after `notice_seconds` in which the pods to evict must end, else the plan is given up. A
    PodDisruptionBudget may delay an eviction."""


class SchedulerSettings(Section):
    """All settings of the scheduler's extender."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that is logged."""
    extender: ExtenderSettings = Field(default_factory=ExtenderSettings)
    lease: LeaseSettings = Field(default_factory=LeaseSettings)
    states: StatesSettings = Field(default_factory=StatesSettings)
    reclaim: ReclaimSettings = Field(default_factory=ReclaimSettings)


class Settings(Section):
    """The part of the settings file that the scheduler reads."""

    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)


def read_settings(environ: Mapping[str, str], file: Path | None) -> SchedulerSettings:
    """Returns the scheduler's settings, from a file and from the environment, which takes precedence.

    Args:
        file: the settings file; None for the usual file, which need not exist.

    Raises:
        SettingsError: the file cannot be read, or a setting is invalid.
    """
    return load_settings(Settings, environ, file, USUAL_FILE).scheduler
