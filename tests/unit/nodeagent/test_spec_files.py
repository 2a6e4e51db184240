"""The vendor's CDI specs on the host, read while its toolkit may be writing them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.vendors.spec_files import FIRST_SECONDS, KEPT_SECONDS, LARGEST_BYTES, SETTLED_SECONDS, SpecFiles

KIND = "vendor.com/gpu"
CHANGED_AT = 1_000_000.0
WHOLE_YAML = "kind: vendor.com/gpu\ndevices:\n- name: GPU-0\n- name: GPU-1\n"
CUT_YAML = "kind: vendor.com/gpu\ndevices:\n- name: GPU-0\n"
"""The beginning of WHOLE_YAML, which is valid YAML as well."""


def spec(*gpus: str) -> dict[str, Any]:
    return {"kind": KIND, "devices": [{"name": gpu} for gpu in gpus]}


class Host:
    """A folder of specs, a clock, and the reader under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = CHANGED_AT + KEPT_SECONDS
        self.files = SpecFiles([folder, folder / "absent"], KIND, self.clock, self.wait)
        self.meanwhile: Callable[[], object] = lambda: None
        """Called in the middle of a look, when the clock is read."""
        self.waited: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None

    def clock(self) -> float:
        self.meanwhile()
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds
        self.while_waiting()

    def write(self, name: str, content: str) -> Path:
        """Writes a file; its time of change is CHANGED_AT."""
        path = self.folder / name
        path.write_text(content)
        os.utime(path, (CHANGED_AT, CHANGED_AT))
        return path

    def gpus(self, age_seconds: float) -> list[str]:
        """The GPUs that the specs name so long after the files' last change."""
        self.now = CHANGED_AT + age_seconds
        return [device["name"] for specs in self.files.read().specs for each in specs for device in each["devices"]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_specs_of_another_kind_and_other_documents_are_left_out(host: Host) -> None:
    host.write("b.json", json.dumps(spec("GPU-1")))
    host.write("a.yaml", json.dumps(spec("GPU-0")))
    host.write("c.yml", json.dumps({**spec("GPU-2"), "kind": "other.com/gpu"}))
    host.write("d.json", "[1]")
    host.write("e.txt", json.dumps(spec("GPU-3")))
    assert host.gpus(KEPT_SECONDS) == ["GPU-0", "GPU-1"]
    assert host.files.read().unread == ()


def test_the_specs_are_by_folder_since_a_later_one_goes_before(host: Host) -> None:
    host.write("nvidia.json", json.dumps(spec("GPU-0")))
    (host.folder / "absent").mkdir()
    host.write("absent/nvidia.json", json.dumps(spec("GPU-0", "GPU-1")))
    assert host.files.read().specs == ((spec("GPU-0"),), (spec("GPU-0", "GPU-1"),))


@pytest.mark.parametrize("content", ["", "\n", "{", "kind: [", CUT_YAML], ids=["empty", "blank", "json", "yaml", "cut"])
def test_a_file_that_is_being_written_counts_as_before(host: Host, content: str) -> None:
    host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(SETTLED_SECONDS) == ["GPU-0", "GPU-1"]
    host.write("nvidia.yaml", content)
    assert host.gpus(SETTLED_SECONDS / 2) == ["GPU-0", "GPU-1"]
    host.write("nvidia.yaml", "kind: vendor.com/gpu\ndevices:\n- name: GPU-7\n")
    assert host.gpus(SETTLED_SECONDS) == ["GPU-7"]


def test_a_file_that_is_emptied_in_the_middle_of_a_look_counts_as_before(host: Host) -> None:
    host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(KEPT_SECONDS) == ["GPU-0", "GPU-1"]
    host.meanwhile = lambda: host.write("nvidia.yaml", CUT_YAML)
    assert host.gpus(KEPT_SECONDS) == ["GPU-0", "GPU-1"]
    assert host.gpus(SETTLED_SECONDS / 2) == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("content", ["", "{"])
def test_a_file_that_stays_unreadable_counts_as_before_for_a_minute(host: Host, content: str) -> None:
    host.write("nvidia.json", json.dumps(spec("GPU-0")))
    host.gpus(KEPT_SECONDS)
    host.write("nvidia.json", content)
    assert host.gpus(KEPT_SECONDS - 1) == ["GPU-0"]
    assert host.gpus(KEPT_SECONDS) == []
    assert host.gpus(KEPT_SECONDS - 1) == [], "a clock that steps back brings nothing back"


def test_the_first_look_waits_until_a_file_that_is_being_written_is_whole(host: Host) -> None:
    host.write("nvidia.yaml", CUT_YAML)
    host.write("older.json", json.dumps(spec("GPU-7")))
    os.utime(host.folder / "older.json", (0, 0))
    host.while_waiting = lambda: host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(SETTLED_SECONDS / 4) == ["GPU-0", "GPU-1", "GPU-7"]
    assert host.waited == [SETTLED_SECONDS * 3 / 4]


@pytest.mark.parametrize("content", ["", "{"], ids=["empty", "cut"])
def test_the_first_look_waits_longer_for_a_file_that_is_no_document_yet(host: Host, content: str) -> None:
    host.write("nvidia.yaml", content)
    host.while_waiting = lambda: len(host.waited) == 3 and host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(SETTLED_SECONDS) == ["GPU-0", "GPU-1"]
    assert sum(host.waited) <= FIRST_SECONDS


def test_the_first_look_waits_for_no_file_beyond_its_limit_and_a_later_one_for_none(host: Host) -> None:
    host.write("nvidia.yaml", "{")
    assert host.gpus(0) == []
    assert sum(host.waited) == pytest.approx(FIRST_SECONDS)
    host.waited.clear()
    host.write("nvidia.yaml", CUT_YAML)
    assert host.gpus(0) == ["GPU-0"], "a file that was never read whole counts at once"
    assert host.waited == []


@pytest.mark.parametrize("age_seconds", [SETTLED_SECONDS, KEPT_SECONDS, -1.0], ids=["settled", "old", "future"])
def test_the_first_look_waits_for_no_file_that_is_whole(host: Host, age_seconds: float) -> None:
    host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(age_seconds) == ["GPU-0", "GPU-1"]
    assert host.waited == []


def test_a_removed_file_counts_no_more(host: Host) -> None:
    host.write("nvidia.yaml", WHOLE_YAML)
    assert host.gpus(0) == ["GPU-0", "GPU-1"]
    (host.folder / "nvidia.yaml").unlink()
    assert host.gpus(0) == []


def test_a_file_from_the_future_is_read(host: Host) -> None:
    host.write("nvidia.yaml", WHOLE_YAML)
    host.gpus(-100)
    host.write("nvidia.yaml", CUT_YAML)
    assert host.gpus(-100) == ["GPU-0"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "", "it is empty"),
        ("a.json", "{", "Expecting property name"),
        ("a.yaml", "kind: [", "while parsing a flow node"),
        ("a.json", " " * (LARGEST_BYTES + 1), f"it is larger than {LARGEST_BYTES} bytes"),
        ("a.json", "[" * 100_000, "recursion"),
        ("a.yaml", "a: !!bool x", "KeyError: 'x'"),
        ("a.yaml", "a: !!int ''", "IndexError: string index out of range"),
        ("a.yaml", "a: !!timestamp x", "AttributeError"),
        ("a.yaml", "a: 2026-13-45", "month must be in 1..12"),
        ("a.yaml", "2026-01-01: a", "TypeError: keys must be str"),
        ("a.yaml", "a: &b [*b]", "Circular reference"),
        ("a.yaml", "a: .nan", "not JSON compliant"),
        ("a.json", "[NaN]", "not JSON compliant"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(host: Host, name: str, content: str, reason: str) -> None:
    path = host.write(name, content)
    (unread,) = host.files.read().unread
    assert unread.startswith(f"{path} cannot be read: ")
    assert reason in unread
    assert "\n" not in unread


def test_a_value_that_json_does_not_have_is_text_as_in_the_container(host: Host) -> None:
    """The container's spec is JSON."""
    host.write("nvidia.yaml", WHOLE_YAML + "made: 2026-01-01\n")
    (found,), _ = host.files.read().specs
    assert found["made"] == "2026-01-01"
