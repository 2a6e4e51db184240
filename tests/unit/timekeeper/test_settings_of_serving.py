"""The names in the server's certificate are those that a client can ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairgpu.commands import CommandError
from timekeeper.settings import TimekeeperSettings, read_settings


def read(folder: Path, names: str) -> TimekeeperSettings:
    file = folder / "settings.yaml"
    file.write_text(f"timekeeper: {{serve: {{certificate_names: {names}}}}}")
    return read_settings({}, file)


@pytest.mark.parametrize(
    "name", ["gpus.example.org", "*.example.org", "localhost", "10.0.0.7", "2001:db8::7", "GPUs.org"]
)
def test_a_name_or_an_address_is_one(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, f"['{name}']").serve.certificate_names == (name,)


@pytest.mark.parametrize("name", ["https://gpus.example.org", "gpus.example.org:443", "gpüs.org", "a b", "", "-a.org"])
def test_a_name_that_no_client_could_find_in_a_certificate_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CommandError) as refused:
        read(tmp_path, f"['{name}']")
    assert str(refused.value) == (
        f"timekeeper.serve.certificate_names.0 (FAIRGPU_TIMEKEEPER_SERVE_CERTIFICATE_NAMES): given {name!r}; "
        "allowed: a DNS name or an address alone, such as gpus.example.org"
    )
