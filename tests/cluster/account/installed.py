"""The mode `account` installed from its overlay on a control plane, with Redis, the timekeeper and the webhook."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process
from tests.cluster.installation import WEBHOOK_CONFIGURATIONS, Manifest, apply, served, without
from tests.cluster.services.certificates import certificates, mounted_certificate
from tests.cluster.services.replicas import (
    Ports,
    certificate_folder,
    timekeeper_jobs,
    timekeeper_replica,
    webhook_replica,
)
from tests.support.ports import free_ports
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import wait_until

ACCOUNT = Path(__file__).parents[3] / "deploy" / "overlays" / "account"
API = "/apis/fairgpu.io/v1alpha1"
ONE = {"nvidia.com/gpu": "1"}
SETTINGS = {
    "FAIRGPU_TIMEKEEPER_MODE": "account",
    "FAIRGPU_WEBHOOK_MODE": "account",
    "FAIRGPU_WEBHOOK_SIDECAR_IMAGE": "fairgpu.invalid/sidecar:0.1.0",
}
"""Those of the overlay; it names no image of its own, and so the policy asks for the base's."""


@dataclass(frozen=True)
class Installed:
    """The installation: its manifests as an admin applies them, and its services.

    `rest` is the timekeeper's port. `serve` starts timekeeper and webhook with a setting of `end_proof`, in place of
    those that run. `webhook` returns the process of the webhook that runs now.
    """

    manifests: list[Manifest]
    rest: int
    serve: Callable[[str], None]
    webhook: Callable[[], Process]


@contextmanager
def installed_account(plane: ControlPlane, store: str = "") -> Iterator[Installed]:
    """Applies the overlay, and runs the services as its accounts.

    `store` is the URL of the Redis that an earlier mode has filled; without one, Redis is new.
    """
    https, rest = free_ports(2)
    manifests = _render(plane, https)
    apply(plane, without(manifests, WEBHOOK_CONFIGURATIONS))
    with ExitStack() as stack:
        if not store:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-redis-"))
            store = stack.enter_context(RedisServer(Path(folder))).url
        for resource in ("gpubudgets", "gpugrants", "gpucorrections"):
            wait_until(partial(served, plane, f"{API}/{resource}"), f"{resource} are served")
        stack.enter_context(mounted_certificate(plane, certificate_folder(plane)))
        apply(plane, [manifest for manifest in manifests if manifest["kind"] in WEBHOOK_CONFIGURATIONS])
        stack.enter_context(certificates(plane))
        services = stack.enter_context(ExitStack())
        webhooks: list[Process] = []

        def serve(end_proof: str) -> None:
            services.close()
            webhooks.append(_serve(plane, services, store, https, rest, end_proof))

        serve("observe")
        yield Installed(manifests, rest, serve, lambda: webhooks[-1])


def settings_of(service: str) -> dict[str, str]:
    """The settings of a service of the overlay, WEBHOOK or TIMEKEEPER."""
    return {key: value for key, value in SETTINGS.items() if key.startswith(f"FAIRGPU_{service}")}


def pod(name: str, limits: dict[str, str], **spec: Any) -> Manifest:
    """A pod with one container that has these limits."""
    container = {"name": "main", "image": "example.org/train:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def grant(plane: ControlPlane, budget: str, gpu_hours: int) -> None:
    """Grants a budget GPU-hours, once."""
    spec = {"budget": budget, "gpuHours": gpu_hours, "reason": "a test"}
    item = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": f"for-{budget}"},
        "spec": spec,
    }
    plane.admin.api.create(f"{API}/gpugrants", item)


def _serve(plane: ControlPlane, stack: ExitStack, redis_url: str, https: int, port: int, end_proof: str) -> Process:
    """Runs the timekeeper and the webhook until the stack is closed; returns the webhook's process."""
    metrics, jobs_metrics, webhook_metrics = free_ports(3)
    timekeeper = {**settings_of("TIMEKEEPER"), "FAIRGPU_TIMEKEEPER_METERING_END_PROOF": end_proof}
    stack.enter_context(timekeeper_replica(plane, "timekeeper", Ports(port, metrics), redis_url, **timekeeper))
    stack.enter_context(timekeeper_jobs(plane, "timekeeper-jobs", jobs_metrics, redis_url, **timekeeper))
    ports = Ports(https, webhook_metrics)
    webhook = stack.enter_context(webhook_replica(plane, "webhook", ports, port, end_proof, **settings_of("WEBHOOK")))
    wait_until(lambda: _answers(plane), "new GPU pods are sent to the webhook")
    return webhook


def _render(plane: ControlPlane, webhook_port: int) -> list[Manifest]:
    """The overlay as it stands, for a control plane without a network of services."""

    def ports(count: int) -> str:
        path = "/webhooks/{}/clientConfig/service/port"
        return json.dumps([{"op": "replace", "path": path.format(n), "value": webhook_port} for n in range(count)])

    external = [{"op": "replace", "path": "/spec", "value": {"type": "ExternalName", "externalName": "localhost"}}]
    with tempfile.TemporaryDirectory(dir=plane.folder) as folder:
        kustomization = {
            "resources": [os.path.relpath(ACCOUNT, Path(folder).resolve())],
            "patches": [
                {"target": {"kind": "Service", "namespace": "fairgpu-system"}, "patch": json.dumps(external)},
                {"target": {"kind": "MutatingWebhookConfiguration"}, "patch": ports(4)},
                {"target": {"kind": "ValidatingWebhookConfiguration"}, "patch": ports(4)},
            ],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        rendered = plane.admin.kubectl("kustomize", folder).stdout
    return [document for document in yaml.safe_load_all(rendered) if document]


def _answers(plane: ControlPlane) -> bool:
    try:
        stored = plane.admin.api.create("/api/v1/namespaces/default/pods", pod("probe", ONE), {"dryRun": "All"})
    except ApiError as error:
        if error.status in {403, 422, 500}:
            return False
        raise
    return "labels" in stored["metadata"]
