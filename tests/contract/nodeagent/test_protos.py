"""The generated modules are those of the .proto files beside them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GO_MODULE = ROOT / "tests" / "node" / "go.mod"
PROTOS = sorted((ROOT / "nodeagent").glob("*/*.proto"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protos")
    files = [str(path.relative_to(ROOT)) for path in PROTOS]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={folder}", f"--pyi_out={folder}"]
    subprocess.run([*compiler, *files], cwd=ROOT, check=True)
    return folder


MODULES = [path.relative_to(ROOT).with_name(f"{path.stem}_pb2.{kind}") for path in PROTOS for kind in ("py", "pyi")]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_generated_module_is_up_to_date(generated: Path, path: Path) -> None:
    assert (ROOT / path).read_text() == (generated / path).read_text(), "run: make protos"


def test_protos_and_document_name_the_versions_of_the_tests_kubelet_and_runtime() -> None:
    modules = dict(re.findall(r"^\t(k8s\.io/[\w-]+) => k8s\.io/[\w-]+ (v\S+)$", GO_MODULE.read_text(), re.MULTILINE))
    document = (ROOT / "docs" / "dependencies.md").read_text()
    for proto in PROTOS:
        ((module, version),) = re.findall(r"Go module (k8s\.io/[\w-]+) (v[\d.]+)", proto.read_text())
        assert modules[module] == version, proto
        assert f"of {module} {version}" in document
