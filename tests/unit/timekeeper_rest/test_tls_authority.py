from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairgpu.certificates import Pair, expires_at, make_authority, renewal_due, serves
from fairgpu.serving.tls import Chain, ChainError, LiveContext
from timekeeper.certificates import (
    AUTHORITY,
    LEAF,
    STORE_LEAF,
    FolderVault,
    StoredPair,
    VaultError,
    keep_store_certificate,
    read_chain,
    service_names,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NAMES = [*service_names(), "localhost", "127.0.0.1"]


def chain_at(vault: FolderVault, now: datetime, names: list[str] | None = None) -> Chain:
    return read_chain(vault, names or NAMES, lambda: now)


def parts(chain: Chain) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [part + end for part in chain.certificates_pem.split(end) if part]


def test_the_first_start_makes_an_authority_of_ten_years_and_a_leaf_that_a_server_can_present(tmp_path: Path) -> None:
    chain = chain_at(FolderVault(tmp_path), NOW)
    leaf, authority = parts(chain)
    assert serves(leaf, authority, NAMES)
    assert timedelta(days=3650) <= expires_at(authority) - NOW <= timedelta(days=3653)
    assert isinstance(LiveContext(chain).context, ssl.SSLContext)


def test_later_starts_and_other_replicas_present_the_same(tmp_path: Path) -> None:
    assert chain_at(FolderVault(tmp_path), NOW) == chain_at(FolderVault(tmp_path), NOW + timedelta(days=1))


def test_the_leaf_rotates_before_it_expires_and_the_authority_stays(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    before, after = (parts(chain_at(vault, NOW + timedelta(days=days))) for days in (0, 61))
    assert before[1] == after[1]
    assert before[0] != after[0]
    assert not renewal_due(after[0], NOW + timedelta(days=61))


def test_a_leaf_that_lacks_a_name_is_made_anew(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    chain_at(vault, NOW, ["localhost"])
    leaf, authority = parts(chain_at(vault, NOW))
    assert serves(leaf, authority, NAMES)


def test_a_damaged_leaf_is_made_anew(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    chain_at(vault, NOW)
    (tmp_path / "certificates" / "timekeeper" / f"{LEAF}.pem").write_text("nonsense")
    leaf, authority = parts(chain_at(vault, NOW))
    assert serves(leaf, authority, NAMES)


def store_certificate_at(vault: FolderVault, now: datetime) -> bytes:
    keep_store_certificate(vault, service_names("fairgpu-redis"), lambda: now)
    kept = vault.read(STORE_LEAF)
    assert kept is not None
    return kept.pair.certificate_pem


def test_the_store_has_a_certificate_of_its_own_under_the_same_authority(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    _, authority = parts(chain_at(vault, NOW))
    certificate = store_certificate_at(vault, NOW)
    assert serves(certificate, authority, ["fairgpu-redis.fairgpu-system.svc"])
    assert not serves(certificate, authority, ["fairgpu-timekeeper.fairgpu-system.svc"])


def test_the_stores_certificate_is_renewed_when_two_thirds_of_its_life_are_over(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    first = store_certificate_at(vault, NOW)
    assert store_certificate_at(vault, NOW + timedelta(days=59)) == first
    assert store_certificate_at(vault, NOW + timedelta(days=61)) != first


def test_keys_are_readable_by_their_owner_alone_and_the_authority_by_all(tmp_path: Path) -> None:
    chain_at(FolderVault(tmp_path), NOW)
    folder = tmp_path / "certificates" / "timekeeper"
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {f"{AUTHORITY}.pem": 0o600, f"{LEAF}.pem": 0o600, "ca.crt": 0o644}
    assert (folder / "ca.crt").read_bytes().count(b"PRIVATE") == 0


class LosesTheRace(FolderVault):
    """Another replica makes its authority just before this one does."""

    def create(self, name: str, pair: Pair) -> bool:
        if name == AUTHORITY and self.read(name) is None:
            super().create(name, make_authority("the other replica", NOW, timedelta(days=3652)))
        return super().create(name, pair)


def test_the_first_replica_to_make_an_authority_wins(tmp_path: Path) -> None:
    _, authority = parts(chain_at(LosesTheRace(tmp_path), NOW))
    kept = FolderVault(tmp_path).read(AUTHORITY)
    assert kept is not None
    assert kept.pair.certificate_pem == authority


def test_a_vault_that_cannot_be_read_is_shown_and_nothing_is_made(tmp_path: Path) -> None:
    class Away(FolderVault):
        def read(self, name: str) -> StoredPair | None:
            raise VaultError(f"{name}: no route")

    with pytest.raises(ChainError, match="no route"):
        chain_at(Away(tmp_path), NOW)
    assert not (tmp_path / "certificates").exists()


@pytest.mark.parametrize("name", [f"{AUTHORITY}.pem", f"{LEAF}.pem", "ca.crt"])
def test_a_folder_in_the_place_of_a_file_is_named_and_leaves_no_other_file(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "certificates" / "timekeeper"
    (folder / name / "within").mkdir(parents=True)
    with pytest.raises(ChainError, match=name):
        chain_at(FolderVault(tmp_path), NOW)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_a_file_that_becomes_a_folder_while_it_is_replaced_is_named(tmp_path: Path) -> None:
    vault = FolderVault(tmp_path)
    chain_at(vault, NOW)
    file = tmp_path / "certificates" / "timekeeper" / f"{LEAF}.pem"

    class Becomes(FolderVault):
        def read(self, name: str) -> StoredPair | None:
            kept = super().read(name)
            if name == LEAF and kept is not None and reads.pop():
                file.unlink()
                file.mkdir()
            return kept

    reads = [True, False]
    with pytest.raises(ChainError, match=LEAF):
        chain_at(Becomes(tmp_path), NOW + timedelta(days=61))
    assert not [left for left in file.parent.iterdir() if left.name.startswith(".")]
