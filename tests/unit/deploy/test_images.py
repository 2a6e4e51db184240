"""The images take the tested versions, and no image runs as root."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "deploy" / "images"
LOCKS = [str(path.relative_to(IMAGES)) for path in sorted(IMAGES.glob("*/*.lock"))]


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", lock.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", LOCKS)
def test_an_image_takes_the_versions_that_were_tested(name: str) -> None:
    """If this fails, `make lock` writes all lock files anew."""
    tested, taken = pins(ROOT / "requirements.lock"), pins(IMAGES / name)
    assert taken
    assert {package: tested.get(package) for package in taken} == taken


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_an_image_is_known_by_its_hash(name: str) -> None:
    text = (IMAGES / name).read_text()
    for requirement in re.split(r"\n(?=[a-z])", text):
        assert "--hash=sha256:" in requirement, requirement


@pytest.mark.parametrize("containerfile", sorted(IMAGES.glob("*/Containerfile")), ids=lambda path: path.parent.name)
def test_an_image_runs_as_nobody_in_particular(containerfile: Path) -> None:
    final = containerfile.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9][0-9]*:[1-9][0-9]*$", final, re.MULTILINE)
    assert "RUN " not in final
    assert "ADD " not in containerfile.read_text()


@pytest.mark.parametrize("image", ["service", "nodeagent"])
def test_an_image_has_every_package_that_the_command_line_loads_but_the_demonstration(image: str) -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    named = set(re.findall(r"= (\w+)", metadata["options.entry_points"]["fairgpu.commands"]))
    copied = set(re.findall(r"^COPY (\w+)/ \1/$", (IMAGES / image / "Containerfile").read_text(), re.MULTILINE))
    assert named - copied == {"demo"}


def test_the_sidecar_imports_from_its_own_archive_alone() -> None:
    entry = (IMAGES / "sidecar" / "Containerfile").read_text().strip().splitlines()[-1]
    assert re.match(r'ENTRYPOINT \["python3", "-I", "-S", .*"/opt/fairgpu/sidecar.pyz"\]$', entry)


def test_the_sidecar_starts_with_the_bytecode_that_its_image_was_built_with() -> None:
    text = (IMAGES / "sidecar" / "Containerfile").read_text()
    (built,) = re.findall(r"^RUN python -I -S -X pycache_prefix=(\S+) ", text, re.MULTILINE)
    entry = json.loads(text.strip().splitlines()[-1].removeprefix("ENTRYPOINT "))
    (copied,) = re.findall(r"^COPY --from=build (\S+) \1$", text, re.MULTILINE)
    assert f"pycache_prefix={built}" in entry
    assert Path(built).is_relative_to(copied)


@pytest.mark.parametrize("containerfile", sorted(IMAGES.glob("*/Containerfile")), ids=lambda path: path.parent.name)
@pytest.mark.parametrize(
    ("base", "taken"),
    [
        ("docker.io/library/python@sha256:" + "0" * 64, True),
        ("docker.io/library/python:3.13-slim@sha256:" + "0" * 64, True),
        ("docker.io/library/python:3.13-slim", False),
        ("", False),
    ],
)
def test_a_build_from_a_base_without_a_digest_fails(containerfile: Path, base: str, taken: bool) -> None:  # noqa: FBT001
    text = containerfile.read_text()
    assert re.findall(r"^ARG PYTHON.*$", text, re.MULTILINE) == ["ARG PYTHON", "ARG PYTHON"]
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${PYTHON}"}
    (check,) = re.findall(r'^RUN (case "\$PYTHON".*)$', text, re.MULTILINE)
    tried = subprocess.run(["sh", "-c", check], env={"PYTHON": base}, check=False, capture_output=True, text=True)
    assert (tried.returncode == 0) is taken
    assert ("has no digest" in tried.stderr) is not taken
