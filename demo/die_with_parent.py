"""Runs a program that the kernel kills when the parent process ends, even if the parent is killed.

Arguments: the parent's process id, then the program and its arguments. Run with `python -I -S`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); kept across execve

ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):  # the parent ended before the call above
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - to become another program is what this is for
