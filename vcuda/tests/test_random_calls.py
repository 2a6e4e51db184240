"""Each call of a random program (programs/random_calls.c) answers as without the shim, and nothing stays charged."""

import subprocess

import pytest
from agent import PERIOD_NS, Agent, Tenant
from node import BUILD, Node, Share, ended, give_line, until

SLICE = 80 << 30
"""All of the simulated GPU's memory, so that no call is refused with the shim alone."""
SEEDS = range(1, 5)
THREADS = (1, 5)
CALLS = 400


def printed(node: Node, name: str, page: str, *program: str, shim: bool) -> list[str]:
    """The program's lines up to "ended", by when nothing is held or charged. It then ends well."""
    container = node.container(name, Share(memory=SLICE, schedule=page, core=50))
    if not shim:
        container.settings["LD_PRELOAD"] = ""
    lines: list[str] = []
    with ended(container.start("programs/random_calls", *program)) as running:
        assert running.stdout is not None
        while lines[-1:] != ["ended\n"]:
            lines.append(running.stdout.readline())
            assert lines[-1] != "", f"it ended with {running.wait()}, at last {lines[-3:]}"
        until(lambda: node.truth(name)[0] == 0)
        until(lambda: container.charged() == container.unsettled() == 0)
        give_line(running)
        assert running.wait(timeout=60) == 0
    return lines


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_call_of_a_random_program_answers_as_without_the_shim(node: Node, seed: int, threads: int) -> None:
    """With the shim it has half of the GPU's time."""
    program, page = (str(seed), str(threads), str(CALLS)), node.folder / "page"
    without = printed(node, "without", "", *program, shim=False)
    with Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50)):
        held = printed(node, "a", str(page), *program, shim=True)
    differing = [pair for pair in zip(without, held, strict=False) if pair[0] != pair[1]]
    assert (differing[:3], len(held)) == ([], len(without))


def test_a_random_program_that_is_built_for_the_thread_sanitizer_races_for_nothing(node: Node) -> None:
    page = node.folder / "page"
    container = node.container("a", Share(memory=SLICE, schedule=str(page), core=50))
    given = {key: value for key, value in container.environment().items() if key != "LD_PRELOAD"}
    program = str(BUILD / "tests" / "programs" / "random_calls-tsan")
    command = ["setarch", "-R", program, "1", str(max(THREADS)), str(CALLS)]
    with Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),), core=50)):
        done = subprocess.run(command, env=given, input="\n", capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "ended")
