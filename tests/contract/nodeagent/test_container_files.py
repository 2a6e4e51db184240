"""A container's files on the host: whole or not there, the CDI spec last, and gone with their container."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent import handover
from nodeagent.containers import folders as files
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import GivenDevice, Record
from nodeagent.turns import Policy
from tests.support.waiting import LIMIT_S, wait_until

DEVICES = (GivenDevice("GPU-a", 30, 100, 0, 7), GivenDevice("GPU-b", 30, 100, 5, 8))
RECORD = Record(
    "team",
    "train",
    "u1",
    "main",
    frozenset({"slot-1", "slot-2"}),
    1,
    False,
    Policy.HARD,
    1,
    DEVICES,
)
VENDOR = [("0.6.0", {"deviceNodes": [{"path": "/dev/nvidia0"}]})]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "run", tmp_path / "lib", tmp_path / "cdi")


@pytest.fixture
def shim(folders: Folders, tmp_path: Path) -> Path:
    (tmp_path / "built.so").write_bytes(b"shim 1")
    return files.install_shim(folders, tmp_path / "built.so")


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_container_finds_its_files_at_the_shims_paths(folders: Folders, shim: Path) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    (spec,) = folders.cdi.iterdir()
    (device,) = json.loads(spec.read_text())["devices"]
    mounts = {each["containerPath"]: Path(each["hostPath"]) for each in device["containerEdits"]["mounts"]}
    assert list(mounts) == [
        "/etc/vcuda/config",
        "/etc/vcuda/injected",
        "/etc/vcuda/schedule",
        "/etc/vcuda/schedule.1",
        "/etc/vcuda/libvcuda.so.1",
        "/etc/ld.so.preload",
        "/etc/ld-nix.so.preload",
        "/run/vcuda/ledger",
    ]
    assert device["name"] == RECORD.cdi_device
    assert all(path.is_file() for path in mounts.values())
    assert mounts["/etc/ld.so.preload"].read_text() == "/etc/vcuda/libvcuda.so.1\n"
    ledger = mounts["/run/vcuda/ledger"]
    assert (ledger.stat().st_size, stat.S_IMODE(ledger.stat().st_mode)) == (4 << 20, 0o666)
    assert stat.S_IMODE(mounts["/etc/vcuda/config"].stat().st_mode) == 0o444
    assert list(files.read_records(folders)) == [RECORD]


def test_the_shim_alone_can_be_executed_where_the_hosts_file_system_forbids_it(folders: Folders, shim: Path) -> None:
    """runc of 1.2 or later keeps `noexec` in a user namespace, unless `exec` asks for the contrary: it then refuses."""
    files.write(folders, RECORD, VENDOR, shim)
    (spec,) = folders.cdi.iterdir()
    (device,) = json.loads(spec.read_text())["devices"]
    mounts = device["containerEdits"]["mounts"]
    assert [each["containerPath"] for each in mounts if "exec" in each["options"]] == ["/etc/vcuda/libvcuda.so.1"]


def test_a_container_with_whole_gpus_gets_the_vendors_edits_and_a_file_of_its_start(
    folders: Folders, shim: Path
) -> None:
    """Without the file a runtime that knows the spec of an earlier start would give it the GPUs of that one."""
    whole = replace(RECORD, whole=True, start=3)
    files.write(folders, whole, VENDOR, shim)
    (spec,) = folders.cdi.iterdir()
    (device,) = json.loads(spec.read_text())["devices"]
    file = folders.start(whole) / "whole"
    options = ["ro", "rbind", "nosuid", "nodev"]
    assert device["containerEdits"] == {
        "deviceNodes": [{"path": "/dev/nvidia0"}],
        "mounts": [{"hostPath": str(file), "containerPath": "/etc/vcuda/whole", "options": options}],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    }
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"", 0o444)


def test_a_new_start_has_new_files_and_the_old_ones_go_when_it_runs(folders: Folders, shim: Path) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    (folders.start(RECORD) / "ledger").write_bytes(b"full of the dead")
    again = replace(RECORD, start=2)
    files.write(folders, again, VENDOR, shim)
    assert (folders.start(RECORD) / "ledger").exists()
    assert (folders.start(again) / "ledger").read_bytes() == bytes(4 << 20)
    files.remove_earlier_starts(folders, again)
    assert not folders.start(RECORD).exists()
    assert list(files.read_records(folders)) == [again]


def test_a_container_that_is_gone_leaves_nothing_but_the_shim_and_the_pages(folders: Folders, shim: Path) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    files.remove(folders, RECORD)
    assert everything(folders.root) == {"gpus/GPU-a/schedule", "gpus/GPU-b/schedule"}
    assert everything(folders.cdi) == set()
    assert not (folders.root / "containers" / "u1").exists()


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_start_that_is_broken_off_leaves_no_spec(
    folders: Folders, shim: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    calls = 0

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", failing(Path.replace))
        patched.setattr(os, "truncate", failing(os.truncate))
        if nth <= 7:
            with pytest.raises(OSError, match="No space left"):
                files.write(folders, RECORD, VENDOR, shim)
            assert everything(folders.cdi) == set()
            assert not (folders.root / "containers" / RECORD.uid).exists()
        else:
            files.write(folders, RECORD, VENDOR, shim)
            assert calls == 7
    files.write(folders, RECORD, VENDOR, shim)
    assert list(files.read_records(folders)) == [RECORD]
    assert folders.spec(RECORD).exists()


@pytest.mark.parametrize("nth", range(1, 8))
def test_a_start_that_is_broken_off_leaves_the_record_of_the_one_before(
    folders: Folders, shim: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    before = everything(folders.root), everything(folders.cdi)
    calls = 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, target)

    real = Path.replace
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", failing)
        if nth <= 6:
            with pytest.raises(OSError, match="No space left"):
                files.write(folders, replace(RECORD, start=2), VENDOR, shim)
            assert (everything(folders.root), everything(folders.cdi)) == before
            assert list(files.read_records(folders)) == [RECORD]
        else:
            files.write(folders, replace(RECORD, start=2), VENDOR, shim)
            assert calls == 6


def test_a_start_that_does_not_fit_the_configuration_leaves_nothing_of_itself(folders: Folders, shim: Path) -> None:
    unfit = replace(RECORD, devices=(replace(DEVICES[0], uuid="GPU-" + 60 * "a"),))
    with pytest.raises(ValueError, match="a uuid has 64 bytes"):
        files.write(folders, unfit, VENDOR, shim)
    assert not (folders.root / "containers" / RECORD.uid).exists()
    files.write(folders, RECORD, VENDOR, shim)
    before = everything(folders.root), everything(folders.cdi)
    with pytest.raises(ValueError, match="a uuid has 64 bytes"):
        files.write(folders, replace(unfit, start=2), VENDOR, shim)
    assert (everything(folders.root), everything(folders.cdi)) == before
    assert not folders.start(replace(unfit, start=2)).exists()


def test_a_container_cannot_fill_the_hosts_memory_by_its_ledger(folders: Folders, shim: Path) -> None:
    small, ended = replace(RECORD, uid="u2"), replace(RECORD, uid="u3")
    for record in (RECORD, small):
        files.write(folders, record, VENDOR, shim)
    ledger = Path(folders.ledger(RECORD))
    with ledger.open("r+b") as file:
        file.write(b"head")
        file.seek(files.LEDGER_BYTES)
        file.write(bytes(1 << 20))
    assert files.cut_ledgers(folders, [RECORD, small, ended]) == [(RECORD, True)]
    assert (ledger.stat().st_size, ledger.read_bytes()[:4]) == (files.LEDGER_BYTES, b"head")
    assert files.cut_ledgers(folders, [RECORD, small, ended]) == []


def grown(folders: Folders) -> Path:
    """The ledger of RECORD, which its container has made longer."""
    ledger = Path(folders.ledger(RECORD))
    with ledger.open("r+b") as file:
        file.seek(files.LEDGER_BYTES)
        file.write(bytes(1 << 20))
    return ledger


def test_a_container_that_forbids_to_write_to_its_ledger_cannot_fill_the_hosts_memory(
    folders: Folders, shim: Path
) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    ledger = grown(folders)
    ledger.chmod(0o400)
    with rights_of_the_agent():
        assert files.cut_ledgers(folders, [RECORD]) == [(RECORD, True)]
    assert (ledger.stat().st_size, stat.S_IMODE(ledger.stat().st_mode)) == (files.LEDGER_BYTES, 0o666)


def test_a_ledger_that_its_container_gave_to_another_user_is_reported(
    folders: Folders, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    ledger = grown(folders)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chmod", refused)
    assert files.cut_ledgers(folders, [RECORD]) == [(RECORD, False)]
    assert ledger.stat().st_size > files.LEDGER_BYTES


@contextmanager
def rights_of_the_agent() -> Iterator[None]:
    """Takes all capabilities from this thread, until the end of the block (capabilities(7)): the agent has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", 0x20080522, 0)
    before = ctypes.create_string_buffer(24)
    assert libc.capget(header, before) == 0
    first, second = struct.unpack("6I", before.raw)[:3], struct.unpack("6I", before.raw)[3:]
    assert libc.capset(header, struct.pack("6I", 0, *first[1:], 0, *second[1:])) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


