from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.usage_record import MAX_CONTAINERS, TornRecordError, UsageError, container_names, read_usage
from tests.support.usage_writer import Device, usage_record, write_usage

RECORD = usage_record(Device("GPU-a", busy_ns=5), sequence=3)
TORN = RECORD[:100] + b"\1" + RECORD[101:]


def never(_seconds: float) -> None:
    raise AssertionError("nothing was torn, so nothing is to be waited for")


def test_the_containers_are_the_folders_of_the_volume(tmp_path: Path) -> None:
    for name in ("main", "helper", "not_a_label", "-a", "a-", "x" * 64):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "main")
    assert container_names(str(tmp_path)) == ("helper", "main")


def test_a_pod_of_very_many_containers_is_read_in_part(tmp_path: Path) -> None:
    for index in range(MAX_CONTAINERS + 10):
        (tmp_path / f"c{index:03}").mkdir()
    assert container_names(str(tmp_path)) == tuple(f"c{index:03}" for index in range(MAX_CONTAINERS))


def test_a_record_is_read(tmp_path: Path) -> None:
    write_usage(tmp_path / "main" / "usage", RECORD)
    record = read_usage(str(tmp_path), "main", never)
    assert record is not None
    assert record.sequence == 3


def test_a_container_without_a_file_used_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    assert read_usage(str(tmp_path), "main", never) is None


def test_a_torn_record_is_read_again_until_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "main" / "usage"
    write_usage(file, TORN)
    pauses: list[float] = []

    def finish_writing(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            write_usage(file, RECORD)

    assert read_usage(str(tmp_path), "main", finish_writing) is not None
    assert len(pauses) == 2


def test_a_record_that_stays_torn_is_given_up_after_three_reads(tmp_path: Path) -> None:
    write_usage(tmp_path / "main" / "usage", TORN)
    pauses: list[float] = []
    with pytest.raises(TornRecordError):
        read_usage(str(tmp_path), "main", pauses.append)
    assert len(pauses) == 2


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    write_usage(tmp_path / "secret", RECORD)
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "usage").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        read_usage(str(tmp_path), "main", never)


def test_a_fifo_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    os.mkfifo(tmp_path / "main" / "usage")
    with pytest.raises(UsageError, match="no regular file"):
        read_usage(str(tmp_path), "main", never)


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "main" / "usage").mkdir(parents=True)
    with pytest.raises(UsageError, match="no regular file"):
        read_usage(str(tmp_path), "main", never)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    write_usage(tmp_path / "main" / "usage", RECORD)
    os.truncate(tmp_path / "main" / "usage", 2**40)
    with pytest.raises(UsageError, match="1099511627776 bytes"):
        read_usage(str(tmp_path), "main", never)
