"""Processes of the host by what /proc says of them, in the words of each cgroup manager and version."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.processes import (
    EXITING,
    FLAGS,
    Process,
    Processes,
    in_pod,
    is_of_node,
    process_names,
    read_process,
)

UID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
STATIC_UID = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
OTHER_UID, OTHER_ID = "11111111-2222-3333-4444-555555555555", "cd" * 32
SLICE = f"kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{ID}\n", (UID, ID)),
        (f"0::/kubepods/pod{STATIC_UID}/{ID}\n", (STATIC_UID, ID)),
        (f"0::/../../pod{UID}/{ID}/below\n", (UID, ID)),
        (f"12:memory:/kubepods/besteffort/pod{UID}/{ID}\n1:name=systemd:/x\n", (UID, ID)),
        (f"0::/kubepods.slice/{SLICE}/cri-containerd-{ID}.scope\n", (UID, ID)),
        (f"0::/system.slice/kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}\n", (UID, ID)),
        (f"0::/kubepods/burstable/pod{UID}/crio-{ID}\n", (UID, ID)),
        (f"0::/kubepods.slice/{SLICE}/crio-{ID}.scope/container\n", (UID, ID)),
        (f"0::/../../{SLICE.rpartition('/')[2]}/cri-containerd-{ID}.scope\n", (UID, ID)),
        (f"0::/../../../{SLICE}/cri-containerd-{ID}.scope/init.scope\n", (UID, ID)),
        (f"0::/kubelet.slice/kubelet-{SLICE.replace('/', '/kubelet-')}/cri-containerd-{ID}.scope\n", (UID, ID)),
        (f"13:misc:/\n5:devices:/kubepods.slice/{SLICE}/cri-containerd-{ID}.scope\n0::/\n", (UID, ID)),
        (f"0::/kubepods/burstable/pod{UID}/{ID}/kubepods/burstable/pod{OTHER_UID}/{OTHER_ID}\n", (UID, ID)),
        ("0::/system.slice/nvidia-dcgm.service\n", ("", "")),
        (f"0::/machine.slice/libpod-{ID}.scope\n", ("", "")),
        (f"0::/system.slice/docker-{ID}.scope\n", ("", "")),
        (f"0::/kubepods/burstable/pod{UID}\n", ("", "")),
        ("", ("", "")),
    ],
    ids=[
        "v2",
        "static pod",
        "seen from a container",
        "v1",
        "systemd",
        "systemd by colons",
        "CRI-O",
        "CRI-O with crun and systemd",
        "seen from a container of the same quality of service",
        "seen from a container, systemd in it",
        "a root of its own, as kind has",
        "v1 beside v2",
        "a cluster in a container",
        "host",
        "podman",
        "docker",
        "pod",
        "none",
    ],
)
def test_a_cgroup_names_the_pod_and_the_container(text: str, found: tuple[str, str]) -> None:
    assert in_pod(text) == found


IN_POD = f"0::/kubepods/pod{UID}/{ID}\n"


@pytest.mark.parametrize(
    ("cgroup", "administering", "is_the_nodes"),
    [
        ("0::/system.slice/mps.service\n", "", True),
        ("0::/user.slice/user-1000.slice\n", "", True),
        (IN_POD, ID, True),
        (IN_POD, OTHER_ID, False),
    ],
    ids=["a service of the host", "a user of the host", "a privileged container", "any other container"],
)
def test_a_process_is_the_nodes_outside_pods_and_in_a_container_that_administers_the_host(
    tmp_path: Path, cgroup: str, administering: str, *, is_the_nodes: bool
) -> None:
    host_process(tmp_path, 300, began=5000)
    (tmp_path / "300" / "cgroup").write_text(cgroup)
    assert is_of_node(300, administering.__eq__, tmp_path) is is_the_nodes


def test_a_process_that_ends_is_not_the_nodes_though_it_is_in_no_pod_any_more(tmp_path: Path) -> None:
    host_process(tmp_path, 300, began=5000, flags=0x400100 | EXITING)
    (tmp_path / "300" / "cgroup").write_text("4:memory:/\n0::/\n")  # as cgroup version 1 has it
    assert not is_of_node(300, ID.__eq__, tmp_path)


def test_a_process_that_is_gone_is_not_the_nodes(tmp_path: Path) -> None:
    assert not is_of_node(300, ID.__eq__, tmp_path)


def test_processes_have_the_names_that_the_kernel_gives_them(tmp_path: Path) -> None:
    for pid, name in ((1, b"systemd\n"), (300, b"a\nb\xff\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_bytes(name)
    (tmp_path / "301").mkdir()  # it has ended meanwhile
    (tmp_path / "sys").mkdir()
    assert process_names(tmp_path) == {1: b"systemd", 300: b"a\nb\xff"}


def host_process(
    proc: Path,
    pid: int,
    began: int,
    *,
    own_pid: int = 7,
    name: str = "python",
    flags: int = 0x400100,
) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = " ".join(str(flags if number == FLAGS else number) for number in range(4, 22))
    (folder / "stat").write_bytes(f"{pid} ({name}) S {fields} {began} 0 0\n".encode("latin-1"))
    (folder / "status").write_bytes(f"Name:\t{name}\nNSpid:\t{pid}\t{own_pid}\n".encode("latin-1"))
    (folder / "cgroup").write_text(IN_POD)


@pytest.mark.parametrize("name", ["python", "a b", "a) S (b", "\xff", "\rNSpid:\t8", "\x0bNSpid:\t8"])
def test_a_process_is_known_by_its_pid_in_its_own_namespace_and_its_start(tmp_path: Path, name: str) -> None:
    host_process(tmp_path, 300, began=5000, name=name)
    assert read_process(300, tmp_path) == Process(300, 7, 5000, UID, ID)


@pytest.mark.parametrize("stat", [b"", b"300 (python) S 1", b"300"])
def test_a_process_whose_stat_is_cut_off_is_none_and_not_the_nodes(tmp_path: Path, stat: bytes) -> None:
    host_process(tmp_path, 300, began=5000)
    (tmp_path / "300" / "stat").write_bytes(stat)
    assert read_process(300, tmp_path) is None
    assert not is_of_node(300, ID.__eq__, tmp_path)


def test_a_process_that_is_gone_is_none(tmp_path: Path) -> None:
    assert read_process(300, tmp_path) is None


def test_a_pid_that_was_reused_is_another_process(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    host_process(tmp_path, 300, began=5000)
    first = processes.look(frozenset({300, 301}))
    host_process(tmp_path, 300, began=6000, own_pid=8)
    second = processes.look(frozenset({300}))
    assert (first[300].start_time, second[300].start_time, second[300].own_pid) == (5000, 6000, 8)
    assert list(first) == [300]
