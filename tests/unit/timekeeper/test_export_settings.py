from __future__ import annotations

from pathlib import Path

import pytest

from fairgpu.commands import CommandError
from timekeeper.settings import read_settings

NOWHERE = Path("/nonexistent")
BUCKET = "FAIRGPU_TIMEKEEPER_EXPORT_BUCKET_"


def test_a_bucket_is_named_in_the_environment() -> None:
    found = read_settings({f"{BUCKET}NAME": "finance", f"{BUCKET}PREFIX": "gpu/usage"}, None, NOWHERE).export
    assert (found.wanted, found.bucket.name, found.bucket.prefix) == (True, "finance", "gpu/usage")
    assert not read_settings({}, None, NOWHERE).export.wanted


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({f"{BUCKET}NAME": "Finance"}, "timekeeper.export.bucket.name"),
        ({f"{BUCKET}PREFIX": "gpu"}, "name is missing"),
        ({f"{BUCKET}NAME": "finance", f"{BUCKET}ENDPOINT": "s3.example.com"}, "timekeeper.export.bucket.endpoint"),
        ({f"{BUCKET}NAME": "finance", f"{BUCKET}ENDPOINT": "https://me:key@s3"}, "timekeeper.export.bucket.endpoint"),
        ({f"{BUCKET}NAME": "finance", f"{BUCKET}TIMEOUT_SECONDS": "0"}, "timeout_seconds"),
        ({f"{BUCKET}NAME": "finance", "FAIRGPU_TIMEKEEPER_EXPORT_FOLDER": "/months"}, "different places"),
        ({"FAIRGPU_TIMEKEEPER_EXPORT_FOLDER": "months"}, "write the whole path, such as /var/lib/months"),
        ({"FAIRGPU_TIMEKEEPER_EXPORT_CACHE_MIB": "0"}, "timekeeper.export.cache_mib"),
    ],
)
def test_a_bad_place_stops_the_start_and_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        read_settings(environ, None, NOWHERE)
