"""Runs the demonstration; then ends its processes, and removes its files unless they are to be kept."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from demo import sections
from demo.children import Children, StepError
from demo.environment import Environment
from demo.folder import Folder
from demo.gpus import Gpus
from demo.screen import Screen
from fairgpu.commands import CommandError

TITLE = "FairGPU in half a minute"
INTRODUCTION = (
    "Real: Redis, the timekeeper, the webhook, a sidecar for each pod, TLS and signed tokens between them.",
    "Played by this program: the API server, kube-scheduler, the kubelet and a node with four A100 GPUs.",
)


def run(keep: str | None) -> int:
    """Runs the sections of the demonstration, up to the first step that fails; returns 0 if none fails, else 1.

    Args:
        keep: the path of a new folder in which all files and logs stay; None to remove them.

    Raises:
        CommandError: the folder to keep exists already, or cannot be made.
    """
    screen = Screen()
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, interrupt))
        root = _root(keep, stack)
        folder = Folder(root)
        folder.logs.mkdir()
        children = stack.enter_context(Children(folder.logs))
        gpus = Gpus()
        stack.callback(gpus.stop)
        gpus.start()
        screen.title(TITLE, INTRODUCTION)
        environment = Environment(screen, folder, children, gpus)
        try:
            for section in sections.ALL:
                section(environment)
        except (StepError, subprocess.SubprocessError, OSError, ValueError) as error:
            screen.verdict(f"This step did not happen: {error}", good=False)
            return 1
        except KeyError as error:
            screen.verdict(f"This step did not happen: an answer or an object lacks {error}", good=False)
            return 1
    screen.verdict("Every step above was checked as it happened.", good=True)
    screen.say("Next: docs/install.md puts this on a cluster; docs/charges.md says what a pod costs.")
    return 0


def _root(keep: str | None, stack: ExitStack) -> Path:
    if keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairgpu-demo-")))
    root = Path(keep).absolute()
    try:
        root.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise CommandError(f"{root} is there already; name a new folder") from error
    except OSError as error:
        raise CommandError(f"{root} cannot be made: {error.strerror}") from error
    return root


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Ends the demonstration as Ctrl-C does, so that all child processes end, too."""
    raise KeyboardInterrupt
