"""Files that are missing, broken or strange: CUDA is refused with one line, or the program goes on; nothing crashes."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent import SIZE as PAGE_SIZE
from agent import Agent, Tenant
from node import BUILD, LEDGER_SIZE, MIB, SANITIZERS, Container, Node, Share, asked, ended, sealed, seeded, until, uuid

sys.path.append(str(BUILD.parent.parent))
from sidecar.usage_record import decode

Ask = Callable[[str], list[int]]

LEDGER_LOCK_ENDS = 4096 + 128
"""A lock that was overwritten can be waited for in vain: that is the container's own harm."""

INVALID_DEVICE = 101
NEARLY_A_HOLD_SECONDS = 0.09


def answers_of(container: Container) -> tuple[list[str], str]:
    """Returns what a short program gets, and what it reads on standard error."""
    actor = container.start("actor")
    out, errors = actor.communicate("init\nctx\nalloc a 1000\nlaunch spin_us_10\n", timeout=240)
    assert actor.returncode == 0
    return [line.split()[0] for line in out.splitlines()], errors


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"NOTOURS", "magic"),
        (8, b"\x02", "version"),
        (16, b"\0", "device_count"),
        (16, b"\x11", "device_count"),
        (128, b"x", "ledger_path"),
        (320, b"\0", "uuid"),
        (320 + 144, bytes(8), "memory_limit_bytes"),
        (320 + 180, b"\x65", "core_percent"),
        (320 + 180, b"\0", "best-effort"),
        (320 + 184, b"\x03", "policy"),
        (320 + 176, b"\x40", "slot"),
        (12, b"\x01", "version"),
        (24, b"x" * 64, "a string has no end"),
        (88, b"x" * 40, "a string has no end"),
        (128, b"/" * 96, "a string has no end"),
        (224, b"x" * 96, "a string has no end"),
        (320, b"x" * 48, "uuid"),
        (320 + 48, b"x" * 96, "schedule_path"),
        (320 + 152, b"\xff" * 8, "memory_soft_limit_bytes"),
        (320 + 188, b"\x02", "task_priority"),
    ],
)
def test_a_config_with_a_wrong_field_is_refused_by_name(node: Node, at: int, value: bytes, reason: str) -> None:
    container = node.container("a")
    body = bytearray(container.packed()[:-4])
    body[at : at + len(value)] = value
    container.config.write_bytes(sealed(bytes(body)))
    results, errors = answers_of(container)
    assert results[0] == "802"
    assert errors.count("\n") == 1
    assert reason in errors


@pytest.mark.parametrize("size", [0, 1, 4047, 4049])
def test_a_config_of_another_size_is_refused(node: Node, size: int) -> None:
    container = node.container("a")
    container.config.write_bytes((container.packed() + b"x")[:size])
    results, errors = answers_of(container)
    assert results[0] == "802"
    assert "size" in errors


def test_a_config_with_a_wrong_checksum_is_refused(node: Node) -> None:
    container = node.container("a")
    packed = container.packed()
    container.config.write_bytes(packed[:-1] + bytes([packed[-1] ^ 1]))
    assert answers_of(container)[0][0] == "802"


def test_a_config_that_names_a_device_twice_is_refused(node: Node) -> None:
    results, errors = answers_of(node.container("a", Share(), Share(slot=1)))
    assert results[0] == "802"
    assert "two devices have the same uuid" in errors


def test_a_config_that_may_not_be_read_refuses_cuda_with_one_line(node: Node) -> None:
    """It is there: to take it for none would let the program have the whole GPU."""
    container = node.container("a")
    container.config.chmod(0)
    for folder in (container.folder, *container.folder.parents[:4]):
        folder.chmod(folder.stat().st_mode | 0o055)
    user = "65534" if os.getuid() == 0 else str(os.getuid())
    out, errors = container.start("actor").communicate(f"setuid {user}\ninit\n", timeout=240)
    assert out == "0 0 0\n802 0 0\n"
    assert errors.count("\n") == 1
    assert "Permission denied" in errors


def test_a_ledger_that_is_missing_or_of_another_size_refuses_cuda(node: Node) -> None:
    container = node.container("a")
    os.truncate(container.ledger, 100)
    results, errors = answers_of(container)
    assert results[0] == "802"
    assert "100 bytes" in errors
    container.ledger.unlink()
    assert answers_of(container)[0][0] == "802"


@pytest.mark.parametrize("at", [0, 8], ids=["magic", "version"])
def test_a_ledger_of_another_kind_or_version_refuses_cuda_with_one_line_and_stays_as_it_is(node: Node, at: int) -> None:
    container = node.container("a")
    assert answers_of(container)[0][0] == "0"
    with container.ledger.open("r+b") as ledger:
        ledger.seek(at)
        ledger.write(b"\x63")
    before = container.ledger.read_bytes()
    results, errors = answers_of(container)
    assert results[0] == "802"
    assert errors.count("\n") == 1
    assert "another version" in errors
    assert container.ledger.read_bytes() == before


