"""Proof that the runtime applied CDI, from what it keeps of each container."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nodeagent.containers.records import GivenDevice, Record
from nodeagent.runtime.devices import PROOFS, Bundles, Made, administers, is_applied, made_for, running
from nodeagent.turns import Policy


def record(container: str = "main", *, whole: bool = False) -> Record:
    device = GivenDevice("GPU-0", 30, 4096, 0, 7)
    return Record("team", "train", "uid-1", container, frozenset({"slot-0"}), 1, whole, Policy.HARD, 1, (device,))


def pod(**states: dict[str, Any]) -> dict[str, Any]:
    statuses = [
        {"name": name, "containerID": f"containerd://id-{name}", "state": state} for name, state in states.items()
    ]
    return {"metadata": {"uid": "uid-1"}, "status": {"containerStatuses": statuses}}


RUNNING: dict[str, Any] = {"running": {}}


def keep(bundles: Path, container: str, *mounts: str) -> None:
    folder = bundles / f"id-{container}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"mounts": [{"destination": each} for each in mounts]}))


def test_containers_that_run_with_gpus_are_looked_at() -> None:
    pods = [pod(main=RUNNING, other=RUNNING, whole=RUNNING, waits={"waiting": {}})]
    whole = record("whole", whole=True)
    assert running([record(), record("waits"), whole], pods) == {"id-main": record(), "id-whole": whole}


@pytest.mark.parametrize(
    ("content", "applied"),
    [
        (json.dumps({"mounts": [{"destination": "/proc"}, {"destination": PROOFS[0]}]}), True),
        (json.dumps({"mounts": [{"destination": PROOFS[1]}]}), True),
        (json.dumps({"mounts": [{"destination": "/proc"}]}), False),
        (json.dumps({}), False),
        ("{", None),
        ("[]", None),
        ('{"mounts": 5}', None),
    ],
)
def test_a_container_has_its_device_if_its_configuration_mounts_it(
    tmp_path: Path, content: str, *, applied: bool | None
) -> None:
    (tmp_path / "id-main").mkdir()
    (tmp_path / "id-main" / "config.json").write_text(content)
    assert is_applied(tmp_path, "id-main") is applied
    assert is_applied(tmp_path, "id-other") is None


def made_with(*capabilities: str, namespaces: tuple[str, ...] = ("pid", "mount")) -> str:
    kinds = [{"type": each} for each in namespaces]
    return json.dumps({"process": {"capabilities": {"bounding": capabilities}}, "linux": {"namespaces": kinds}})


@pytest.mark.parametrize(
    ("content", "may"),
    [
        (made_with("CAP_CHOWN", "CAP_SYS_ADMIN"), True),
        (made_with("CAP_CHOWN", "CAP_SETUID", "CAP_SETFCAP"), False),
        (made_with("CAP_SYS_ADMIN", namespaces=("pid", "user")), False),
        (json.dumps({"process": {"capabilities": None}, "linux": {"namespaces": []}}), False),
        ("[]", False),
        ("{", False),
    ],
    ids=["privileged", "default", "with a user namespace", "without capabilities", "no object", "broken"],
)
def test_a_container_administers_the_host_if_it_was_made_with_the_right_to(
    tmp_path: Path, content: str, *, may: bool
) -> None:
    (tmp_path / "id-main").mkdir()
    (tmp_path / "id-main" / "config.json").write_text(content)
    assert administers(tmp_path, "id-main") is may
    assert not administers(tmp_path, "id-other")


def test_one_container_without_its_device_is_reported_once_and_remembered(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path)
    keep(tmp_path, "main", PROOFS[0])
    assert bundles.look([record()], [pod(main=RUNNING)]) == []
    assert not bundles.failed
    keep(tmp_path, "bad")
    pods, records = [pod(main=RUNNING, bad=RUNNING)], [record(), record("bad")]
    assert bundles.look(records, pods) == [record("bad")]
    assert bundles.look(records, pods) == []
    assert bundles.look([], []) == []
    assert bundles.failed


def test_a_container_is_looked_at_again_until_the_runtime_has_written_its_configuration(tmp_path: Path) -> None:
    bundles = Bundles(tmp_path)
    assert bundles.look([record()], [pod(main=RUNNING)]) == []
    keep(tmp_path, "main")
    assert bundles.look([record()], [pod(main=RUNNING)]) == [record()]


def make(bundles: Path, container_id: str, mounts: Mapping[str, str] | None = None, **annotations: str) -> None:
    (bundles / container_id).mkdir(exist_ok=True)
    said = {f"io.kubernetes.cri.{key.replace('_', '-')}": value for key, value in annotations.items()}
    mounted = [{"destination": target, "source": source} for target, source in (mounts or {}).items()]
    (bundles / container_id / "config.json").write_text(json.dumps({"annotations": said, "mounts": mounted}))


def test_containers_have_not_ended_as_long_as_the_runtime_keeps_their_configurations(tmp_path: Path) -> None:
    made = Made(tmp_path)
    make(tmp_path, "sandbox", sandbox_uid="uid-1")
    make(tmp_path, "one", sandbox_uid="uid-1", container_name="main")
    (tmp_path / "starting").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"annotations": None}))
    assert made.look() == {("uid-1", ""), ("uid-1", "main")}
    make(tmp_path, "starting", sandbox_uid="uid-2", container_name="main")
    (tmp_path / "one").rename(tmp_path / ".one")  # as containerd begins to remove it
    assert made.look() == {("uid-1", ""), ("uid-2", "main")}


def test_starts_at_the_same_time_read_each_configuration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "one", sandbox_uid="uid-1")
    made, read, second = Made(tmp_path), list[str](), threading.Event()

    def slowly(bundles: Path, container_id: str) -> object:
        if read:
            second.set()
        read.append(container_id)
        second.wait(0.2)
        return made_for(bundles, container_id)

    monkeypatch.setattr("nodeagent.runtime.devices.made_for", slowly)
    with ThreadPoolExecutor(4) as starts:
        looks = [starts.submit(made.look) for _ in range(4)]
    assert [look.result() for look in looks] == [{("uid-1", "")}] * 4
    assert read == ["one"]


def test_a_containers_configuration_names_the_start_by_whose_spec_it_was_made(tmp_path: Path) -> None:
    made = Made(tmp_path)
    make(tmp_path, "one", {"/proc": "proc", PROOFS[0]: "/run/uid-1/main/2/config"}, sandbox_uid="uid-1")
    make(tmp_path, "two", {PROOFS[1]: "/run/uid-2/main/1/whole"}, sandbox_uid="uid-2")
    assert made.starts() == {"/run/uid-1/main/2", "/run/uid-2/main/1"}
    make(tmp_path, "three", sandbox_uid="uid-3")
    assert made.starts() == {"/run/uid-1/main/2", "/run/uid-2/main/1", ""}


def test_a_runtime_that_keeps_no_configurations_shows_no_container(tmp_path: Path) -> None:
    made = Made(tmp_path / "absent")
    assert (made.look(), made.starts()) == (frozenset(), frozenset())
