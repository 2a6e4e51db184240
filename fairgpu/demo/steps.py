"""What the acts do again and again: check, create a pod, watch the budget, run a command of the client."""

from __future__ import annotations

import os
import subprocess
import time

from fairgpu import names
from fairgpu.demo.admission import Admitted, Json
from fairgpu.demo.children import StepError, wait_until
from fairgpu.demo.screen import Reading
from fairgpu.demo.stage import Stage, manifests, program
from fairgpu.states import BudgetState

STEP_LIMIT_SECONDS = 20.0
COMMAND_LIMIT_SECONDS = 20.0
READING_SECONDS = 0.25

MANIFEST_ANNOTATIONS = ("gpu-fraction", "nvidia-gpu-scheduler/gpu.model", names.USE_GPU_MODEL)
"""The annotations of the demonstration's manifests by which a pod asks for GPUs."""


def require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    """Raises StepError with what was seen instead."""
    if not condition:
        raise StepError(otherwise)


def accepted(admitted: Admitted, priority_class: str) -> Json:
    """The pod, which was let in with this class."""
    require(not admitted.refusal, admitted.refusal)
    spec = admitted.pod["spec"]
    require(spec.get("priorityClassName") == priority_class, f"the class is {spec.get('priorityClassName')}")
    require(spec.get("schedulerName") == names.SCHEDULER_NAME, f"the scheduler is {spec.get('schedulerName')}")
    return admitted.pod


def asks(pod: Json) -> str:
    """What a pod asks of GPUs, in the words of its own dialect."""
    annotations = pod["metadata"].get("annotations", {})
    words = [f"{key.rpartition('/')[2]} {value}" for key, value in annotations.items() if key in MANIFEST_ANNOTATIONS]
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        words += [f"{key.rpartition('/')[2]} {value}" for key, value in limits.items()]
    return ", ".join(words)


def watch(stage: Stage, state: BudgetState) -> Reading:
    """Shows the budget until it is in a state; the reading that was."""
    deadline = time.monotonic() + STEP_LIMIT_SECONDS
    with stage.screen.meter() as meter:
        while True:
            reading = stage.reading()
            meter.show(reading)
            if reading.state is state:
                return reading
            stage.children.check()
            require(time.monotonic() < deadline, f"the budget did not become {state} in time: {reading}")
            time.sleep(READING_SECONDS)


def next_pod(stage: Stage, name: str, priority_class: str, state: BudgetState) -> Admitted:
    """A pod created as soon as the webhook has heard of the state; a dry run asks whether it has."""
    document = dict(manifests())["native"]
    heard = lambda: budget_state(stage.create(name, document)) == state.value  # noqa: E731 - read once, here
    wait_until(f"the webhook has heard that the budget is {state}", heard, stage.children, STEP_LIMIT_SECONDS)
    admitted = stage.create(name, document)
    accepted(admitted, priority_class)
    return admitted


def budget_state(admitted: Admitted) -> str:
    """The state under which a pod was let in."""
    state: str = admitted.pod["metadata"].get("annotations", {}).get(names.BUDGET_STATE, "")
    return state


def command(stage: Stage, arguments: list[str], shown: str) -> None:
    """Runs a command of the client, and shows it with what it said."""
    stage.screen.command(shown)
    done = subprocess.run(  # noqa: S603 - our own command, no shell
        [program("fairgpu"), *arguments],
        env={"PATH": os.environ.get("PATH", os.defpath), **stage.client_environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_SECONDS,
    )
    require(done.returncode == 0, f"{shown} ended with {done.returncode}: {done.stderr}")
    stage.screen.output(done.stdout)