def test_a_process_that_belongs_to_no_container_is_collected(folders: Folders, shim: Path) -> None:
    gone = replace(RECORD, uid="u2", slots=frozenset({"slot-9"}))
    files.write(folders, RECORD, VENDOR, shim)
    files.write(folders, gone, VENDOR, shim)
    (folders.root / "containers" / "u3" / "main" / "1").mkdir(parents=True)
    (folders.cdi / "nvidia.json").write_text("{}")
    files.remove_unknown(folders, [RECORD])
    assert list(files.read_records(folders)) == [RECORD]
    assert everything(folders.cdi) == {folders.spec(RECORD).name, "nvidia.json"}
    assert [path.name for path in (folders.root / "containers").iterdir()] == ["u1"]


def test_a_record_that_cannot_be_read_is_named(folders: Folders, shim: Path) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    path = folders.container(RECORD) / "record.json"
    path.write_text("{")
    ((named, error),) = [each for each in files.read_records(folders) if isinstance(each, tuple)]
    assert named == path
    assert "no record" in str(error)


def test_an_upgrade_leaves_running_containers_their_shim(folders: Folders, shim: Path, tmp_path: Path) -> None:
    (tmp_path / "built.so").write_bytes(b"shim 2")
    newer = files.install_shim(folders, tmp_path / "built.so")
    assert newer != shim
    assert (shim.read_bytes(), newer.read_bytes()) == (b"shim 1", b"shim 2")
    assert files.install_shim(folders, tmp_path / "built.so") == newer


