"""The Redis of the installation: its configuration and scripts from the manifests, run by a real redis-server."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from pydantic import SecretStr

from fairgpu.certificates import Pair, make_authority, make_leaf, utc_now
from tests.support.ledger.harness import LedgerHarness
from tests.support.ports import free_port
from tests.support.processes import end
from tests.support.servers.redis_binaries import redis_7, redis_cli
from tests.support.waiting import LIMIT_S, wait_until
from timekeeper.domain.money import GPU_SECOND
from timekeeper.ledger.connection import connect
from timekeeper.settings import RedisSettings, RedisTLS

REDIS = Path(__file__).parents[3] / "deploy" / "base" / "redis"
PASSWORD = "correct horse battery staple"
DAY = timedelta(days=1)
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def containers() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((REDIS / "statefulset.yaml").read_text())
    (workload,) = [document for document in documents if document["kind"] == "StatefulSet"]
    return {container["name"]: container for container in workload["spec"]["template"]["spec"]["containers"]}


@dataclass
class Pod:
    """The containers' folders, below one of the test's own, and what runs in them."""

    folder: Path
    port: int
    authority: Pair
    processes: list[subprocess.Popen[bytes]]

    def mounted(self, text: str) -> str:
        """A script or configuration as it is where the mounts are elsewhere and no wait takes minutes."""
        for mount in ("/run/redis", "/data", "/etc/redis-tls", "/etc/redis"):
            text = text.replace(f"{mount}/", f"{self.folder}{mount}/").replace(
                f"dir {mount}\n", f"dir {self.folder}{mount}\n"
            )
        return text.replace("sleep 20", "sleep 0.1")

    def present(self, *names: str) -> None:
        """Mounts a certificate for these names; the key and it change at one moment, as in a mounted Secret."""
        leaf = make_leaf(self.authority, names, utc_now(), DAY)
        mount = self.folder / "etc" / "redis-tls"
        data = Path(tempfile.mkdtemp(prefix="..", dir=mount))
        (data / "tls.crt").write_bytes(leaf.certificate_pem)
        (data / "tls.key").write_bytes(leaf.key_pem)
        link = mount / "..data.new"
        link.symlink_to(data)
        link.replace(mount / "..data")

    def run(self, container: str) -> subprocess.Popen[bytes]:
        *shell, script = containers()[container]["command"]
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        with (self.folder / f"{container}.log").open("ab") as log:
            process = subprocess.Popen(
                [*shell, self.mounted(script)],
                env={"TIMEKEEPER_PASSWORD": PASSWORD, "PATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
                restore_signals=False,  # a write beyond what limit_files allows fails, and does not end Redis
            )
        self.processes.append(process)
        return process

    def settings(self, **fields: Any) -> RedisSettings:
        given: dict[str, Any] = {"username": "timekeeper", "password": SecretStr(PASSWORD), **fields}
        url = f"rediss://localhost:{self.port}/0"
        return RedisSettings(url=url, tls=RedisTLS(ca_file=self.folder / "ca.crt"), **given)

    def operator(self, *arguments: str) -> str:
        command = ["sh", str(self.folder / "run" / "redis" / "cli"), *arguments]
        environment = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        return done.stdout + done.stderr

    def probe(self, name: str) -> bool:
        """Returns whether a probe of the container `redis` succeeds now, run as the kubelet runs it."""
        command = [self.mounted(word) for word in containers()["redis"][name]["exec"]["command"]]
        environment = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
        return done.returncode == 0

    def end(self) -> None:
        """SIGTERM to Redis; returns once it has ended."""
        end(self.processes.pop())

    def limit_files(self, size_bytes: int | None) -> None:
        """Lets no file of Redis grow beyond this size: its writes then fail as on a full disk. None takes that back."""
        (process,) = self.processes
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))

    def presented(self) -> str | None:
        """The serial number of the certificate that a new connection is shown."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        with (
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            shown: Any = wrapped.getpeercert()
            return str(shown["serialNumber"])

    def log(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("*.log"))