def test_a_ledger_that_is_no_plain_file_refuses_cuda_with_one_line(node: Node) -> None:
    container = node.container("a")
    elsewhere = container.ledger.rename(container.folder / "elsewhere")
    for make in (lambda: container.ledger.symlink_to(elsewhere), lambda: os.mkfifo(container.ledger)):
        make()
        results, errors = answers_of(container)
        assert results[0] == "802"
        assert errors.count("\n") == 1
        container.ledger.unlink()


def test_a_ledger_that_is_refused_again_and_again_takes_no_memory(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_bytes(b"\x63")
    os.truncate(ledger, LEDGER_SIZE)
    program = str(BUILD / "tests" / "unit" / "refused_ledger")
    done = subprocess.run([program, str(ledger)], capture_output=True, text=True, check=True)
    assert done.stdout == "100 0\n", "refused so often; mapped, and left open, so often"


def test_a_ledger_in_a_full_tmpfs_refuses_cuda_with_one_line(node: Node) -> None:
    """The file is there, and has holes: to touch one would end the program."""
    container = node.container("a")
    full_disk = str(BUILD / "tests" / "unit" / "full_disk.so")
    container.settings["LD_PRELOAD"] = ":".join([*SANITIZERS, full_disk, str(container.library)])
    results, errors = answers_of(container)
    assert results[0] == "802"
    assert errors.count("\n") == 1
    assert "No space left on device" in errors


def test_a_ledger_is_made_whatever_signals_a_program_gets(node: Node) -> None:
    container = node.container("a")
    interrupted = str(BUILD / "tests" / "unit" / "interrupted.so")
    container.settings["LD_PRELOAD"] = ":".join([*SANITIZERS, interrupted, str(container.library)])
    assert [answer[0] for answer in container.run("init", "ctx")] == [0, 0]


def test_a_ledger_that_may_only_be_read_refuses_cuda_with_one_line(node: Node) -> None:
    container = node.container("a")
    container.ledger.chmod(0o444)
    for folder in (container.folder, *container.folder.parents[:4]):
        folder.chmod(folder.stat().st_mode | 0o055)
    user = "65534" if os.getuid() == 0 else str(os.getuid())
    out, errors = container.start("actor").communicate(f"setuid {user}\ninit\n", timeout=240)
    assert out == "0 0 0\n802 0 0\n"
    assert errors.count("\n") == 1
    assert "Permission denied" in errors


def test_a_config_that_names_a_gpu_which_is_not_there_gives_no_gpu(node: Node) -> None:
    container = node.container("a", Share(ordinal=7))
    assert container.run("init", "devices", "ctx") == [[0, 0, 0], [0, 0, 0], [INVALID_DEVICE, 0, 0]]


def test_usage_that_has_no_room_stops_no_program_and_is_logged_once(node: Node) -> None:
    container = node.container("a")
    path = bytes(container.usage).ljust(96, b"\0")
    body = container.packed()[:-4].replace(path, b"/dev/full".ljust(96, b"\0"))
    container.config.write_bytes(sealed(body))
    results, errors = answers_of(container)
    assert results == ["0", "0", "0", "0"]
    assert errors.count("\n") == 1
    assert "usage is not reported" in errors


def test_a_usage_file_that_cannot_be_written_stops_no_program(node: Node) -> None:
    container = node.container("a")
    container.usage.mkdir()
    results, errors = answers_of(container)
    assert results == ["0", "0", "0", "0"]
    assert errors.count("\n") == 1
    assert "usage is not reported" in errors


def test_a_usage_file_that_leads_elsewhere_is_not_followed(node: Node) -> None:
    container, elsewhere = node.container("a"), node.folder / "elsewhere"
    elsewhere.write_bytes(b"another's")
    container.usage.symlink_to(elsewhere)
    results, errors = answers_of(container)
    assert results == ["0", "0", "0", "0"]
    assert errors.count("\n") == 1
    assert "usage is not reported" in errors
    assert elsewhere.read_bytes() == b"another's"


def test_a_program_works_by_its_share_alone_without_a_page(node: Node) -> None:
    container = node.container("a", Share(core=50, schedule=str(node.folder / "none")))
    results, errors = answers_of(container)
    assert results == ["0", "0", "0", "0"]
    assert errors.count("\n") == 1
    assert "configured share alone" in errors


def test_a_page_that_comes_later_is_read_once_it_is_there(node: Node) -> None:
    """The agent makes the file, gives it its size, and fills it: each may be what a program finds."""
    page, limit = node.folder / "page", 512 * MIB
    container = node.container("a", Share(core=50, schedule=str(page)))
    with ended(container.start("actor")) as actor:
        for line in ("init", "ctx", "launch spin_us_10"):
            assert asked(actor, line)[0] == 0
        page.touch()
        assert asked(actor, "total 0")[1] == 1024 * MIB
        with Agent(node, page, Tenant("a", 0, limit=limit)):
            until(lambda: asked(actor, "total 0")[1] == limit)
        lines = actor.communicate(timeout=240)[1].splitlines()
    assert len(lines) == 2
    assert "cannot be read" in lines[0]
    assert "can be read now" in lines[1]


@pytest.mark.parametrize("size", [0, 100, PAGE_SIZE + 1])
def test_a_page_of_another_size_leaves_the_share_alone(node: Node, size: int) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    os.truncate(page, size)
    results, errors = answers_of(node.container("a", Share(core=50, schedule=str(page))))
    assert results == ["0", "0", "0", "0"]
    assert errors.count("\n") == 1
    assert "configured share alone" in errors


def test_a_page_of_a_later_version_leaves_the_share_alone(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    page.write_bytes(page.read_bytes()[:8] + b"\x02" + page.read_bytes()[9:])
    assert answers_of(node.container("a", Share(core=50, schedule=str(page)))) == (["0", "0", "0", "0"], "")


def test_a_page_on_which_the_slot_is_anothers_leaves_the_share_alone(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 3))
    container = node.container("a", Share(core=50, slot=4, schedule=str(page)))
    assert answers_of(container) == (["0", "0", "0", "0"], "")


def held_seconds(ask: Ask) -> float:
    """Returns the length of a launch."""
    began = time.monotonic()
    assert ask("launch spin_us_10")[0] == 0
    return time.monotonic() - began


def test_a_page_whose_writer_died_long_ago_holds_as_it_did(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=()))
    written = bytearray(page.read_bytes())
    heartbeat, stale_after, epoch = 1_000, 1, 1_000
    written[32:56] = struct.pack("<QQQ", heartbeat, stale_after, epoch)
    page.write_bytes(written[:32] + sealed(bytes(written[32:-4])))
    with node.container("a", Share(schedule=str(page))).session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        assert held_seconds(ask) > NEARLY_A_HOLD_SECONDS, "by its share alone it would not be held"


