"""The build of the control plane's binaries; a script that compiles in no time stands for Go itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.control_plane.build import BINARIES, CONTROL_PLANE, built
from tests.support.processes import ending
from tests.support.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
COMPILER = """#!/bin/sh
if [ "$1" = env ]; then echo "$GO_SAYS"; exit; fi
if [ "$1" = mod ]; then echo "download $3" >> "$GO_LOG"; exit; fi
if [ "$1" = list ]; then echo "$GO_MODULE"; exit; fi
echo build >> "$GO_LOG"
case "$GOCACHE" in "$XDG_CACHE_HOME"/*) ;; *) echo "leaves its cache at $GOCACHE"; exit 1;; esac
sleep 0.3
while [ "$1" != -o ]; do shift; done
for name in server kube-apiserver kube-controller-manager kube-scheduler $GO_LAST; do
    touch "$2$name" && chmod +x "$2$name"
done
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache and a Go that notes what it is asked for."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "go").write_text(COMPILER)
    (tools / "go").chmod(0o755)
    return {
        "PATH": f"{tools}:{os.defpath}",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GO_SAYS": "go1.99.1",
        "GO_LAST": "kubectl",
        "GO_LOG": str(tmp_path / "log"),
        "PIP_NO_INDEX": "1",
    }


def start(environ: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cluster.control_plane.build"]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(environ: dict[str, str]) -> tuple[int, str, str]:
    with ending(start(environ)) as process:
        output, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, output.strip(), errors


def cached(environ: dict[str, str]) -> list[str]:
    folder = Path(environ["XDG_CACHE_HOME"]) / "fairgpu" / "control-plane"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_two_who_need_the_binaries_at_once_compile_them_once(environ: dict[str, str]) -> None:
    with ending(start(environ)) as first, ending(start(environ)) as second:
        folders = {process.communicate(timeout=LIMIT_S)[0].strip() for process in (first, second)}
    assert (first.returncode, second.returncode) == (0, 0)
    assert run(environ)[1] in folders
    assert Path(environ["GO_LOG"]).read_text() == "build\n"
    (folder,) = folders
    assert sorted(path.name for path in Path(folder).iterdir()) == sorted(BINARIES)


def test_a_file_that_is_named_later_is_put_beside_the_binaries_that_are_there(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "api.proto").write_text("of the module")
    for name, value in (environ | {"GO_MODULE": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    folder = built(CONTROL_PLANE, os.environ)
    later = replace(CONTROL_PLANE, files={"cri.proto": ("k8s.io/cri-api", "api.proto")})
    assert built(later, os.environ) == folder
    assert (folder / "cri.proto").read_text() == "of the module"
    assert Path(environ["GO_LOG"]).read_text() == "build\ndownload k8s.io/cri-api\n"
    assert cached(environ) == ["lock", folder.name]


def test_nothing_stays_in_the_cache_but_the_binaries(environ: dict[str, str]) -> None:
    abandoned = Path(environ["XDG_CACHE_HOME"]) / "fairgpu" / "control-plane" / "building-killed"
    abandoned.mkdir(parents=True)
    status, folder, _ = run(environ)
    assert status == 0
    assert cached(environ) == ["lock", Path(folder).name]


def test_a_build_that_fails_leaves_nothing_and_says_what_to_do(environ: dict[str, str]) -> None:
    status, _, errors = run(environ | {"GO_LAST": "something-else"})
    assert status == 1
    assert "lacks kubectl: set FAIRGPU_CONTROL_PLANE_BIN" in errors
    assert cached(environ) == ["lock"]


def test_a_go_that_is_too_old_is_not_used(environ: dict[str, str]) -> None:
    status, _, errors = run(environ | {"GO_SAYS": "go1.22.9"})
    assert status == 1
    assert "no Go of at least 1.24 on PATH" in errors
    assert not Path(environ["GO_LOG"]).exists()


def test_a_folder_that_is_named_is_used_as_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    for name in BINARIES:
        (tmp_path / name).touch(mode=0o755)
    assert run(environ | {"FAIRGPU_CONTROL_PLANE_BIN": str(tmp_path)})[:2] == (0, str(tmp_path))
    (tmp_path / "etcd").unlink()
    status, _, errors = run(environ | {"FAIRGPU_CONTROL_PLANE_BIN": str(tmp_path)})
    assert status == 1
    assert f"{tmp_path} lacks etcd" in errors
    assert cached(environ) == []
