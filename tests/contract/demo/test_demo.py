from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from demo import demonstration, sections
from demo.children import StepError
from demo.environment import Environment
from fairgpu.commands import CommandError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.patient

FAIRGPU = Path(sysconfig.get_path("scripts")) / "fairgpu"
LIMIT_SECONDS = 800

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `fairgpu demo` in a session of its own, by which all its processes can be found."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [FAIRGPU, "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        for member in in_session(process.pid):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(member, signal.SIGKILL)
        process.wait(LIMIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def in_session(leader: int) -> list[int]:
    """The processes that live in a session."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry.name))
    return members


def test_every_step_happens_and_nothing_is_left_running_or_shown(start: Start, tmp_path: Path) -> None:
    process = start("--keep", str(tmp_path / "demo"))
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output
    for sign in (
        "7 pods admitted over TLS",
        "grace begins: the next pod is admitted as before",
        "its class is gpu-over-budget",
        "granted 0.050000 GPU-hours to budget research",
        "the next pod is gpu-in-budget",
        "the timekeeper lifted the gate",
        "fairgpu.io/gpu-core]: given 150 percent",
        "to the last one",
        "Every step above was checked as it happened.",
    ):
        assert sign in output
    assert "\x1b" not in output
    wait_until(lambda: in_session(process.pid) == [], "nothing is left running")
    assert_no_token_was_logged(tmp_path / "demo", output)


def assert_no_token_was_logged(folder: Path, output: str) -> None:
    files = [*(folder / "usage").glob("*.token"), folder / "webhook-token"]
    tokens = [file.read_text() for file in files]
    logs = output + "".join(file.read_text(errors="replace") for file in (folder / "logs").iterdir())
    assert len(tokens) == 8
    assert not any(token in logs or token.rpartition(".")[2] in logs for token in tokens)


def test_asked_to_end_it_ends_all_that_it_started(start: Start, tmp_path: Path) -> None:
    process = start("--keep", str(tmp_path / "demo"))
    redis = tmp_path / "demo" / "redis" / "socket"
    wait_until(lambda: redis.exists() or process.poll() is not None, "its Redis listens", LIMIT_SECONDS)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    wait_until(lambda: in_session(process.pid) == [], "nothing is left running")


def test_killed_it_takes_all_that_it_started_along(start: Start, tmp_path: Path) -> None:
    process = start("--keep", str(tmp_path / "demo"))
    redis = tmp_path / "demo" / "redis" / "socket"
    wait_until(lambda: redis.exists() or process.poll() is not None, "its Redis listens", LIMIT_SECONDS)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    wait_until(lambda: in_session(process.pid) == [], "nothing is left running")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StepError("the sun did not rise"), "the sun did not rise"),
        (subprocess.TimeoutExpired(["fairgpu", "usage"], 120), "timed out after 120 seconds"),
        (KeyError("state"), "an answer or an object lacks 'state'"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ValueError("'closed' is not a valid BudgetState"), "'closed' is not a valid BudgetState"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_step_that_does_not_happen_fails_the_demonstration(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(_environment: Environment) -> None:
        raise error

    monkeypatch.setattr(sections, "ALL", (never,))
    assert demonstration.run(None) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "This step did not happen: " in printed
    assert said in printed


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="file/demo cannot be made: Not a directory"):
        demonstration.run(str(tmp_path / "file" / "demo"))


def test_a_folder_that_is_there_is_left_alone(start: Start, tmp_path: Path) -> None:
    process = start("--keep", str(tmp_path))
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "is there already; name a new folder" in output
    assert list(tmp_path.iterdir()) == []
