"""Writes the files of each container on the host, and its CDI spec; each appears whole, by a rename.

    ROOT/containers/UID/NAME/record.json     the container's record (nodeagent.containers.records)
    ROOT/containers/UID/NAME/START/          config, injected, preload, ledger of one start; else `whole`
    ROOT/gpus/UUID/schedule                  a device's schedule page
    ROOT/boot                                the id of the boot in which these files were written
    SHIM/DIGEST/libvcuda.so.1                the shim, by the SHA-256 of its bytes

No container outlives a boot, so files of an earlier boot are removed. The CDI spec is written last: a runtime that
finds the spec finds every file that the spec names. The spec is removed once the runtime has made the container. Each
spec names files of one start, which the next start removes: a runtime that still has the spec of an earlier start
cannot start the container with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent import handover
from nodeagent.containers import cdi_spec, config_file, records
from nodeagent.containers.cdi_name import spec_file
from nodeagent.containers.cdi_spec import Mount
from nodeagent.containers.records import Record, RecordError
from nodeagent.schedule import PageFile

LEDGER_BYTES = 4 << 20
LEDGER_MODE = 0o666
RECORD = "record.json"
SHIM_TARGET = "/etc/vcuda/libvcuda.so.1"
PRELOAD = f"{SHIM_TARGET}\n".encode()
WHOLE_TARGET = "/etc/vcuda/whole"
"""The file in a container that has its GPUs whole: it is empty, and belongs to one start."""


@dataclass(frozen=True)
class Folders:
    """The folders on the host in which the node agent keeps the files of containers.

    Attributes:
        root: the folder of all files but the two kinds below, on a tmpfs.
        shim: the folder of the shim, on a disk.
        cdi: the folder in which the container runtime looks for CDI specs.
    """

    root: Path
    shim: Path
    cdi: Path

    def container(self, record: Record) -> Path:
        """Returns the folder of a container's files, which holds one folder for each of its starts."""
        return self.of_container(record.uid, record.container)

    def of_container(self, uid: str, container: str) -> Path:
        """Returns the folder of a container's files, given its pod's uid and its name."""
        return Path(f"{self.root}/containers/{uid}/{container}")

    def start(self, record: Record) -> Path:
        """Returns the folder of the files of a container's present start, given by its record."""
        return Path(self.ledger(record)).parent

    def ledger(self, record: Record) -> str:
        """Returns the path of the file in which the shim accounts for the GPU use of a container's present start.

        It is text, which is made faster than a Path: each change of the schedule names these files of all containers.
        """
        return f"{self.root}/containers/{record.uid}/{record.container}/{record.start}/ledger"

    def page(self, uuid: str) -> Path:
        """Returns the file of the schedule page of the GPU with this uuid."""
        return self.root / "gpus" / uuid / "schedule"

    def spec(self, record: Record) -> Path:
        """Returns the file of a container's CDI spec."""
        return self.cdi / spec_file(record.cdi_device)


def void_after_boot(folders: Folders, boot_id: str) -> None:
    """Removes the files, pages and CDI specs of an earlier boot of the host, and records the present boot.

    Such files outlive a boot if the folders are on a disk. Where no boot is recorded, nothing is removed, since
    containers of this boot may use the files. Of two agents that start at once, the second waits until the first is
    done: else it would remove what the first writes next.

    Args:
        boot_id: the kernel's id of the present boot.

    Raises:
        OSError: the host refuses. What is left counts as of the earlier boot, and the next call removes it.
    """
    folders.root.mkdir(parents=True, exist_ok=True)
    with handover.turn_of(folders.root):
        _void(folders, boot_id)


def _void(folders: Folders, boot_id: str) -> None:
    path = folders.root / "boot"
    known = path.read_text() if path.exists() else None
    if known is None:
        put(path, boot_id.encode(), 0o600)
    if known in (None, boot_id):
        return
    for folder in ("containers", "gpus"):
        with suppress(FileNotFoundError):
            shutil.rmtree(folders.root / folder)
    for file in (*_specs(folders), *folders.root.glob("*.json"), *folders.root.glob(beside("*"))):
        file.unlink(missing_ok=True)
    put(path, boot_id.encode(), 0o600)


def read_records(folders: Folders) -> Iterator[Record | tuple[Path, RecordError]]:
    """Yields the record of each container on the host; for a file that cannot be read, its path and the error."""
    for path in sorted((folders.root / "containers").glob("*/*/record.json")):
        try:
            yield records.decode(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, RecordError) as error:
            yield path, RecordError(str(error))


