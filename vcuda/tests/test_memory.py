"""A container cannot hold more device memory than it was given, and sees no more than that."""

import fcntl

import pytest
from node import BUILD, MIB, OUT_OF_MEMORY, SANITIZERS, Container, Node, Share


def test_a_program_sees_a_gpu_of_the_size_of_its_slice(node: Node) -> None:
    container = node.container("a", Share(memory=4096 * MIB))
    answers = container.run("init", "ctx", "total 0", "info")
    assert answers[2:] == [[0, 4096 * MIB, 0], [0, 3840 * MIB, 4096 * MIB]]


def test_allocations_stop_at_the_limit_as_on_a_smaller_gpu(node: Node) -> None:
    container = node.container("a", Share(memory=1024 * MIB))
    answers = container.run("init", "ctx", f"alloc a {768 * MIB}", "alloc b 1", "free a", "alloc b 1", "info")
    assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY, 0, 0, 0]
    assert answers[-1][1:] == [766 * MIB, 1024 * MIB]
    assert node.truth("a")[1] == 1024 * MIB


def test_freed_memory_is_there_again(node: Node) -> None:
    container = node.container("a", Share(memory=1024 * MIB))
    answers = container.run("init", "ctx", *[f"alloc a {700 * MIB}", "free a"] * 5, "info")
    assert {answer[0] for answer in answers} == {0}
    assert answers[-1][1] == 768 * MIB


def test_small_allocations_that_share_a_block_are_charged_once(node: Node) -> None:
    container = node.container("a")
    allocations = [f"alloc a{i} {300 * 1024}" for i in range(12)]
    answers = container.run("init", "ctx", *allocations, "info", *[f"free a{i}" for i in range(12)], "info")
    assert answers[14][1] == 768 * MIB - 6 * MIB  # two blocks, and one set aside for the next
    assert answers[-1][1] == 768 * MIB


def test_processes_of_a_container_share_its_limit(node: Node) -> None:
    container = node.container("a", Share(memory=1024 * MIB))
    with container.session() as ask:
        assert [ask(line)[0] for line in ("init", "ctx", f"alloc a {400 * MIB}")] == [0, 0, 0]
        answers = container.run("init", "ctx", f"alloc a {200 * MIB}", f"alloc a {100 * MIB}")
    assert [answer[0] for answer in answers] == [0, 0, OUT_OF_MEMORY, 0]


def test_the_process_that_makes_the_ledger_leaves_it_unlocked_for_those_that_begin_at_once(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask, container.ledger.open("rb") as ledger:
        assert ask("init")[0] == 0
        fcntl.flock(ledger, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_context_that_does_not_fit_is_refused(node: Node) -> None:
    container = node.container("a", Share(memory=128 * MIB))
    assert container.run("init", "ctx") == [[0, 0, 0], [OUT_OF_MEMORY, 0, 0]]


def test_ending_a_context_frees_all_that_was_in_it(node: Node) -> None:
    container = node.container("a")
    lines = ["init", *["newctx", f"alloc a {500 * MIB}", "alloc b 1000", "endctx"] * 3]
    assert {answer[0] for answer in container.run(*lines)} == {0}
    assert container.charged() == 0


def test_nothing_is_charged_once_the_program_has_ended(node: Node) -> None:
    container = node.container("a")
    assert {a[0] for a in container.run("init", "ctx", f"alloc a {500 * MIB}", "free a", "release")} == {0}
    assert container.charged() == 0


def test_a_program_that_ends_says_so_in_the_ledger_whatever_it_still_has(node: Node) -> None:
    container = node.container("a")
    assert container.run("init", "ctx", f"alloc a {100 * MIB}")[-1][0] == 0
    assert container.living() == 0
    assert container.charged() == 356 * MIB, "until the node has seen the driver release it"


def test_managed_and_pitched_memory_count_too(node: Node) -> None:
    container = node.container("a", Share(memory=512 * MIB))
    answers = container.run("init", "ctx", f"managed a {200 * MIB}", f"pitch b 1000 {60 * 1024}", "free a", "info")
    assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY, 0, 0]
    assert answers[-1][1] == 256 * MIB


def test_a_fork_has_a_place_of_its_own_in_the_ledger(node: Node) -> None:
    container = node.container("a")
    answers = container.run("fork", "init", "ctx", f"alloc a {100 * MIB}", "info")
    assert answers[-1][1:] == [668 * MIB, 1024 * MIB]


@pytest.mark.parametrize("kernel", ["of today", "that wipes no page in a fork"])
def test_a_child_that_ends_leaves_its_parents_place_alone(node: Node, kernel: str) -> None:
    container = node.container("a")
    if kernel != "of today":
        libraries = [*SANITIZERS, str(BUILD / "tests" / "unit" / "no_wipe.so"), str(container.library)]
        container.settings["LD_PRELOAD"] = ":".join(libraries)
    with container.session() as ask:
        lines = ["init", "ctx", f"alloc a {100 * MIB}", "child"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == node.truth("a")[0] == 356 * MIB
        assert ask("compute3 0 64") == [0, 1, ask("pid")[1]], "the parent lives"
        assert ask("free a")[0] == 0
        assert container.charged() == node.truth("a")[0] == 256 * MIB


def test_a_container_without_a_config_is_left_alone(node: Node) -> None:
    container = node.container("a")
    container.config.unlink()
    answers = container.run("init", "ctx", f"alloc a {4096 * MIB}", "info")
    assert [answer[0] for answer in answers] == [0, 0, 0, 0]
    assert answers[-1][2] == 81920 * MIB


def started_without(container: Container) -> tuple[str, str]:
    actor = container.start("actor")
    return actor.communicate("init\n", timeout=240)


def test_a_missing_config_where_there_must_be_one_refuses_cuda_with_one_line(node: Node) -> None:
    container = node.container("a", VCUDA_INJECTED=__file__)
    container.config.unlink()
    out, errors = started_without(container)
    assert out == "802 0 0\n"
    assert errors.count("\n") == 1
    assert "is missing in a FairGPU container" in errors
