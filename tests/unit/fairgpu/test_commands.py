"""The `fairgpu` command where not all of it is installed: each service's packages are an extra."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, metadata
from pathlib import Path

import pytest

from fairgpu import commands

OF_SERVICES = {
    "admit -f x": "webhook",
    "webhook serve": "webhook",
    "audit": "timekeeper",
    "timekeeper serve": "timekeeper",
    "timekeeper jobs": "timekeeper",
    "timekeeper months list": "timekeeper",
    "demo": "demo,scheduler,timekeeper,webhook",
}
OF_THE_CLIENT = ("budget list", "budget get a", "grant a 1 --reason x", "sessions", "usage")


def lacking(extras: dict[str, str]) -> argparse.ArgumentParser:
    """A parser whose one command imports what is not there."""

    def run(_arguments: argparse.Namespace) -> int:
        raise ModuleNotFoundError("No module named 'orjson'", name="orjson")

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run, **extras)
    return parser


def test_a_command_whose_packages_are_not_installed_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "build_parser", lambda: lacking({"extras": "webhook"}))
    assert commands.main([]) == 2
    missing = "fairgpu: this command needs the package orjson, which is not installed"
    assert capsys.readouterr().err == f"{missing}; in a checkout of FairGPU: pip install '.[webhook]'\n"


def test_a_command_that_needs_no_extra_has_a_fault_where_it_lacks_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "build_parser", lambda: lacking({}))
    with pytest.raises(ModuleNotFoundError):
        commands.main([])


def test_commands_of_a_package_that_is_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = EntryPoint("absent", "a_package_that_no_image_has.commands:register", commands.COMMAND_GROUP)
    client = EntryPoint("client", "fairgpu.client.commands:register", commands.COMMAND_GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda **_: (absent, client))
    assert commands.build_parser().parse_args(["usage"]).run


def test_a_package_that_lacks_one_of_its_own_modules_has_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "fairgpu.no_such_module:register", commands.COMMAND_GROUP)
    monkeypatch.setattr(commands, "entry_points", lambda **_: (broken,))
    with pytest.raises(ModuleNotFoundError):
        commands.build_parser()


@pytest.mark.parametrize("command", OF_SERVICES)
def test_a_services_command_names_extras_that_there_are(command: str) -> None:
    extras = commands.build_parser().parse_args(command.split()).extras
    assert extras == OF_SERVICES[command]
    assert set(extras.split(",")) <= set(metadata("fairgpu").get_all("Provides-Extra") or ())


@pytest.mark.parametrize("command", OF_THE_CLIENT)
def test_the_clients_commands_need_no_extra(command: str) -> None:
    assert not hasattr(commands.build_parser().parse_args(command.split()), "extras")


@pytest.mark.parametrize(
    "command",
    [
        ["budget", "get", ""],
        ["budget", "get", "-n", ""],
        ["sessions", "-n", " "],
        ["usage", "-n", ""],
        ["correct", "a", "1", "--period", "2026-01-15", "--reason", "x", "-n", ""],
    ],
    ids=" ".join,
)
def test_an_unset_variable_of_a_shell_is_no_name(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        commands.build_parser().parse_args(command)
    assert ending.value.code == 2
    assert "allowed: a name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "what a pod waits for"), (["budget"], "one budget, or what pays")]
)
def test_without_a_command_those_that_there_are_are_shown(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("lines", [1, 100_000], ids=["in the buffer", "past what a pipe holds"])
def test_a_command_whose_reader_has_ended_ends_as_by_sigpipe_and_without_a_trace(tmp_path: Path, lines: int) -> None:
    command = (
        "import sys; from fairgpu import commands; parser = commands.argparse.ArgumentParser();"
        f"parser.set_defaults(run=lambda _: sys.stdout.write('line\\n' * {lines}) * 0);"
        "commands.build_parser = lambda: parser; sys.exit(commands.main([]))"
    )
    read, write = os.pipe()
    os.close(read)
    with (tmp_path / "stderr").open("w") as errors:
        status = subprocess.run([sys.executable, "-c", command], stdout=write, stderr=errors, check=False).returncode
    os.close(write)
    assert (status, (tmp_path / "stderr").read_text()) == (128 + signal.SIGPIPE, "")


PRINTS_ODD_LETTERS = (
    "import sys; from fairgpu import commands; parser = commands.argparse.ArgumentParser();"
    "parser.set_defaults(run=lambda _: print('caf\\u00e9 \\ud83d') or 0);"
    "commands.build_parser = lambda: parser; sys.exit(commands.main([]))"
)


def test_a_command_whose_output_has_letters_that_the_terminal_lacks_prints_their_numbers() -> None:
    terminal, its_end = os.openpty()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_ODD_LETTERS], stdout=its_end, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(its_end)
    shown = os.read(terminal, 100)
    os.close(terminal)
    assert (done.returncode, shown, done.stderr) == (0, rb"caf\xe9 \ud83d" + b"\r\n", b"")


def test_a_file_or_program_gets_the_letters_of_a_commands_output_in_utf_8() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PRINTS_ODD_LETTERS], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf\u00e9 ".encode() + rb"\ud83d" + b"\n", b"")


@pytest.mark.parametrize("command", ["webhook serve", "timekeeper serve", "timekeeper jobs", "audit"])
def test_a_file_in_the_place_of_a_standalone_folder_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit):
        commands.main([*command.split(), "--standalone", str(file)])
    assert f"given '{file}', which is no folder; allowed: a folder" in capsys.readouterr().err
