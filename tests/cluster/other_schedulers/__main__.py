"""The trial of other stacks' own schedulers: `python -m tests.cluster.other_schedulers STACK --checkout FOLDER ...`.

The control plane is that of the cluster tests, with FairGPU in the mode `account`. The stack's programs are built by
the one who runs this, from a checkout of their project: the module proxies that CI uses do not serve them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from demo.screen import Screen
from fairgpu.cluster.api import ApiError
from tests.cluster.account.installed import installed_account
from tests.cluster.control_plane.build import ControlPlaneBinariesError, control_plane_binaries
from tests.cluster.control_plane.control_plane import running_control_plane
from tests.cluster.other_schedulers import hami, kai, volcano
from tests.cluster.other_schedulers.sources import SourcesError, program, version
from tests.cluster.other_schedulers.trial import Trial

STACKS = {
    "hami": (hami.PROGRAMS, hami.running_hami),
    "kai": (tuple(kai.PROGRAMS), kai.running_kai),
    "volcano": (volcano.PROGRAMS, volcano.running_volcano),
}
"""The programs of each stack, and what runs them."""
FAILURES = (ApiError, AssertionError, TimeoutError, RuntimeError, subprocess.SubprocessError)


def main() -> int:
    """Takes every step of a stack's trial; 0 only if each was seen to happen."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.other_schedulers", description=__doc__)
    parser.add_argument("stack", choices=sorted(STACKS))
    parser.add_argument("--checkout", type=Path, required=True, help="the project's source, of the version to try")
    parser.add_argument("--programs", type=Path, required=True, help="the folder with the programs built from it")
    given = parser.parse_args()
    screen = Screen()
    programs, running = STACKS[given.stack]
    try:
        version(given.checkout)
        for name in programs:
            program(given.programs, name)
        with (
            running_control_plane(control_plane_binaries(os.environ)) as plane,
            installed_account(plane),
            running(plane, given.checkout, given.programs) as stack,
        ):
            screen.title(f"{stack.name} {stack.version} beside the mode account", ())
            Trial(plane, screen, stack).run()
    except (*FAILURES, ControlPlaneBinariesError, SourcesError) as error:
        screen.verdict(f"This step did not happen: {error}", good=False)
        return 1
    screen.verdict("Every step above was checked as it happened.", good=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
