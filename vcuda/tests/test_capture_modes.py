"""No capture can forbid what the shim asks the driver for itself, and the program's own calls come in its own mode."""

import pytest
from agent import PERIOD_NS, Agent, Tenant
from deck_programs import DECK, WAITING, Program
from node import BUILD, MIB, OUT_OF_MEMORY, Container, Node, Share, ended
from test_locks import LINES, OTHERS

SEES = BUILD / "tests" / "unit" / "modes_seen.so"


def watched(node: Node) -> Container:
    """A container whose programs say in which capture mode the shim calls the driver."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=((0, PERIOD_NS // 2),)))
    return node.container("a", Share(8192 * MIB, schedule=str(page)), SIMGPU_TOOL=str(SEES))


def answers(container: Container, lines: tuple[str, ...]) -> tuple[list[int], dict[str, set[str]]]:
    """Returns an actor's answers to the lines, and the modes that were seen."""
    out, errors = container.start("actor").communicate("".join(f"{line}\n" for line in lines), timeout=120)
    return [int(line.split()[0]) for line in out.splitlines()], modes(errors)


def modes(errors: str) -> dict[str, set[str]]:
    """The modes of each call of the shim's own, or what is wrong with one of the program's."""
    lines = [line.split(" ", 1) for line in errors.splitlines()]
    return {name: {mode for each, mode in lines if each == name} for name, _ in lines}


def in_another(asked: dict[str, set[str]]) -> dict[str, set[str]]:
    """Those that are not made in the relaxed mode alone."""
    return {name: seen for name, seen in asked.items() if seen != {"relaxed"}}


@pytest.mark.parametrize("program", [*DECK.values(), *WAITING, *OTHERS], ids=" ".join)
def test_no_program_makes_the_shim_ask_in_a_mode_in_which_a_capture_could_forbid_it(
    node: Node, program: Program
) -> None:
    with ended(watched(node).start(f"programs/{program[0]}", *program[1:])) as running:
        out, errors = running.communicate(timeout=120)
    asked = modes(errors)
    assert (out.split()[0], in_another(asked)) == ("0", {})
    assert "cuEventRecord" in asked, "what the shim asks for itself is seen"


def test_nor_does_any_call_that_takes_or_gives_back_memory(node: Node) -> None:
    results, asked = answers(watched(node), tuple(line for several in LINES for line in several))
    assert (set(results), in_another(asked)) == ({0}, {})
    assert asked.keys() >= {"cuEventQuery", "cuMemPoolTrimTo"}


def test_nor_does_a_copy_that_leaves_it_to_its_addresses_what_it_copies(node: Node) -> None:
    out, errors = watched(node).start("copies", "cuMemcpyAsync", str(64 * MIB), "captured").communicate(timeout=120)
    asked = modes(errors)
    assert (out.split()[0], in_another(asked), "cuPointerGetAttributes" in asked) == ("0", {}, True)


def test_nor_one_that_is_refused_after_its_pool_grew_past_the_limit(node: Node) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "128"
    lines = ("init", "ctx", f"alloc a {8192 * MIB - 374 * MIB}", f"async b {10 * MIB}", "free a", f"async b {10 * MIB}")
    results, asked = answers(watched(node), lines)
    assert (results, in_another(asked)) == ([0, 0, 0, OUT_OF_MEMORY, 0, 0], {})
    assert "cuMemPoolTrimTo" in asked
