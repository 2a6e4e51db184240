"""Memory pools are charged by what they have reserved, to their device, and never past the limit."""

import subprocess
from collections.abc import Callable

import pytest
from agent import Agent, Tenant
from node import BUILD, MIB, OUT_OF_MEMORY, Node, Share, until

CONTEXT = 256 * MIB
INVALID_DEVICE = 101
Ask = Callable[[str], list[int]]


def begun(ask: Ask) -> None:
    assert [ask("init")[0], ask("ctx")[0]] == [0, 0]


def test_pools_are_charged_by_what_they_reserve(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask(f"async a {40 * MIB}")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"async b {800 * MIB}")[0] == OUT_OF_MEMORY
        assert ask("freeasync a")[0] == ask("trim")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT


def test_a_pool_of_a_part_of_a_device_takes_the_devices_memory(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask("partpool 1")[0], ask(f"from a {40 * MIB} 1")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"from b {800 * MIB} 1")[0] == OUT_OF_MEMORY


def test_the_drivers_own_pool_of_the_hosts_memory_takes_none_of_a_device(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask("hostpool 1")[0], ask(f"from a {4096 * MIB} 1")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT
        assert [ask("freeasync a")[0], ask(f"alloc b {768 * MIB}")[0]] == [0, 0]


def test_a_pool_that_the_driver_refuses_to_destroy_is_still_its_devices(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    container = node.container("a", Share(), Share(ordinal=1, slot=1), SIMGPU_FAULTS="cuMemPoolDestroy:1:error=999")
    with container.session() as ask:
        begun(ask)
        assert [ask("newpool 1 1")[0], ask("endpool 1")[0], ask(f"from a {40 * MIB} 1")[0]] == [0, 999, 0]
        assert [container.charged(0), container.charged(1)] == [CONTEXT, 64 * MIB]


def test_any_number_of_pools_is_charged(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"newpool {i} 0")[0] for i in range(300)] == [0] * 300
        assert ask(f"from a {40 * MIB} 299")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert ask(f"from b {900 * MIB} 7")[0] == OUT_OF_MEMORY


def test_a_pool_of_managed_memory_is_charged_to_the_current_device(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask("managedpool 1")[0], ask(f"from a {40 * MIB} 1")[0]] == [0, 0]
        assert container.charged() == CONTEXT + 64 * MIB
        assert ask(f"from b {900 * MIB} 1")[0] == OUT_OF_MEMORY


def test_memory_comes_from_the_pool_that_the_program_has_set(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = [f"async a {40 * MIB}", "newpool 1 0", "setpool 1", f"async b {40 * MIB}"]
        assert [ask(line)[0] for line in lines] == [0] * 4
        assert ask("reserved 1")[1] == 64 * MIB
        assert container.charged() == node.truth("a")[0] == CONTEXT + 2 * 64 * MIB


def test_a_pool_that_grows_past_the_limit_is_taken_back(node: Node) -> None:
    node.settings["SIMGPU_POOL_STEP_MIB"] = "128"
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert ask(f"alloc a {650 * MIB}")[0] == 0
        assert ask(f"async b {10 * MIB}")[0] == OUT_OF_MEMORY, "ten would fit; what the driver takes for them does not"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 650 * MIB
        assert [ask("free a")[0], ask(f"async b {10 * MIB}")[0]] == [0, 0]
        assert container.charged() == node.truth("a")[0] == CONTEXT + 128 * MIB
        assert ask(f"alloc a {700 * MIB}")[0] == OUT_OF_MEMORY
        assert ask(f"async c {100 * MIB}")[0] == 0, "of what the pool has already"
        assert container.charged() == node.truth("a")[0] == CONTEXT + 128 * MIB
        assert container.unsettled() == 0


@pytest.mark.parametrize("when", ["allocates", "releases"])
def test_a_pool_that_grows_past_the_limit_is_taken_back_if_the_helper_looks_at_it_meanwhile(
    node: Node, when: str
) -> None:
    given = {name: value for name, value in node.container("a").environment().items() if name != "LD_PRELOAD"}
    command = [str(BUILD / "tests" / "unit" / "pools_overtaken"), when]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(OUT_OF_MEMORY), "0", "0"]


def test_a_pool_that_is_full_of_free_memory_serves_when_nothing_more_may_be_reserved(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        lines = ["newpool 1 0", f"keep 1 {256 * MIB}", f"from a {256 * MIB} 1", "freeasync a", f"alloc b {500 * MIB}"]
        assert [ask(line)[0] for line in lines] == [0] * len(lines)
        assert container.charged() == 1012 * MIB
        assert ask(f"from a {200 * MIB} 1")[0] == 0
        assert container.charged() == node.truth("a")[0] == 1012 * MIB


def test_a_pool_is_charged_to_the_device_that_it_was_made_for(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    container = node.container("a", Share(), Share(ordinal=1, slot=1))
    with container.session() as ask:
        begun(ask)
        assert [ask("newpool 1 1")[0], ask(f"from a {40 * MIB} 1")[0]] == [0, 0]
        assert [container.charged(0), container.charged(1)] == [CONTEXT, 64 * MIB]
        assert [ask("freeasync a")[0], ask("endpool 1")[0]] == [0, 0]
        assert [container.charged(0), container.charged(1)] == [CONTEXT, 0]


def test_a_devices_default_pool_is_charged_to_that_device(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "3"
    container = node.container("a", Share(), Share(ordinal=1, slot=1))
    with container.session() as ask:
        begun(ask)
        assert ask(f"fromdefault a {40 * MIB} 1")[0] == 0
        assert [container.charged(0), container.charged(1)] == [CONTEXT, 64 * MIB]
        assert ask(f"fromdefault b {40 * MIB} 2")[0] == OUT_OF_MEMORY, "that device is somebody else's"


def test_a_pool_on_a_device_of_somebody_else_is_refused(node: Node) -> None:
    node.settings["SIMGPU_DEVICES"] = "2"
    assert node.container("a").run("init", "ctx", "newpool 1 1")[-1] == [INVALID_DEVICE, 0, 0]


def test_memory_that_a_pool_no_longer_keeps_is_given_back_without_a_trim(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask("newpool 1 0")[0], ask(f"keep 1 {512 * MIB}")[0], ask(f"from a {40 * MIB} 1")[0]] == [0, 0, 0]
        assert ask("freeasync a")[0] == 0
        assert container.charged() == node.truth("a")[0] == CONTEXT + 64 * MIB
        assert [ask("keep 1 0")[0], ask("wait")[0]] == [0, 0]
        assert node.truth("a")[0] == CONTEXT
        until(lambda: container.charged() == CONTEXT)


def test_memory_of_a_pool_freed_as_plain_memory_is_discharged(node: Node) -> None:
    container = node.container("a")
    with container.session() as ask:
        begun(ask)
        assert [ask(f"async a {40 * MIB}")[0], ask("free a")[0], ask("wait")[0]] == [0, 0, 0]
        until(lambda: container.charged() == node.truth("a")[0] == CONTEXT)


def test_what_a_destroyed_pool_had_given_is_charged_until_it_is_freed(node: Node) -> None:
    page = node.folder / "page"
    with Agent(node, page, Tenant("a", 0)), node.container("a", Share(schedule=str(page))).session() as ask:
        begun(ask)
        for _ in range(12):
            assert [ask("newpool 1 0")[0], ask(f"from a {64 * MIB} 1")[0], ask("endpool 1")[0]] == [0, 0, 0]
            assert node.truth("a")[0] == CONTEXT + 64 * MIB
            assert ask(f"alloc b {768 * MIB}")[0] == OUT_OF_MEMORY, "64 of them are in use"
            assert ask("freeasync a")[0] == 0
            assert node.truth("a")[0] == CONTEXT
            until(lambda: ask("info")[1] == 768 * MIB)


@pytest.mark.parametrize("order", ["before", "after"])
def test_memory_freed_in_a_context_that_ends_while_the_driver_is_asked_about_another_is_discharged_at_once(
    node: Node, order: str
) -> None:
    container = node.container("a")
    given = {name: value for name, value in container.environment().items() if name != "LD_PRELOAD"}
    command = [str(BUILD / "tests" / "unit" / "frees_overtaken"), order]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", str(64 * MIB), "0", "0"]
