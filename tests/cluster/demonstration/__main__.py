"""The demonstration on a real control plane, told by kubectl itself: `python -m tests.cluster.demonstration`.

It needs a checkout: the control plane is the one of the cluster tests. Nothing but that control plane is touched.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from demo.children import StepError
from demo.screen import Screen
from demo.story import interrupt
from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.build import ControlPlaneBinariesError
from tests.cluster.demonstration import acts, services

TITLE = "FairGPU on a real control plane"
INTRODUCTION = (
    "Real: etcd, the API server, controllers, kubectl; Redis, timekeeper, webhook, scheduler, a sidecar for each pod.",
    "Played by this program: the kubelet and a node with four A100 GPUs.",
)
FAILURES = (StepError, ApiError, AssertionError, TimeoutError, RuntimeError, subprocess.SubprocessError)


def main() -> int:
    """Runs every act; 0 only if each step was seen to happen."""
    screen = Screen()
    screen.title(TITLE, INTRODUCTION)
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, interrupt))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-demo-")))
        try:
            stage = services.build(screen, stack, folder)
            for act in acts.ALL:
                act(stage)
        except (*FAILURES, ControlPlaneBinariesError) as error:
            screen.verdict(f"This step did not happen: {error}", good=False)
            return 1
        except KeyboardInterrupt:
            return 130
    screen.verdict("Every step above was checked as it happened.", good=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
