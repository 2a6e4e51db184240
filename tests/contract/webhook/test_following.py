"""The webhook's requests for states to the timekeeper, and their number."""

from __future__ import annotations

from pathlib import Path

import orjson

from fairgpu.charging import ChargeRules
from fairgpu.states import encode_charge
from fairgpu.states_client import follow_states
from tests.support.servers.report_server import Answer, report_server
from webhook.cache.admission_cache import AdmissionCache
from webhook.settings import StatesSettings


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
