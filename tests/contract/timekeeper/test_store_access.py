"""Access to the store: TLS both ways, and a user of the timekeeper's own."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from fairgpu.certificates import Pair, make_authority, make_leaf
from tests.support.ledger.harness import LedgerHarness
from tests.support.ports import free_port
from tests.support.processes import kill
from tests.support.servers.redis_binaries import redis_7
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.redis_shapes import ClusterShape, SentinelShape
from tests.support.waiting import wait_until
from timekeeper.domain.money import GPU_SECOND
from timekeeper.ledger import keys, present_use
from timekeeper.ledger.connection import connect, identity, store_clock
from timekeeper.ledger.present_use import PresentUse
from timekeeper.settings import ClusterSettings, RedisSettings, RedisTLS, SentinelSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ACL = tuple((ROOT / "deploy" / "base" / "redis" / "timekeeper.acl").read_text().split())
"""The rights that the timekeeper's user needs; on a Redis Cluster +cluster|slots too."""
USER = ("--user", "timekeeper", "on", ">correct-horse", *ACL)
DAY = timedelta(days=1)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """An authority, another one, and a certificate for 127.0.0.1 and the client."""
    folder = tmp_path / "tls"
    folder.mkdir()
    now = datetime.now(UTC)
    authority, other = make_authority("redis", now, DAY), make_authority("other", now, DAY)
    leaf = make_leaf(authority, ["127.0.0.1"], now, DAY)
    files = {"ca": authority.certificate_pem, "other": other.certificate_pem, "tls": leaf.certificate_pem}
    for name, pem in files.items():
        (folder / f"{name}.crt").write_bytes(pem)
    (folder / "tls.key").write_bytes(leaf.key_pem)
    write_client_certificate(folder, authority, now)
    return folder


def write_client_certificate(folder: Path, authority: Pair, now: datetime) -> None:
    """client.crt and client.key, of a key of its own: the project itself makes none for clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem).subject
    signer = serialization.load_pem_private_key(authority.key_pem, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = x509.CertificateBuilder(issuer, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "timekeeper")]))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    certificate = builder.not_valid_before(now - DAY).not_valid_after(now + DAY).sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / "client.crt").write_bytes(certificate.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "client.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def tls_options(certificates: Path, port: int) -> list[str]:
    files = {"cert": certificates / "tls.crt", "key": certificates / "tls.key", "ca-cert": certificates / "ca.crt"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(file))]
    return ["--tls-port", str(port), *options, "--tls-auth-clients", "yes"]


def trusting(certificates: Path) -> RedisTLS:
    return RedisTLS(
        enabled=True,
        ca_file=certificates / "ca.crt",
        certificate_file=certificates / "client.crt",
        key_file=certificates / "client.key",
    )


@pytest.fixture
def over_tls(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that speaks TLS too; the wheel's cannot."""
    monkeypatch.setenv("FAIRGPU_REDIS_SERVER", redis_7())
    port = free_port()
    folder = tmp_path / "server"
    folder.mkdir()
    with RedisServer(folder, *tls_options(certificates, port)):
        yield f"rediss://127.0.0.1:{port}/0"


def test_the_store_is_reached_over_tls_by_who_trusts_its_authority(over_tls: str, certificates: Path) -> None:
    with connect(RedisSettings(url=over_tls, tls=trusting(certificates))) as client:
        assert client.ping()


