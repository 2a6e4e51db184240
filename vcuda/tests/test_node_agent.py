"""The node agent's own writer beside the shim: turns, and what the driver holds by NVML."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, asked, ended, until, uuid

SLOT_AT, SLOT_SIZE = 120, 80


def listed(node: Node, *containers: dict[str, object]) -> None:
    """Gives the writer these containers, at once."""
    following = node.folder / "containers.json.new"
    following.write_text(json.dumps({"uuid": uuid(), "containers": containers}))
    following.rename(node.folder / "containers.json")


def entry(container: Container, *pids: int, slot: int = 0, core: int = 100) -> dict[str, object]:
    """Returns the entry of a container, with these processes in its cgroup."""
    cgroup = container.folder / "cgroup"
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    one = {"slot": slot, "key": 1000 + slot, "corePercent": core, "policy": "hard", "ledger": str(container.ledger)}
    return {**one, "cgroup": str(cgroup)}


@contextmanager
def written(node: Node, *containers: dict[str, object], errors: TextIO | None = None) -> Iterator[Path]:
    """The writer of the page, with these containers."""
    page = node.folder / "page"
    listed(node, *containers)
    command = [sys.executable, "-m", "nodeagent.schedule", "--page", str(page), "--containers"]
    settings = {"LD_LIBRARY_PATH": str(node.driver), "SIMGPU_DIR": str(node.folder / "gpu")}
    command.append(str(node.folder / "containers.json"))
    environment = os.environ | settings
    with ended(subprocess.Popen(command, cwd=BUILD.parent.parent, env=environment, stderr=errors, text=True)):
        until(lambda: page.exists() and page.read_bytes()[:7] == b"FGSCHED")
        yield page


def driver_bytes(page: Path) -> int:
    """Returns the bytes that the driver holds for the first slot, as the page says."""
    return int.from_bytes(page.read_bytes()[SLOT_AT:][16:24], "little")


def driver_sampled(page: Path) -> int:
    """The instant at which the driver was last asked about the first slot."""
    return int.from_bytes(page.read_bytes()[SLOT_AT:][24:32], "little")


def test_the_page_says_what_the_driver_holds_and_the_shim_charges_it(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    page.touch()
    os.truncate(page, 7296)  # it is there before the container starts
    with ended(container.start("actor")) as actor, written(node, entry(container, actor.pid)):
        assert [asked(actor, line)[0] for line in ("init", "ctx", f"alloc a {300 * MIB}")] == [0, 0, 0]
        until(lambda: driver_bytes(page) == node.truth("a")[0] == 556 * MIB)
        until(lambda: asked(actor, "info")[1] == (1024 - 556) * MIB)
        assert asked(actor, f"alloc b {500 * MIB}")[0] == OUT_OF_MEMORY
        assert asked(actor, "free a")[0] == 0
        until(lambda: driver_bytes(page) == 256 * MIB)


def test_a_process_that_goes_past_the_shim_is_logged_once_and_no_other_is(node: Node) -> None:
    container = node.container("a")
    without = container.environment()
    del without["LD_PRELOAD"]
    pipe = subprocess.PIPE
    past = subprocess.Popen([BUILD / "tests" / "actor"], env=without, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    with ended(container.start("actor")) as held, ended(past):
        for program in (held, past):
            assert [asked(program, line)[0] for line in ("init", "ctx")] == [0, 0]
        errors = node.folder / "errors"
        with errors.open("w") as stream, written(node, entry(container, held.pid, past.pid), errors=stream):
            until(lambda: errors.read_text() != "")
            looked_at = driver_sampled(node.folder / "page")
            until(lambda: driver_sampled(node.folder / "page") > looked_at)
    (line,) = errors.read_text().splitlines()
    fields = {"event": "schedule.process_without_slot", "slot": 0, "pid": past.pid, "bytes": 256 * MIB}
    assert json.loads(line) == fields


def test_a_container_that_comes_later_is_asked_about_as_well(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(context=64 * MIB, schedule=str(page)))
    page.touch()
    os.truncate(page, 7296)
    with written(node), ended(container.start("actor")) as actor:
        listed(node, entry(container, actor.pid))
        assert [asked(actor, line)[0] for line in ("init", "ctx")] == [0, 0]
        until(lambda: driver_bytes(page) == 256 * MIB)


def test_memory_of_a_killed_process_is_free_once_nvml_says_so(node: Node) -> None:
    page = node.folder / "page"
    node.settings["SIMGPU_TEARDOWN_MS"] = "300"
    container = node.container("a", Share(schedule=str(page)))
    with ended(container.start("actor")) as victim, written(node, entry(container, victim.pid)):
        assert [asked(victim, line)[0] for line in ("init", "ctx", f"alloc a {700 * MIB}")] == [0, 0, 0]
        until(lambda: driver_bytes(page) == 956 * MIB)
        victim.kill()
        victim.wait()
        with container.session() as ask:
            assert ask("init")[0] == 0
            until(lambda: ask("ctx")[0] == 0)
            until(lambda: ask(f"alloc a {700 * MIB}")[0] == 0)
            assert node.truth("a")[1] <= 1024 * MIB


def test_managed_memory_of_one_container_keeps_no_memory_of_anothers_dead(node: Node) -> None:
    page = node.folder / "page"
    node.settings["SIMGPU_MANAGED_RESIDENT"] = "1"
    container = node.container("a", Share(core=50, schedule=str(page)))
    other = node.container("b", Share(core=50, slot=1, schedule=str(page)))
    page.touch()
    os.truncate(page, 7296)
    started = [each.start("actor") for each in (container, container, other)]
    with ended(started[0]) as victim, ended(started[1]) as successor, ended(started[2]) as neighbour:
        ours = entry(container, victim.pid, successor.pid, core=50)
        with written(node, ours, entry(other, neighbour.pid, slot=1, core=50)):
            for program in (victim, neighbour):
                assert [asked(program, line)[0] for line in ("init", "ctx")] == [0, 0]
            until(lambda: driver_bytes(page) == 256 * MIB)  # what comes now is not taken for the driver's own
            for program, kind in ((victim, "alloc"), (neighbour, "managed")):
                assert asked(program, f"{kind} a {700 * MIB}")[0] == 0
            until(lambda: driver_bytes(page) == 956 * MIB)
            victim.kill()
            victim.wait()
            assert asked(successor, "init")[0] == 0
            until(lambda: asked(successor, "ctx")[0] == 0)
            until(lambda: asked(successor, f"alloc a {700 * MIB}")[0] == 0)
            assert node.truth("a")[1] <= 1024 * MIB


@pytest.mark.parametrize("line", ["info", f"module m {4 * MIB}", f"library l {4 * MIB}", "executables 1", "newctx"])
def test_calls_that_ask_for_or_take_memory_of_the_drivers_own_want_a_sample(node: Node, line: str) -> None:
    container = node.container("a", Share(memory=8192 * MIB))

    def wanted_ns() -> int:
        with container.ledger.open("rb") as ledger:
            return int.from_bytes(ledger.read(4096)[64 + 48 :][:8], "little")

    with container.session() as ask:
        assert [ask(each)[0] for each in ("init", "ctx")] == [0, 0]
        before_ns = wanted_ns()
        assert before_ns > 0, "the context"
        assert [ask("sleep 101")[0], ask(line)[0]] == [0, 0]
        assert before_ns + 101_000_000 <= wanted_ns() <= time.monotonic_ns()