@pytest.mark.parametrize(("at", "value"), [(16, b"\x03"), (16, b"\x04"), (8, b"\x02"), (PAGE_SIZE - 4, bytes(4))])
def test_a_page_that_is_torn_or_changed_holds_as_its_last_good_copy(node: Node, at: int, value: bytes) -> None:
    """An odd generation, a body that is not the sum's, a later version; and with the next generation, a wrong sum."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=()))
    with node.container("a", Share(schedule=str(page))).session() as ask:
        assert [ask("init")[0], ask("ctx")[0]] == [0, 0]
        with page.open("r+b") as file:
            file.seek(100)  # of the body: the sum is wrong from now on
            file.write(b"torn")
            file.seek(16)
            file.write(b"\x04")
            file.seek(at)
            file.write(value)
        assert held_seconds(ask) > NEARLY_A_HOLD_SECONDS, "by its share alone it would not be held"


def test_a_page_that_is_no_good_is_read_once_for_each_writing(node: Node) -> None:
    """To read it takes its checksum, and launches ask for the page."""
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    with page.open("r+b") as file:
        file.seek(page.read_bytes().index(uuid().encode()))
        file.write(b"?")
    done = subprocess.run([BUILD / "tests" / "unit" / "page_that_is_no_good", page], capture_output=True, check=True)
    assert done.stdout.split() == [b"0", b"1"]


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_usage_file_of_another_size_becomes_a_record(node: Node, size: int) -> None:
    container = node.container("a")
    container.usage.write_bytes(b"x" * size)
    assert answers_of(container) == (["0", "0", "0", "0"], "")
    record = decode(container.usage.read_bytes())
    assert record is not None
    assert [device.launches for device in record.devices] == [1]


def test_a_page_without_a_turn_holds_a_launch_for_a_moment_only(node: Node) -> None:
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0, turns=()))
    assert answers_of(node.container("a", Share(schedule=str(page)))) == (["0", "0", "0", "0"], "")


@pytest.mark.parametrize("seed", range(16))
def test_random_bytes_anywhere_crash_nothing(node: Node, seed: int) -> None:
    chance = seeded(seed)
    page = node.folder / "page"
    Agent(node, page, Tenant("a", 0))
    container = node.container("a", Share(schedule=str(page)))

    def spoil(path: Path, first: int) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice([1, 8, 200])):
            data[chance.randrange(first, min(len(data), 1 << 16))] = chance.randrange(256)
        with path.open("r+b") as file:
            file.write(data)

    answers_of(container)
    victims = {"page": page, "usage": container.usage, "config": container.config, "ledger": container.ledger}
    victim = chance.choice(sorted(victims))
    spoil(victims[victim], LEDGER_LOCK_ENDS if victim == "ledger" else 0)
    assert len(answers_of(container)[0]) == 4
