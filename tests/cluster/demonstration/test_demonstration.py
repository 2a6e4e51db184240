from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
LIMIT_SECONDS = 800


def test_the_demonstration_happens_on_a_real_control_plane_too() -> None:
    command = [sys.executable, "-m", "tests.cluster.demonstration"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for sign in (
        "the cluster's own scheduler has placed two pods by nvidia.com/gpu",
        "nvidia with shared GPUs       1",
        "each pod is as it was",
        "those that ran before run on",
        "gpugrant.fairgpu.io/first-day created",
        "There is money for this pod again",
        "finetune   nvidia-sliced   map[nvidia.com/gpu:1]   default-scheduler   map[fairgpu.io/pod:gpu]",
        "namespace/research labeled",
        "gpubudget.fairgpu.io/research created",
        "7 pods admitted by the API server",
        "7 pods share four GPUs, and none holds more of one than there is",
        "its class is gpu-over-budget",
        "gpugrants.fairgpu.io is forbidden",
        "the next pod is gpu-in-budget",
        "SchedulingGated",
        'admission webhook "mutate.fairgpu.io" denied the request',
        "to the last one",
    ):
        assert sign in done.stdout
