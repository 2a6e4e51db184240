"""A service ends by SIGTERM and SIGINT, whatever its main thread does when they come."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.waiting import LIMIT_S

INTERRUPTED_WITH_THE_LOCK = """
import os, sys, threading
from fairgpu.signals import call_at_end

lock, ended = threading.Lock(), threading.Event()

def end():
    with lock:
        ended.set()

call_at_end(end)
with lock:
    os.kill(os.getpid(), int(sys.argv[1]))
ended.wait()
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_main_thread_has_the_lock_that_ending_needs(number: signal.Signals) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WITH_THE_LOCK, str(int(number))]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert process.stdout == "ended\n"
