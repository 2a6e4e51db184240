"""Certificates are kept where all replicas have the same, and the API server is told of each change."""

from __future__ import annotations

import base64
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairgpu.serving.tls import Chain, ChainError, LiveContext
from webhook.certificates.keeping import FolderStore, Keeper
from webhook.certificates.trust import changes
from webhook.settings import Certificates

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def keeper(folder: Path, now: datetime = NOW, published: list[bytes] | None = None) -> Keeper:
    told: list[bytes] = [] if published is None else published
    return Keeper(FolderStore(folder), Certificates(), lambda: now, told.append, lambda _moment: None)


def test_the_first_makes_them_and_the_others_read_them(tmp_path: Path) -> None:
    chain = keeper(tmp_path).chain()
    assert keeper(tmp_path).chain() == chain
    assert keeper(tmp_path, NOW + timedelta(days=30)).chain() == chain
    assert keeper(tmp_path, NOW + timedelta(days=70)).chain() != chain


def test_many_that_start_at_once_end_up_with_the_same(tmp_path: Path) -> None:
    chains: list[Chain] = []
    threads = [threading.Thread(target=lambda: chains.append(keeper(tmp_path).chain())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(chains)) == 1
    assert len(chains) == 8


def test_the_bundle_is_published_each_time(tmp_path: Path) -> None:
    published: list[bytes] = []
    keeper(tmp_path, published=published).chain()
    keeper(tmp_path, published=published).chain()
    assert published == [(tmp_path / "ca.crt").read_bytes()] * 2


def test_nobody_else_may_read_the_keys(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    keeper(folder).chain()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ChainError, match="file"):
        keeper(tmp_path / "file" / "below").chain()


def test_a_chain_with_a_foreign_key_leaves_the_present_one_in_place(tmp_path: Path) -> None:
    ours, other = keeper(tmp_path / "a").chain(), keeper(tmp_path / "b").chain()
    live = LiveContext(ours)
    with pytest.raises(ChainError):
        live.reload(Chain(ours.certificates_pem, other.key_pem))
    assert live.chain == ours
    assert not live.reload(ours)
    assert live.reload(other)
    assert live.chain == other


def test_the_patch_of_a_configuration_tests_its_version_and_sets_each_bundle() -> None:
    bundle = base64.b64encode(b"pem").decode()
    configuration = {
        "metadata": {"resourceVersion": "7"},
        "webhooks": [{"clientConfig": {"caBundle": bundle}}, {"clientConfig": {}}],
    }
    assert changes(configuration, bundle) == [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": bundle},
    ]
    configuration["webhooks"][1]["clientConfig"]["caBundle"] = bundle  # type: ignore[index]
    assert changes(configuration, bundle) == []
