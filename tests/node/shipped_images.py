"""The images of deploy/images, laid out on this machine's Python by the Containerfiles' own instructions."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distributions
from pathlib import Path

from sidecar.archive import build
from tests.node.images import image

ROOT = Path(__file__).parents[2]
CONTAINERFILES = ROOT / "deploy" / "images"
NOT_SHIPPED = frozenset({"test", "tests", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages"})
"""Folders of the standard library that no service imports, and those of this machine alone."""
BYTECODE = "__pycache__"


def sidecar(folder: Path, name: str) -> Path:
    """The reporter in users' pods."""
    containerfile = CONTAINERFILES / "sidecar" / "Containerfile"
    archive = folder / "sidecar.pyz"
    build(archive)
    entry = json.loads(_last(containerfile, "ENTRYPOINT"))
    (bytecode,) = [word.partition("=")[2] for word in entry if word.startswith("pycache_prefix=")]
    files = _python(bytecode.lstrip("/")) | {entry[-1].lstrip("/"): archive}
    return image(folder / "sidecar.tar", name, entry, files, _last(containerfile, "USER"))


def nodeagent(folder: Path, name: str, shim: Path, root: Path = ROOT) -> Path:
    """The agent of a GPU node, with this build of the shim; `root` has the sources of its packages."""
    containerfile = CONTAINERFILES / "nodeagent" / "Containerfile"
    (entry,) = json.loads(_last(containerfile, "ENTRYPOINT"))
    home = Path(entry.lstrip("/")).parents[1]
    packages = home / "lib" / Path(sysconfig.get_path("stdlib")).name / "site-packages"
    (folder / "pyvenv.cfg").write_text("home = /usr/local/bin\n")
    (folder / "fairgpu").write_text(
        f"#!/{home}/bin/python\nfrom fairgpu.commands import main\nraise SystemExit(main())\n"
    )
    files = {
        str(home / "pyvenv.cfg"): folder / "pyvenv.cfg",
        str(home / "bin" / "python"): Path(sys.executable).resolve(),
        str(home / "bin" / "fairgpu"): folder / "fairgpu",
        _copied(containerfile, "libvcuda.so.1").lstrip("/"): shim,
    }
    files |= _python("") | _packages(containerfile, root, packages)
    files |= _locked(CONTAINERFILES / "nodeagent" / "nodeagent.lock", packages)
    environment = _last(containerfile, "ENV").replace("$PATH", "/usr/local/bin:/usr/bin:/bin").split()
    return image(folder / "nodeagent.tar", name, [entry], files, _last(containerfile, "USER"), environment)


def _copied(containerfile: Path, name: str) -> str:
    """Returns the path at which the last COPY of a file of this name puts it."""
    lines = [line.split() for line in containerfile.read_text().splitlines() if line.startswith("COPY ")]
    return [line[-1] for line in lines if line[-2].endswith(f"/{name}")][-1]


def packages_of(containerfile: Path) -> list[str]:
    """The packages of this repository that a Containerfile copies."""
    return re.findall(r"^COPY (\w+)/ \1/$", containerfile.read_text(), re.MULTILINE)


def _packages(containerfile: Path, root: Path, target: Path) -> dict[str, Path]:
    """The packages of this repository that the Containerfile copies, and the metadata by which commands are found."""
    found = {
        str(target / path.relative_to(root)): path
        for name in packages_of(containerfile)
        for path in (root / name).rglob("*")
        if path.is_file()
    }
    return found | _installed("fairgpu", target, lambda path: ".dist-info/" in path)


def _locked(lock: Path, target: Path) -> dict[str, Path]:
    """The packages that a lock names, as they are installed here; those for other platforms may be missing."""
    found: dict[str, Path] = {}
    for name, condition in re.findall(r"^([\w.-]+)==\S+ (;.*)?", lock.read_text(), re.MULTILINE):
        try:
            found |= _installed(name, target, lambda path: not path.startswith(".."))
        except PackageNotFoundError:
            if not condition:
                raise
    return found


def _installed(name: str, target: Path, wanted: Callable[[str], bool]) -> dict[str, Path]:
    """The wanted files of an installed distribution; a build's metadata in the checkout is not one."""
    here = next(iter(distributions(name=name, path=[sysconfig.get_path("purelib")])), None)
    if here is None:
        raise PackageNotFoundError(name)
    listed = [str(path) for path in here.files or () if wanted(str(path))]
    found = {str(target / path): Path(str(here.locate_file(path))) for path in listed}
    return {path: source for path, source in found.items() if source.exists()}


def _python(bytecode: str) -> dict[str, Path]:
    """Python and its standard library where the official images have them.

    Its bytecode lies below a folder of its own where one is named (PYTHONPYCACHEPREFIX), else beside the sources.
    """
    library = Path(sysconfig.get_path("stdlib"))
    target = Path("usr/local/lib", library.name)
    found = {"usr/local/bin/python3": Path(sys.executable).resolve()}
    for folder, below, names in os.walk(library):
        below[:] = [name for name in below if name not in NOT_SHIPPED]
        for path in (Path(folder, name) for name in names):
            at = target / path.relative_to(library)
            is_bytecode = path.parent.name == BYTECODE and bytecode != ""
            found[str(Path(bytecode, at.parent.parent, at.name) if is_bytecode else at)] = path.resolve()
    return found


def _last(containerfile: Path, instruction: str) -> str:
    """The arguments of the last instruction of a kind."""
    lines = containerfile.read_text().splitlines()
    return [line.removeprefix(instruction).strip() for line in lines if line.startswith(f"{instruction} ")][-1]
