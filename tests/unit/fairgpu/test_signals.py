"""A service ends by SIGTERM and SIGINT, whatever it does when they come."""

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


WAITING_FOR_A_SILENT_SERVER = """
import os, signal, threading
from fairgpu.signals import call_at_end

asked, answered = threading.Event(), threading.Event()
call_at_end(asked.set, 0.0)
threading.Thread(target=answered.wait).start()
os.kill(os.getpid(), signal.SIGTERM)
asked.wait()
"""


def test_a_thread_that_waits_for_a_silent_server_does_not_keep_a_process_from_ending() -> None:
    command = [sys.executable, "-c", WAITING_FOR_A_SILENT_SERVER]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (process.returncode, process.stderr) == (0, "")


STARTING_AS_FIRST_PROCESS = """
import os, signal, time
from fairgpu import commands

process = os.getpid()
os.getpid = lambda: 1

def find_commands():
    os.kill(process, signal.SIGTERM)
    time.sleep(0)
    return "goes on"

commands.build_parser = find_commands
commands.main([])
"""


def test_a_first_process_that_finds_its_commands_is_ended() -> None:
    """The kernel drops what the first process has no handler for; any other process shows it by another status."""
    command = [sys.executable, "-c", STARTING_AS_FIRST_PROCESS]
    process = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    assert process.returncode == 128 + signal.SIGTERM, process.stderr


FORKING = """
import os, signal
from fairgpu.signals import end_forked_by_default

noted = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, lambda number, _: noted.append(int(number)))

def signal_itself():
    os.kill(os.getpid(), {number})

os.register_at_fork(before=signal_itself, after_in_child=signal_itself)
end_forked_by_default()
child = os.fork()
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), *noted)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_a_process_that_is_just_forked_is_not_lost_in_its_parents_handler(number: signal.Signals) -> None:
    command = [sys.executable, "-c", FORKING.format(number=int(number))]
    process = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    of_child, *of_parent = map(int, process.stdout.split())
    assert of_child == -number
    assert of_parent == [number]
