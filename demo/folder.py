"""The standalone folder in place of a cluster: budgets, rights, keys and settings, as files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from demo.children import free_port
from demo.keys import TokenSigner
from fairgpu import names

NAMESPACE = "research"
BUDGET = "research"
HELD_NAMESPACE = "students"
HELD_BUDGET = "students"
Json = dict[str, Any]
GPU_HOURS_PER_GPU_SECOND = 1 / 3600
ALLOWANCE_GPU_SECONDS = 18
GRACE_GPU_SECONDS = 18
GRANT_GPU_SECONDS = 180
HELD_GRANT_GPU_SECONDS = 36
REPORT_INTERVAL_SECONDS = 1
SETTLE_SECONDS = 0.25

READER = "ada"
ADMIN = "grace"
WEBHOOK = "system:serviceaccount:fairgpu-system:fairgpu-webhook"


def gpu_hours(gpu_seconds: float) -> str:
    """Formats GPU-seconds as GPU-hours with six decimal places, the form of amounts in budgets and grants."""
    return f"{gpu_seconds * GPU_HOURS_PER_GPU_SECOND:.6f}"


@dataclass(frozen=True)
class Folder:
    """The files of one demonstration, and the ports of its services.

    Attributes:
        root: the folder that holds all files.
        signer: signs the tokens of people, services and pods.
        timekeeper_port: the port of the timekeeper's REST API.
        timekeeper_metrics_port: the port of the metrics of the timekeeper's API.
        jobs_metrics_port: the port of the metrics of the process `fairgpu timekeeper jobs`.
        webhook_port: the port of the webhook.
        webhook_metrics_port: the port of the webhook's metrics.
    """

    root: Path
    signer: TokenSigner = field(default_factory=TokenSigner)
    timekeeper_port: int = field(default_factory=free_port)
    timekeeper_metrics_port: int = field(default_factory=free_port)
    jobs_metrics_port: int = field(default_factory=free_port)
    webhook_port: int = field(default_factory=free_port)
    webhook_metrics_port: int = field(default_factory=free_port)

    @property
    def timekeeper_url(self) -> str:
        """The timekeeper's URL."""
        return f"https://127.0.0.1:{self.timekeeper_port}"

    @property
    def timekeeper_ca(self) -> Path:
        """The file of the CA that the timekeeper makes when it starts."""
        return self.root / "certificates" / "timekeeper" / "ca.crt"

    @property
    def webhook_ca(self) -> Path:
        """The file of the CA that the webhook makes when it starts."""
        return self.root / "certificates" / "webhook" / "ca.crt"

    @property
    def sidecar(self) -> Path:
        """The file of the sidecar: a zip archive that Python runs."""
        return self.root / "sidecar.pyz"

    def usage(self, pod: Json) -> Path:
        """Returns the folder that stands for the usage volume of a pod."""
        return self.root / "usage" / str(pod["metadata"]["uid"])

    @property
    def pods(self) -> Path:
        """The folder in which the timekeeper finds pods."""
        return self.root / "pods"

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self.root / "logs"

    @property
    def settings_file(self) -> Path:
        """The settings file of all services."""
        return self.root / "settings.yaml"

    def prepare(self, redis_url: str) -> None:
        """Writes the files that the services read when they start: settings, budgets, rights, keys and a token.

        Args:
            redis_url: the URL of the embedded Redis, for the settings.
        """
        for place in (self.pods, self.root / "usage", self.root / "grants"):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.root / "jwks.json").write_text(json.dumps(self.signer.key_set()))
        (self.root / "access.yaml").write_text(yaml.safe_dump(access()))
        (self.root / "budgets.yaml").write_text(yaml.safe_dump_all([team_budget(), holding_budget()]))
        token = self.root / "webhook-token"
        token.touch(mode=0o600)
        token.write_text(self.signer.person(WEBHOOK))
        self.settings_file.write_text(yaml.safe_dump(self.settings(redis_url)))

    def settings(self, redis_url: str) -> dict[str, Any]:
        """Returns the content of the settings file, which the timekeeper and the webhook read.

        Args:
            redis_url: the URL of the embedded Redis.
        """
        return {
            "timekeeper": {
                "redis": {"url": redis_url},
                "serve": {
                    "port": self.timekeeper_port,
                    "metrics_port": self.timekeeper_metrics_port,
                    "workers": 1,
                    "report_interval_seconds": REPORT_INTERVAL_SECONDS,
                },
                "jobs": {
                    "react_seconds": 0.1,
                    "settle_seconds": SETTLE_SECONDS,
                    "status_seconds": 1,
                    "metrics_host": "127.0.0.1",
                    "metrics_port": self.jobs_metrics_port,
                },
            },
            "webhook": {
                "serving": {
                    "port": self.webhook_port,
                    "metrics_port": self.webhook_metrics_port,
                    "workers": 1,
                    "drain_seconds": 0,
                },
                "states": {
                    "url": self.timekeeper_url,
                    "token_file": str(self.root / "webhook-token"),
                },
                "sidecar": {"timekeeper_url": self.timekeeper_url},
            },
        }


def team_budget() -> Json:
    """Returns the budget that the demonstration spends, as JSON: a few GPU-seconds a month, and as many of grace."""
    spec = {
        "namespaces": [NAMESPACE],
        "allowance": {"gpuHours": gpu_hours(ALLOWANCE_GPU_SECONDS)},
        "period": {"every": "month"},
        "grace": {"gpuHours": gpu_hours(GRACE_GPU_SECONDS)},
    }
    return _budget(BUDGET, spec)


def holding_budget() -> Json:
    """Returns a budget without money, as JSON, whose pods wait behind a gate until a grant gives it money."""
    spec = {
        "namespaces": [HELD_NAMESPACE],
        "allowance": {"gpuHours": 0},
        "period": {"every": "month"},
        "onExhausted": "hold",
        "minRuntime": "10s",
    }
    return _budget(HELD_BUDGET, spec)


def _budget(name: str, spec: Json) -> Json:
    metadata = {"name": name, "uid": f"budget-{name}", "creationTimestamp": "2025-01-01T00:00:00Z"}
    return {"apiVersion": names.BUDGET_API, "kind": "GPUBudget", "metadata": metadata, "spec": spec}


def access() -> list[dict[str, Any]]:
    """Returns the content of `access.yaml`, by which the timekeeper decides what each caller may do.

    A member of the team may read, an admin may also grant, and the webhook may read states.
    """
    return [
        {"subject": READER, "namespace": NAMESPACE, "verbs": ["get"]},
        {"subject": ADMIN, "namespace": "*", "verbs": ["get", "list", "create"]},
        {"subject": WEBHOOK, "namespace": "*", "verbs": ["get", "list"]},
    ]
