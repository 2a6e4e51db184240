"""Assembles the extender and serves it with one worker, since its state is one."""

from __future__ import annotations

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.serving.options import Address, ServerOptions
from fairgpu.serving.server import serve
from scheduler.application import build_application
from scheduler.measures import Measures
from scheduler.settings import SchedulerSettings


def run(settings: SchedulerSettings, api: KubernetesAPI) -> int:
    """Serves until a signal ends it; returns the exit status."""
    extender = settings.extender
    options = ServerOptions(
        name="fairgpu-scheduler",
        address=Address(extender.host, extender.port),
        metrics_address=Address(extender.metrics_host, extender.metrics_port),
        workers=1,
        drain_seconds=0.0,
    )
    return serve(options, lambda lifecycle: build_application(lifecycle, api, settings, Measures()), None)