def write(folders: Folders, record: Record, vendor: Sequence[tuple[str, Mapping[str, Any]]], shim: Path | None) -> None:
    """Writes all files of a container's start, then its record, and its CDI spec last.

    Record and spec are written beside their places before either is renamed, so that a host without room changes
    neither.

    Args:
        record: the container's record for this start.
        vendor: the answer of `vendor_edits` for each of the container's GPUs, in order.
        shim: the shim's file on the host; None if it could not be written. Only a container that has its GPUs whole can
            do without it.

    Raises:
        OSError: the host has no room, or refuses, or the shim is not there.
        ValueError: the record does not fit the configuration file.

        After either, no file of this start remains, and the record of an earlier start stays. Schedule pages that were
        made stay.
    """
    folder, container = folders.start(record), folders.container(record)
    before = _read(container / RECORD)
    staged: list[tuple[Path, Path]] = []
    try:
        shutil.rmtree(folder, ignore_errors=True)  # of an agent that was killed while it wrote
        folder.mkdir(parents=True)
        if record.whole:
            put(folder / "whole", b"", 0o444)
        else:
            _write_start(folder, record)
            for device in record.devices:
                make_page(folders.page(device.uuid))
        mounts = [Mount(folder / "whole", WHOLE_TARGET)] if record.whole else _mounts(folders, record, _present(shim))
        document = json.dumps(cdi_spec.document(record.cdi_device, vendor, mounts)).encode()
        folders.cdi.mkdir(parents=True, exist_ok=True)
        for path, content, mode in (
            (container / RECORD, records.encode(record).encode(), 0o600),
            (folders.spec(record), document, 0o644),
        ):
            staged.append((_stage(path, content, mode), path))
        for new, path in staged:
            new.replace(path)
    except (OSError, ValueError):
        for new, _ in staged:
            new.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if before is None:
            (container / RECORD).unlink(missing_ok=True)
            _remove_if_empty(container)
            _remove_if_empty(container.parent)
        elif _read(container / RECORD) != before:
            put(container / RECORD, before, 0o600)
        raise


def _present(shim: Path | None) -> Path:
    if shim is None:
        raise OSError("the shim is not on the host, and nothing else would limit the container")
    return shim


def remove(folders: Folders, record: Record, keep: Record | None = None) -> None:
    """Removes a container's files from the host; its CDI spec first, so that no container starts with missing files.

    Other files that the host refuses to remove stay, without an error.

    Args:
        keep: the record of a container of the same pod that has the slots now. If it has the same CDI spec, the spec
            stays. None if there is no such container.

    Raises:
        OSError: the host refuses to remove the CDI spec.
    """
    if keep is None or keep.cdi_device != record.cdi_device:
        remove_spec(folders, record)
    shutil.rmtree(folders.container(record), ignore_errors=True)
    _remove_if_empty(folders.container(record).parent)


def remove_unread(folders: Folders, uid: str, container: str) -> None:
    """Removes the folder of a container whose record cannot be read, given its pod's uid and its name.

    Files that the host refuses to remove stay, without an error.
    """
    folder = folders.of_container(uid, container)
    shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(folder.parent)


def with_spec(folders: Folders, known: Iterable[Record]) -> list[Record]:
    """Returns, of some containers' records, those whose containers have a CDI spec on the host."""
    there = frozenset(_specs(folders))
    return [record for record in known if folders.spec(record) in there] if there else []


def remove_spec(folders: Folders, record: Record) -> None:
    """Removes a container's CDI spec, if there is one; it is named after the slots in the container's record.

    Raises:
        OSError: the host refuses.
    """
    folders.spec(record).unlink(missing_ok=True)


def remove_earlier_starts(folders: Folders, record: Record) -> None:
    """Removes the files of a container's starts before the one in its record.

    Processes that have these files mounted can still use them. Files that the host refuses to remove stay, without an
    error.

    Raises:
        OSError: the container's folder cannot be read.
    """
    for path in folders.container(record).iterdir():
        if path.is_dir() and path.name != str(record.start):
            shutil.rmtree(path, ignore_errors=True)


def cut_ledgers(folders: Folders, records: Iterable[Record]) -> list[tuple[Record, bool]]:
    """Cuts each ledger file that is longer than LEDGER_BYTES back to this length.

    A ledger lies in the host's memory, and its container may write to it: the container could fill the file system that
    kubelet and runtime need. A container's root may also forbid writing to the file, or give the file to another user.
    The agent permits writing again. It cannot cut a file that belongs to another user, since it has no rights beyond
    those of a file's owner.

    Returns:
        The records of the containers whose ledger files were too long, each with whether the file was cut.
    """
    found = []
    for record in records:
        ledger = folders.ledger(record)
        with suppress(FileNotFoundError):  # the container is just ending, or has no ledger
            if os.stat(ledger).st_size > LEDGER_BYTES:  # noqa: PTH116 - a Path for each takes longer
                found.append((record, _cut(ledger)))
    return found


