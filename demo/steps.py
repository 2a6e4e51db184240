"""Steps that several sections share: checks, watching the budget, client commands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.admission import Admitted, Json
from demo.children import Children, StepError
from demo.screen import Reading, Screen
from fairgpu import names
from fairgpu.client import transport
from fairgpu.client.server import Server
from fairgpu.commands import CommandError
from fairgpu.states import BudgetState

STEP_LIMIT_SECONDS = 120.0
COMMAND_LIMIT_SECONDS = 120.0
READING_SECONDS = 0.25


def require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    """Checks that a condition holds.

    Args:
        condition: the condition, as a truth value.
        otherwise: the error's message.

    Raises:
        StepError: the condition does not hold.
    """
    if not condition:
        raise StepError(otherwise)


def accepted(admitted: Admitted, priority_class: str) -> Json:
    """Returns an admitted pod as JSON, after it has checked the pod's priority class and scheduler.

    Args:
        admitted: the result of the pod's admission.
        priority_class: the class that the pod must have.

    Raises:
        StepError: the pod was refused, or has another class or scheduler.
    """
    require(not admitted.refusal, admitted.refusal)
    spec = admitted.pod["spec"]
    require(spec.get("priorityClassName") == priority_class, f"the class is {spec.get('priorityClassName')}")
    require(spec.get("schedulerName") == names.SCHEDULER_NAME, f"the scheduler is {spec.get('schedulerName')}")
    return admitted.pod


def said(manifest: Json) -> str:
    """Formats what a pod's author wrote about GPUs as one line, such as `gpu: 1, gpucores: 30`.

    The line has the pod's annotations and the limits of its main containers, each key without its domain.

    Args:
        manifest: the pod as its author wrote it, as JSON.
    """
    annotations = manifest["metadata"].get("annotations", {})
    words = [f"{key.rpartition('/')[2]}: {value}" for key, value in annotations.items()]
    for container in manifest["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        words += [f"{key.rpartition('/')[2]}: {value}" for key, value in limits.items()]
    return ", ".join(words)


def meant(pod: Json) -> str:
    """Formats the canonical GPU request of an admitted pod's first container, such as `30% of a GPU, 4096 MiB`."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    core, memory = int(limits[names.GPU_CORE]), limits.get(names.GPU_MEMORY)
    models = pod["metadata"]["annotations"].get(names.USE_GPU_MODEL)
    time_share = f"{core}% of a GPU" if core else "what others leave idle"
    memory_share = f"{memory} MiB" if memory else f"{limits[names.GPU_MEMORY_PERCENTAGE]}% of its memory"
    return f"{time_share}, {memory_share}" + (f", on {models}" if models else "")


def watch(screen: Screen, children: Children, read: Callable[[], Reading], *states: BudgetState) -> Reading:
    """Shows a budget until it is in one of the given states; returns the last reading.

    Args:
        screen: the output, which shows each reading.
        children: the processes that must go on running.
        read: returns the budget as it is now.
        states: the states to wait for.

    Raises:
        StepError: the budget gets into none of the states in time, or a child process has ended.
    """
    deadline = time.monotonic() + STEP_LIMIT_SECONDS
    with screen.meter() as meter:
        while True:
            reading = read()
            meter.show(reading)
            if reading.state in states:
                return reading
            children.check()
            require(time.monotonic() < deadline, f"the budget did not become {' or '.join(states)} in time: {reading}")
            time.sleep(READING_SECONDS)


def read_budget(server: Server, budget: str, namespace: str) -> Reading:
    """Returns a budget as the timekeeper has it now.

    Args:
        server: the timekeeper, with a bearer token.
        budget: the budget's name.
        namespace: the namespace whose sessions count as the budget's use.

    Raises:
        StepError: the timekeeper refuses, or does not answer.
    """
    try:
        found = transport.get(server, f"/v1/budgets/{budget}")
        sessions = transport.get(server, f"/v1/sessions?namespace={namespace}")["sessions"]
    except CommandError as error:
        raise StepError(str(error)) from error
    return Reading(
        budget=budget,
        state=BudgetState(found["state"]),
        available=exact(found["available"]),
        spent=exact(found["spent"]),
        used=sum(exact(session["used"]) for session in sessions),
        rate=int(found["rate"]["microGPUSecondsPerSecond"]),
    )


def exact(money: Any) -> int:
    """Returns the microGPU-seconds of an amount in an answer of the REST API; 0 for None."""
    return int(money["microGPUSeconds"]) if money else 0


def run_client(screen: Screen, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Runs a command of `fairgpu`, and shows the command and its output.

    Args:
        screen: the output.
        environment: the environment of the command beside PATH.
        arguments: the command's arguments.

    Raises:
        StepError: the command failed.
        TimeoutExpired: the command has not ended within COMMAND_LIMIT_SECONDS.
    """
    shown = shlex.join(("fairgpu", *arguments))
    screen.command(shown)
    done = subprocess.run(  # noqa: S603 - our own command, no shell
        [program("fairgpu"), *arguments],
        env={"PATH": os.environ.get("PATH", os.defpath), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_LIMIT_SECONDS,
    )
    require(done.returncode == 0, f"{shown} ended with {done.returncode}: {done.stderr}")
    screen.output(done.stdout)


def program(name: str) -> str:
    """Returns the path of a command that is installed beside this interpreter."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def python_module(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module with this interpreter.

    Args:
        module: the module's name.
        arguments: the command line's arguments after the module.
    """
    return [sys.executable, "-m", module, *arguments]
