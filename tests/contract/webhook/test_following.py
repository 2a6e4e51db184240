"""The webhook's requests for states to the timekeeper, and their number."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from fairgpu.certificates import make_authority, utc_now
from fairgpu.charging import ChargeRules
from fairgpu.states import encode_charge
from fairgpu.states_client import FollowError, authority_config_map, authority_file, follow_authority, follow_states
from tests.support.ledger.stored_objects import StoredObjects
from tests.support.servers.report_server import Answer, report_server
from webhook.cache.admission_cache import AdmissionCache
from webhook.settings import StatesSettings

PEM = "-----BEGIN CERTIFICATE-----\n"


@pytest.mark.parametrize("text", [f"# équipe\n{PEM}".encode(), b"\xff"], ids=["a comment", "no text"])
def test_a_ca_that_is_not_ascii_is_named_and_the_earlier_one_stays(tmp_path: Path, text: bytes) -> None:
    file, cache = tmp_path / "ca.crt", AdmissionCache()
    file.write_text(PEM)
    follow_authority(authority_file(file), cache, lambda _seconds: True)
    file.write_bytes(text)
    with pytest.raises(FollowError, match=r"ca\.crt has a character that is not ASCII"):
        authority_file(file)()
    follow_authority(authority_file(file), cache, lambda _seconds: True)
    assert cache.timekeeper_ca == PEM


def test_a_config_map_whose_ca_is_not_ascii_is_named() -> None:
    api = StoredObjects()
    api.put("/api/v1/namespaces/ns/configmaps/ca", {"metadata": {"name": "ca"}, "data": {"ca.crt": f"é{PEM}"}})
    with pytest.raises(FollowError, match="ConfigMap ns/ca has a character that is not ASCII"):
        authority_config_map(api, "ns", "ca")()


@pytest.mark.parametrize("token", [b"two\nlines", b"\xff", "é".encode()], ids=["two lines", "no text", "not ASCII"])
def test_a_token_that_no_header_can_have_is_named_and_read_again(
    tmp_path: Path, token: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_bytes(token)
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.extend([seconds] if seconds else [])
        return len(pauses) == 2

    settings = StatesSettings(url="https://localhost:1", token_file=file)
    cache = AdmissionCache()
    cache.learn_authority(make_authority("test", utc_now(), timedelta(days=1)).certificate_pem.decode())
    follow_states(settings, cache, wait, lambda: 0.0, lambda: 0.5)
    assert len(pauses) == 2
    assert "token has a letter that no token has" in capsys.readouterr().out


def test_a_timekeeper_that_answers_at_once_with_nothing_new_is_asked_again_after_a_pause(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.extend([seconds] if seconds else [])
        return len(pauses) == 3 or len(server.received) == 20

    document = {"cursor": "e.1", "full": True, "states": [], "default": "unlimited", "prices": {"*": 1.0}}
    body = orjson.dumps({**document, "charge": encode_charge(ChargeRules())})
    with report_server(tmp_path / "certificates") as server:
        server.answer = Answer(body=body)
        memory = AdmissionCache()
        memory.learn_authority(server.ca_pem)
        follow_states(StatesSettings(url=server.url, token_file=token), memory, wait, lambda: 0.0, lambda: 0.5)
    assert pauses == [0.5] * 3
    assert len(server.received) == 4  # the first answer is news, and the next question is asked at once