def _cut(ledger: str) -> bool:
    try:
        os.chmod(ledger, LEDGER_MODE)  # noqa: PTH101
        os.truncate(ledger, LEDGER_BYTES)
    except OSError:
        return False
    return True


def remove_unknown(folders: Folders, known: Sequence[Record], unread: Iterable[Path] = ()) -> list[Path]:
    """Removes the folders and CDI specs of unknown containers, and half-written specs and shims; returns their paths.

    A folder that the host refuses to remove stays, and its path is returned all the same.

    A container is known if its record is among `known`. The CDI specs of all other containers are removed, even if
    their folders stay: a spec is needed only until its container is made, and is written again before the next start.

    Args:
        unread: the folders of containers whose records cannot be read. They stay: the containers may run.

    Raises:
        OSError: the host refuses to remove a CDI spec or a half-written file.
    """
    removed = []
    specs = {folders.spec(record) for record in known}
    for path in (*_specs(folders), *folders.shim.glob(f"*/{beside('*')}")):
        if path not in specs:
            path.unlink(missing_ok=True)
            removed.append(path)
    kept = {*(folders.container(record) for record in known), *unread}
    for path in (folders.root / "containers").glob("*/*"):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    for path in (folders.root / "containers").glob("*"):
        _remove_if_empty(path)
    return removed


def _specs(folders: Folders) -> list[Path]:
    """Returns all CDI specs of containers, and those that a killed agent left half written."""
    return [*folders.cdi.glob(spec_file("*")), *folders.cdi.glob(beside(spec_file("*")))]


def install_shim(folders: Folders, library: Path) -> Path:
    """Writes the shim to the host, unless it is there already; returns its file, in a folder named after its digest.

    A file that is there is compared byte by byte: a machine that loses its power may leave a file on disk without its
    bytes. A program goes on without a library that its loader cannot read, and would then run without any limit.

    Args:
        library: the shim in the agent's image.

    Raises:
        OSError: the shim cannot be read or written.
    """
    content = library.read_bytes()
    path = folders.shim / hashlib.sha256(content).hexdigest() / "libvcuda.so.1"
    path.parent.mkdir(parents=True, exist_ok=True)
    with handover.turn_of(path.parent):  # two agents that start at once would write into the same temporary file
        if _read(path) != content:
            put(path, content, 0o755)
    return path


def make_page(path: Path) -> None:
    """Creates the file of a GPU's schedule page, filled with zeros, if it is missing, so that it can be mounted.

    Raises:
        OSError: the host refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    PageFile(path).close()


def put(path: Path, content: bytes, mode: int) -> None:
    """Writes a file so that a reader finds all of it or none.

    Args:
        mode: the file's permission bits.

    Raises:
        OSError: the file cannot be written; no part of it stays.
    """
    new = _stage(path, content, mode)
    try:
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def beside(name: str) -> str:
    """Returns the name of the temporary file that becomes the file of this name, by a rename, once it is written."""
    return f".{name}.new"


def _stage(path: Path, content: bytes, mode: int) -> Path:
    """Writes a file's content into a temporary file in the same folder; returns the temporary file's path.

    Raises:
        OSError: the content cannot be written; no part of it stays.
    """
    new = path.with_name(beside(path.name))
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return new


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_start(folder: Path, record: Record) -> None:
    devices = [
        config_file.ConfigDevice(
            device.uuid,
            device.memory_mib,
            device.core_percent,
            record.policy,
            record.task_priority,
            device.slot,
            device.key,
        )
        for device in record.devices
    ]
    put(folder / "config", config_file.pack(record.container, record.uid, devices), 0o444)
    put(folder / "injected", b"", 0o444)
    put(folder / "preload", PRELOAD, 0o444)
    ledger = folder / "ledger"
    put(ledger, b"", LEDGER_MODE)
    os.truncate(ledger, LEDGER_BYTES)


def _mounts(folders: Folders, record: Record, shim: Path) -> list[Mount]:
    folder = folders.start(record)
    pages = [
        Mount(folders.page(device.uuid), config_file.schedule_path(index))
        for index, device in enumerate(record.devices)
    ]
    return [
        Mount(folder / "config", "/etc/vcuda/config"),
        Mount(folder / "injected", "/etc/vcuda/injected"),
        *pages,
        Mount(shim, SHIM_TARGET, executable=True),
        Mount(folder / "preload", "/etc/ld.so.preload"),
        Mount(folder / "preload", "/etc/ld-nix.so.preload"),
        Mount(folder / "ledger", config_file.LEDGER_PATH, writable=True),
    ]


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