def test_a_redis_cluster_is_reached_over_tls(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRGPU_REDIS_SERVER", redis_7())
    port = free_port()
    options = ("--tls-cluster", "yes", *tls_options(certificates, port))
    with ClusterShape(tmp_path, *options, primaries=1, replicas=0):
        nodes = ClusterSettings(nodes=(f"127.0.0.1:{port}",))
        with connect(RedisSettings(cluster=nodes, tls=trusting(certificates))) as client:
            harness = LedgerHarness(tmp_path, client)
            (tmp_path / "pods").mkdir(exist_ok=True)
            harness.reconcile()
            assert identity(client)[1]


def test_sentinels_and_their_master_are_reached_over_tls(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRGPU_REDIS_SERVER", redis_7())
    port, sentinel, folder = free_port(), free_port(), tmp_path / "server"
    folder.mkdir()
    file = tmp_path / "sentinel.conf"
    file.write_text(f"port 0\ntls-replication yes\nsentinel monitor books 127.0.0.1 {port} 1\n")
    with RedisServer(folder, *tls_options(certificates, port)):
        process = subprocess.Popen([redis_7(), str(file), "--sentinel", *tls_options(certificates, sentinel)])
        try:
            watched = SentinelSettings(nodes=(f"127.0.0.1:{sentinel}",), master="books")
            with connect(RedisSettings(sentinel=watched, tls=trusting(certificates))) as client:
                wait_until(lambda: answers(client), "the master is reached")
                assert client.set("fairgpu:{a}:written", "over TLS")
        finally:
            kill(process)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.mark.parametrize("authority", ["other.crt", None])
def test_a_store_that_an_unknown_authority_signed_for_is_shown_nothing(
    over_tls: str, certificates: Path, authority: str | None
) -> None:
    stranger = RedisTLS(ca_file=certificates / authority if authority else None)
    settings = RedisSettings(url=over_tls, tls=stranger, password=SecretStr("a secret"))
    with connect(settings) as client, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        client.ping()


def test_a_client_without_a_certificate_is_refused_where_the_store_asks_for_one(
    over_tls: str, certificates: Path
) -> None:
    settings = RedisSettings(url=over_tls, tls=RedisTLS(ca_file=certificates / "ca.crt"))
    with connect(settings) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_store_under_another_name_than_its_certificates_is_shown_nothing(over_tls: str, certificates: Path) -> None:
    settings = RedisSettings(
        url=over_tls.replace("127.0.0.1", "localhost"), tls=RedisTLS(ca_file=certificates / "ca.crt")
    )
    with connect(settings) as client, pytest.raises(redis.ConnectionError, match="certificate"):
        client.ping()


@pytest.mark.parametrize("shape", ["single", "sentinel", "cluster"])
def test_a_user_of_its_own_that_may_only_what_the_timekeeper_does_keeps_the_books(tmp_path: Path, shape: str) -> None:
    place, folder = tmp_path / "store", tmp_path / "harness"
    place.mkdir()
    folder.mkdir()
    with started(shape, place) as settings:
        named = settings.model_copy(update={"username": "timekeeper", "password": SecretStr("correct-horse")})
        with connect(named) as client:
            harness = LedgerHarness(folder, client)
            harness.budget("a", ["team-a"])
            harness.pod("p1", "team-a")
            harness.reconcile()
            harness.pod("p2", "team-a")
            harness.remove("p1")
            harness.reconcile(10)
            assert harness.spent("a") == 20 * GPU_SECOND
            assert store_clock(client) > 0
            for uses in ({"p2": PresentUse(1, 3, 5)}, {"p3": PresentUse(1, 3, 5)}):
                present_use.write(client, uses, {})
            assert present_use.shown(client.hmget(keys.PRESENT_USE, ["p3"])[0], 2) == PresentUse(1, 3, 5)
            with pytest.raises(redis.ResponseError, match="no permissions"):
                client.flushall()


def test_the_user_may_run_every_command_of_the_scripts() -> None:
    scripts = (ROOT / "timekeeper" / "ledger" / "scripts").glob("*.lua")
    used = {word.lower() for file in scripts for word in re.findall(r"redis\.p?call\('(\w+)'", file.read_text())}
    assert used
    assert {f"+{word}" for word in used} <= set(ACL)


def test_the_user_in_the_instructions_is_the_one_that_is_tested_here() -> None:
    text = " ".join((ROOT / "docs" / "redis.md").read_text().split())
    assert f"ACL SETUSER timekeeper on >PASSWORD {' '.join(ACL)}" in text


@contextmanager
def started(shape: str, place: Path) -> Iterator[RedisSettings]:
    if shape == "single":
        with RedisServer(place, *USER) as server:
            yield RedisSettings(url=server.url)
    elif shape == "sentinel":
        with SentinelShape(place, *USER) as behind_sentinels:
            yield behind_sentinels.settings
    else:
        with ClusterShape(place, *USER, "+cluster") as cluster:
            yield cluster.settings