@contextmanager
def prepared() -> Iterator[Pod]:
    """The pod as it stands before its first start, the timekeeper's authority having signed for it."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-redis-pod-") as name:  # short: a socket's path has 107 bytes
        folder = Path(name)
        for mount in ("run/redis", "data", "etc/redis-tls", "etc/redis", "bin"):
            (folder / mount).mkdir(parents=True)
        authority = make_authority("FairGPU timekeeper", utc_now(), DAY)
        (folder / "ca.crt").write_bytes(authority.certificate_pem)
        for program, found in (("redis-server", redis_7()), ("redis-cli", redis_cli())):
            (folder / "bin" / program).symlink_to(found)
        pod = Pod(folder, free_port(), authority, [])
        for file in ("tls.crt", "tls.key"):
            (folder / "etc" / "redis-tls" / file).symlink_to(f"..data/{file}")
        pod.present("localhost")
        configuration = pod.mounted((REDIS / "redis.conf").read_text()).replace("tls-port 6379", f"tls-port {pod.port}")
        (folder / "etc" / "redis" / "redis.conf").write_text(configuration + "bind 127.0.0.1\n")
        shutil.copy(REDIS / "timekeeper.acl", folder / "etc" / "redis")
        try:
            yield pod
        finally:
            for process in pod.processes:
                with contextlib.suppress(ProcessLookupError):  # it has ended, and all that it started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(LIMIT_S)


@contextmanager
def running() -> Iterator[Pod]:
    """The pod with its Redis running."""
    with prepared() as pod:
        process = pod.run("redis")
        wait_until(lambda: process.poll() is not None or "PONG" in pod.operator("ping"), "Redis answers")
        assert process.poll() is None, pod.log()
        yield pod


@pytest.fixture(scope="module")
def server() -> Iterator[Pod]:
    """One for all tests that leave it as they found it."""
    with running() as pod:
        yield pod


@pytest.fixture
def own_server() -> Iterator[Pod]:
    """One for a test that gives it another certificate."""
    with running() as pod:
        yield pod


def test_the_timekeeper_keeps_its_books_there_and_may_do_nothing_else(server: Pod, tmp_path: Path) -> None:
    with connect(server.settings()) as client:
        harness = LedgerHarness(tmp_path, client)
        harness.budget("a", ["team-a"])
        harness.pod("p1", "team-a")
        harness.reconcile(10)
        assert harness.spent("a") == 10 * GPU_SECOND
        for command in ("FLUSHALL", "KEYS *", "CONFIG GET *", "SHUTDOWN", "ACL LIST", "MONITOR", "SCRIPT FLUSH"):
            with pytest.raises(redis.ResponseError, match="no permissions"):
                client.execute_command(*command.split())
        with pytest.raises(redis.ResponseError, match=r"(?i)no permissions"):
            client.set("others", "x")


def documented_commands() -> list[str]:
    """The arguments of each `sh /run/redis/cli` in the documents."""
    documents = [*(REDIS.parents[2] / "docs").rglob("*.md")]
    texts = [found for file in documents for found in re.findall(r"sh /run/redis/cli ([^`|\n]+)", file.read_text())]
    return sorted({text.strip() for text in texts})


@pytest.mark.parametrize("command", documented_commands())
def test_an_operator_may_run_each_command_of_the_documents(own_server: Pod, command: str) -> None:
    answer = own_server.operator(*shlex.split(command))
    assert answer
    assert not re.match("NOPERM|ERR", answer)


def test_an_operator_corrects_a_key_that_holds_another_type_and_deletes_no_store(own_server: Pod) -> None:
    key = "fairgpu:{a}:head"
    for command, answer in (
        (("set", key, "nonsense"), "OK"),
        (("type", key), "string"),
        (("del", key), "1"),
        (("hset", key, "version", "7"), "1"),
        (("hgetall", key), "version\n7"),
    ):
        assert own_server.operator(*command).strip() == answer
    assert "id=" in own_server.operator("client", "list")
    for refused in (("flushall",), ("keys", "*"), ("set", "others", "x"), ("shutdown",), ("acl", "list")):
        assert "NOPERM" in own_server.operator(*refused)


@pytest.mark.parametrize(
    "fields",
    [{"username": None}, {"username": "default"}, {"password": SecretStr("wrong")}, {"username": "operator"}],
    ids=["no user", "default", "wrong password", "operator"],
)
def test_it_answers_no_other_caller(server: Pod, fields: dict[str, Any]) -> None:
    with connect(server.settings(**fields)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_it_speaks_tls_alone_and_not_an_old_one(server: Pod) -> None:
    with redis.Redis(port=server.port) as plain, pytest.raises((redis.ConnectionError, redis.TimeoutError)):
        plain.ping()
    assert server.operator("config", "get", "port").split() == ["port", "0"]
    assert server.operator("config", "get", "tls-protocols").split() == ["tls-protocols", "TLSv1.2", "TLSv1.3"]


def test_a_server_under_another_name_or_authority_is_shown_no_password(server: Pod) -> None:
    elsewhere = server.settings().model_copy(update={"url": f"rediss://127.0.0.1:{server.port}/0"})
    for settings in (elsewhere, server.settings().model_copy(update={"tls": RedisTLS()})):
        with connect(settings) as client, pytest.raises(redis.ConnectionError, match="certificate"):
            client.ping()


def test_a_timekeeper_whose_authority_is_not_mounted_yet_waits_for_it(server: Pod) -> None:
    authority = (server.folder / "ca.crt").rename(server.folder / "later.crt")
    with connect(server.settings()) as client:
        with pytest.raises(redis.ConnectionError):
            client.ping()
        authority.rename(server.folder / "ca.crt")
        assert client.ping()


def test_a_renewed_certificate_is_shown_to_new_connections_and_ends_no_old_one(own_server: Pod) -> None:
    first = own_server.presented()
    reloading = own_server.run("certificate")
    wait_until((own_server.folder / "run" / "redis" / "certificate-is-current").exists, "the certificate is loaded")
    with connect(own_server.settings()) as client:
        client.set("fairgpu:{a}:kept", "x")
        number = client.client_id()
        own_server.present("localhost")
        wait_until(lambda: own_server.presented() != first, "another certificate is shown")
        assert client.get("fairgpu:{a}:kept") == b"x"
        assert client.client_id() == number
    assert reloading.poll() is None


def test_a_certificate_that_cannot_be_used_changes_nothing_and_is_tried_again(own_server: Pod) -> None:
    own_server.run("certificate")
    current = own_server.folder / "run" / "redis" / "certificate-is-current"
    wait_until(current.exists, "the certificate is loaded")
    mounted = own_server.folder / "etc" / "redis-tls" / "..data" / "tls.crt"
    first, sound = own_server.presented(), mounted.read_bytes()
    mounted.write_bytes(b"nonsense")
    wait_until(lambda: "Failed to load certificate" in own_server.log(), "Redis refuses the certificate")
    assert own_server.presented() == first
    mounted.write_bytes(sound)
    current.unlink()
    wait_until(current.exists, "the certificate is loaded")


def test_the_loop_that_loads_certificates_ends_while_it_waits(own_server: Pod) -> None:
    asleep, program = own_server.folder / "asleep", own_server.folder / "bin" / "sleep"
    program.write_text(f"#!/bin/sh\n: > {asleep}\nexec /bin/sleep {10 * LIMIT_S}\n")
    program.chmod(0o755)
    loop = own_server.run("certificate")
    wait_until(asleep.exists, "the loop waits")
    loop.terminate()
    assert loop.wait(LIMIT_S) == 0


def test_it_keeps_an_append_only_file_and_evicts_nothing(server: Pod) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    assert {key: server.operator("config", "get", key).split()[1] for key in wanted} == wanted


def test_a_full_disk_neither_restarts_it_nor_takes_it_from_its_readers(own_server: Pod) -> None:
    """A start would forget what could not be written, and a pod that is not ready has no address for its readers."""
    with connect(own_server.settings()) as client:
        client.set("fairgpu:{a}:kept", "x")
        own_server.limit_files(max(file.stat().st_size for file in (own_server.folder / "data").rglob("*.aof")))
        wait_until(lambda: is_refused(client), "Redis refuses to write")
        assert {name: own_server.probe(name) for name in PROBES} == dict.fromkeys(PROBES, True)
        assert client.get("fairgpu:{a}:kept") == b"x"
        own_server.limit_files(None)
        wait_until(lambda: not is_refused(client), "Redis writes again")


def test_no_probe_succeeds_where_redis_has_ended(own_server: Pod) -> None:
    own_server.end()
    assert not any(own_server.probe(name) for name in PROBES)


def test_it_is_not_ready_while_it_loads_its_file(own_server: Pod) -> None:
    with connect(own_server.settings()) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(200_000):
            pipeline.set(f"fairgpu:{{a}}:{number}", "x")
        pipeline.execute()
    own_server.end()
    with (own_server.folder / "etc" / "redis" / "redis.conf").open("a") as configuration:
        configuration.write(
            "key-load-delay 100\n"
        )  # microseconds a key: it loads for 20 seconds or more, and answers each 1,024 keys
    own_server.run("redis")
    wait_until(lambda: "loading:1" in own_server.operator("info", "persistence"), "Redis loads its file")
    assert not own_server.probe("readinessProbe")
    assert not own_server.probe("startupProbe")


def is_refused(client: redis.Redis) -> bool:
    """Returns whether Redis refuses a write because it cannot write its file."""
    try:
        client.set("fairgpu:{a}:tried", "x")
    except redis.ResponseError as error:
        return "MISCONF" in str(error)
    return False


def test_no_password_is_in_an_argument_the_environment_or_a_file_that_others_read(server: Pod) -> None:
    (process,) = server.processes
    for name in ("cmdline", "environ"):
        assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/{name}").read_bytes()
    for file in (server.folder / "run" / "redis").iterdir():
        if file.is_file():
            assert file.stat().st_mode & 0o077 == 0
            assert PASSWORD not in file.read_text()
