"""The real kube-scheduler for FairGPU's profile, with the extender beside it as in one pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import yaml

from fairgpu.names import CANONICAL_RESOURCES, SCHEDULER_NAME
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import running
from tests.cluster.services.replicas import AT_ONCE, environment, service
from tests.support.ports import free_ports
from tests.support.waiting import wait_until


@contextmanager
def running_scheduler(plane: ControlPlane, timekeeper: int) -> Iterator[None]:
    """Places GPU pods for the length of a with statement, by the states of the timekeeper behind that port."""
    port, metrics = free_ports(2)
    account = environment(plane, "fairgpu-scheduler")
    token = Path(account["TOKEN_FILE"]).with_suffix(".timekeeper-token")
    token.touch(mode=0o600)
    token.write_text(plane.token("fairgpu-system", "fairgpu-scheduler", audience="fairgpu-timekeeper"))
    settings = {
        "FAIRGPU_SCHEDULER_EXTENDER_PORT": str(port),
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": str(metrics),
        "FAIRGPU_SCHEDULER_STATES_URL": f"https://localhost:{timekeeper}",
        "FAIRGPU_SCHEDULER_STATES_TOKEN_FILE": str(token),
    }
    with ExitStack() as stack:
        extender = service(plane, "extender", ["scheduler", "serve"], {**account, **settings}, AT_ONCE)
        process = stack.enter_context(extender)

        def ready() -> bool:
            process.check_alive()
            try:
                with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(ready, "the extender has read nodes and pods")
        kubeconfig = plane.user("system:kube-scheduler").kubeconfig
        configuration = plane.folder / "fairgpu-scheduler.yaml"
        configuration.write_text(yaml.safe_dump(scheduler_configuration(str(kubeconfig), port)))
        command = [plane.binaries / "kube-scheduler", f"--config={configuration}", "--secure-port=0"]
        stack.enter_context(running("fairgpu-kube-scheduler", command, plane.folder / "fairgpu-kube-scheduler.log", {}))
        yield


def scheduler_configuration(kubeconfig: str, port: int) -> dict[str, object]:
    """kube-scheduler's configuration with one profile, which asks the extender on loopback."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 100,
                "nodeCacheCapable": True,
                "httpTimeout": "60s",
                "managedResources": [{"name": name, "ignoredByScheduler": False} for name in CANONICAL_RESOURCES],
            }
        ],
    }