@pytest.mark.parametrize("left", [b"", b"shim", b"shim 0"], ids=["no bytes", "some bytes", "other bytes"])
def test_a_shim_of_which_a_machine_without_power_kept_only_the_name_is_written_again(
    folders: Folders, shim: Path, tmp_path: Path, left: bytes
) -> None:
    shim.write_bytes(left)
    assert files.install_shim(folders, tmp_path / "built.so") == shim
    assert shim.read_bytes() == b"shim 1"
    assert stat.S_IMODE(shim.stat().st_mode) == 0o755


def test_a_shim_that_is_whole_stays_the_file_that_containers_have_mounted(
    folders: Folders, shim: Path, tmp_path: Path
) -> None:
    inode = shim.stat().st_ino
    assert files.install_shim(folders, tmp_path / "built.so").stat().st_ino == inode


def test_one_of_two_agents_that_start_at_once_writes_the_shim(folders: Folders, shim: Path, tmp_path: Path) -> None:
    shim.write_bytes(b"")
    second = threading.Thread(target=files.install_shim, args=(folders, tmp_path / "built.so"))
    with handover.turn_of(shim.parent):
        second.start()
        wait_until(lambda: is_waited_for(shim.parent), "the second agent waits")
        files.put(shim, b"shim 1", 0o755)
        inode = shim.stat().st_ino
    second.join(LIMIT_S)
    assert (shim.read_bytes(), shim.stat().st_ino) == (b"shim 1", inode)


def test_a_boot_voids_the_files_of_the_one_before(folders: Folders, shim: Path) -> None:
    files.void_after_boot(folders, "first")
    files.write(folders, RECORD, VENDOR, shim)
    (folders.root / "schedule.json").write_text("{}")
    vendors = folders.cdi / "nvidia.yaml"
    vendors.write_text("")
    kept = everything(folders.root)
    files.void_after_boot(folders, "first")
    assert everything(folders.root) == kept
    files.void_after_boot(folders, "second")
    assert everything(folders.root) == {"boot"}
    assert list(folders.cdi.iterdir()) == [vendors]
    assert shim.exists()


def test_files_that_the_host_does_not_remove_are_of_the_earlier_boot_until_it_does(
    folders: Folders, shim: Path, tmp_path: Path
) -> None:
    files.void_after_boot(folders, "first")
    files.write(folders, RECORD, VENDOR, shim)
    kept = (folders.root / "containers").rename(tmp_path / "kept")
    (folders.root / "containers").symlink_to(kept)  # as what a file system refuses to remove
    with pytest.raises(OSError, match="symbolic link"):
        files.void_after_boot(folders, "second")
    (folders.root / "containers").unlink()
    kept.rename(folders.root / "containers")
    files.void_after_boot(folders, "second")
    assert everything(folders.root) == {"boot"}


def test_files_of_an_agent_that_wrote_no_boot_stay(folders: Folders, shim: Path) -> None:
    files.write(folders, RECORD, VENDOR, shim)
    files.void_after_boot(folders, "first")
    assert list(files.read_records(folders)) == [RECORD]


def test_an_agent_killed_while_it_voids_an_earlier_boot_begins_again(
    folders: Folders, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.void_after_boot(folders, "first")
    files.write(folders, RECORD, VENDOR, shim)
    with monkeypatch.context() as killed:
        killed.setattr(files, "put", killed_agent)
        with pytest.raises(KeyboardInterrupt):
            files.void_after_boot(folders, "second")
    files.void_after_boot(folders, "second")
    assert everything(folders.root) == {"boot"}


def test_the_second_of_two_agents_that_start_after_a_boot_removes_nothing_of_what_the_first_has_written(
    folders: Folders, shim: Path
) -> None:
    files.void_after_boot(folders, "first")
    voiding = threading.Thread(target=files.void_after_boot, args=(folders, "second"))
    with handover.turn_of(folders.root):
        voiding.start()
        wait_until(lambda: is_waited_for(folders.root), "the second agent waits")
        (folders.root / "boot").write_text("second")
        files.write(folders, RECORD, VENDOR, shim)
    voiding.join(LIMIT_S)
    assert list(files.read_records(folders)) == [RECORD]
    assert folders.spec(RECORD).exists()


def is_waited_for(folder: Path) -> bool:
    """Returns whether a thread waits for the lock of a folder (proc(5))."""
    inode = f":{folder.stat().st_ino} "
    return any("-> FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def killed_agent(*_arguments: object) -> None:
    raise KeyboardInterrupt
