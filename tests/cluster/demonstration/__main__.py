"""The demonstration on a real control plane, shown by kubectl itself: `python -m tests.cluster.demonstration`.

It needs a checkout: the control plane is the one of the cluster tests. Nothing but that control plane is touched. In
namespaces of its own (tools/demo_cluster.sh), the pods run on a real kubelet.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from demo.children import StepError
from demo.demonstration import interrupt
from demo.screen import Screen
from fairgpu.cluster.api import ApiError
from fairgpu.commands import CommandError
from tests.cluster.control_plane.build import ControlPlaneBinariesError
from tests.cluster.demonstration import day_one, sections, services
from tests.node.machine import NAMESPACES

TITLE = "FairGPU on a real control plane"
INTRODUCTION = (
    "Real: etcd, the API server, controllers, kubectl; Redis, timekeeper, webhook, scheduler, a sidecar for each pod.",
    "Played by this program: the kubelets of two nodes, as NVIDIA's plugin describes them, and of one of FairGPU's own",
    "with four A100 GPUs. As root, that one is real, but for its GPUs.",
)
WITH_A_NODE = (
    "Real: etcd, the API server, controllers, kubectl, kubelet, containerd; Redis, timekeeper, webhook, scheduler,",
    "the node agent, and in each pod the sidecar and the library that holds it to its share.",
    "Simulated: four A100 GPUs and their driver. Played by this program: two nodes as NVIDIA's plugin describes them.",
)
FAILURES = (StepError, ApiError, CommandError, AssertionError, TimeoutError, RuntimeError, subprocess.SubprocessError)


def main() -> int:
    """Runs every section; 0 only if each step was seen to happen."""
    screen = Screen()
    real_node = os.environ.get(NAMESPACES) == "1"
    screen.title(TITLE, WITH_A_NODE if real_node else INTRODUCTION)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, interrupt))
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-demo-", ignore_cleanup_errors=True))
        )
        try:
            environment = services.build(screen, stack, folder, real_node=real_node)
            for section in (*day_one.ALL, *sections.ALL):
                section(environment)
        except (*FAILURES, ControlPlaneBinariesError) as error:
            screen.verdict(f"This step did not happen: {error}", good=False)
            return 1
        except KeyboardInterrupt:
            return 130
    screen.verdict("Every step above was checked as it happened.", good=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
