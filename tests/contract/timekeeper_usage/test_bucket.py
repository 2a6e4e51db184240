from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fairgpu.certificates import make_authority, make_leaf
from tests.support.ports import free_port
from tests.support.servers.s3_server import BUCKET, S3Server
from tests.support.waiting import LIMIT_S
from timekeeper.export.bucket import Bucket
from timekeeper.export.destination import ChangedError, DeposedError, ExportError
from timekeeper.settings import BucketSettings

if TYPE_CHECKING:
    from pathlib import Path

NAME = "usage-2026-01.csv.gz"
SECRET = "a-secret-that-nobody-may-see"


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / "access_key_id").write_text("AKIAEXPORTER\n")
    (folder / "secret_access_key").write_text(f"{SECRET}\n")
    return folder


def bucket(server: S3Server, credentials: Path, **settings: object) -> Bucket:
    given = {"name": BUCKET, "endpoint": server.url, "credentials_folder": credentials, "timeout_seconds": LIMIT_S}
    read = BucketSettings.model_validate({**given, **settings})
    return Bucket(read.name or "", read)


def test_a_file_is_there_whole_under_its_prefix(s3_server: S3Server, credentials: Path) -> None:
    place = bucket(s3_server, credentials, prefix="gpu/usage")
    assert place.names() == []
    assert place.read(NAME) is None
    assert place.tag(NAME) is None
    tag = place.write(NAME, b"1" * 9_000_000, None, lambda: True)
    assert place.read(NAME) == (b"1" * 9_000_000, tag)
    assert place.tag(NAME) == tag
    assert place.names() == [NAME]
    assert bucket(s3_server, credentials).names() == []


def test_a_text_that_another_writer_left_is_not_replaced(s3_server: S3Server, credentials: Path) -> None:
    place = bucket(s3_server, credentials)
    first = place.write(NAME, b"first", None, lambda: True)
    with pytest.raises(ChangedError):
        place.write(NAME, b"other", None, lambda: True)
    second = place.write(NAME, b"second", first, lambda: True)
    with pytest.raises(ChangedError):
        place.write(NAME, b"late", first, lambda: True)
    assert place.read(NAME) == (b"second", second)


def test_a_replica_that_leads_no_more_writes_nothing(s3_server: S3Server, credentials: Path) -> None:
    place = bucket(s3_server, credentials)
    with pytest.raises(DeposedError):
        place.write(NAME, b"late", None, lambda: False)
    assert place.names() == []


def test_access_denied_is_shown_without_a_secret(s3_server: S3Server, credentials: Path) -> None:
    place = bucket(s3_server, credentials)
    s3_server.refuse_everybody()
    asked = [
        place.names,
        lambda: place.read(NAME),
        lambda: place.write(NAME, b"x", None, lambda: True),
        lambda: place.tag(NAME),
    ]
    for ask in asked:
        with pytest.raises(ExportError) as caught:
            ask()
        assert SECRET not in str(caught.value)
        assert "AKIAEXPORTER" not in str(caught.value)
        assert any(word in str(caught.value) for word in ("InvalidAccessKeyId", "AccessDenied", "403", "Permission"))


def test_a_bucket_that_is_away_or_was_never_made_is_reported(s3_server: S3Server, credentials: Path) -> None:
    missing = bucket(s3_server, credentials, name="no-such-bucket")
    for ask in (
        lambda: missing.read(NAME),
        lambda: missing.tag(NAME),
        lambda: missing.write(NAME, b"x", None, lambda: True),
    ):
        with pytest.raises(ExportError, match="NoSuchBucket"):
            ask()
    away = bucket(s3_server, credentials, endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ExportError, match="Connect"):
        away.read(NAME)


def test_credentials_are_read_anew_each_time(s3_server: S3Server, credentials: Path) -> None:
    place = bucket(s3_server, credentials)
    place.write(NAME, b"first", None, lambda: True)
    (credentials / "secret_access_key").unlink()
    with pytest.raises(ExportError, match="secret_access_key cannot be read"):
        place.read(NAME)
    (credentials / "secret_access_key").write_text("another")
    assert place.read(NAME) is not None


def test_a_store_behind_a_ca_of_ones_own_is_trusted_by_its_file_alone(tmp_path: Path, credentials: Path) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    authority = make_authority("s3", now, day)
    leaf = make_leaf(authority, ["127.0.0.1"], now, day)
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem)
    (tmp_path / "tls.crt").write_bytes(leaf.certificate_pem)
    (tmp_path / "tls.key").write_bytes(leaf.key_pem)
    server = S3Server(tmp_path, tmp_path)
    try:
        server.start().make_bucket()
        place = bucket(server, credentials, ca_file=tmp_path / "ca.crt")
        place.write(NAME, b"first", None, lambda: True)
        assert place.names() == [NAME]
        with pytest.raises(ExportError):
            bucket(server, credentials).names()
    finally:
        server.stop()
