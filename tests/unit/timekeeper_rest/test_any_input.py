from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.support.tokens import TokenSigner
from timekeeper.api.models import GrantRequest, IncreaseRequest, PodReport, Report
from timekeeper.api.orders import gpu_hours_text
from timekeeper.api.problems import ProblemError, answer, problem_of
from timekeeper.api.states_feed import CursorError, parse_cursor
from timekeeper.auth.access_control import UnauthenticatedError, bearer_token
from timekeeper.auth.signed_tokens import Issuer, KeySet, PodTokens
from timekeeper.auth.token_review import _stated_audiences, is_forged

SIGNER = TokenSigner(algorithm="ES256")
BODIES: list[type[BaseModel]] = [Report, GrantRequest, IncreaseRequest, PodReport]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
device = {"uuid": "GPU-1", "busyNs": 1, "spanNs": 1, "throttledNs": 0, "memoryPeakMiB": 1, "launches": 1, "oom": 0}
GOOD: dict[str, Any] = {"v": 1, "boot": "b", "seq": 1, "containers": [{"name": "main", "devices": [device]}]}


def key_set() -> KeySet:
    keys = KeySet(lambda: Issuer(SIGNER.issuer, SIGNER.key_set()), lambda: 0.0)
    keys.refresh()
    return keys


def refused_or_read(model: type[BaseModel], body: bytes) -> None:
    try:
        model.model_validate_json(body)
    except ValidationError as error:
        response = answer(problem_of(error))
        assert response.status in (400, 422)
        assert json.loads(response.body)["detail"]


@pytest.mark.parametrize("model", BODIES)
@given(body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused_with_a_reason(model: type[BaseModel], body: bytes) -> None:
    refused_or_read(model, body)


@given(st.sampled_from(["v", "boot", "seq", "containers", "name", "devices", *device]), json_values)
def test_a_report_with_any_value_in_any_field_is_read_or_refused_with_a_reason(field: str, value: Any) -> None:
    def changed(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: value if name == field else changed(inner) for name, inner in part.items()}
        return [changed(inner) for inner in part] if isinstance(part, list) else part

    refused_or_read(Report, json.dumps(changed(GOOD)).encode())


@given(st.text(max_size=200) | st.builds("Bearer {}".format, st.text(max_size=200)))
def test_any_authorization_is_a_token_or_refused(header: str) -> None:
    with contextlib.suppress(UnauthenticatedError):
        assert bearer_token(header)


@given(json_values, json_values)
def test_any_signed_claims_are_a_pod_or_refused(bound: Any, audience: Any) -> None:
    claims = {**SIGNER.claims("x"), "kubernetes.io": bound, "aud": audience}
    token = SIGNER.sign(json.loads(json.dumps(claims, default=str)))
    with pytest.raises(UnauthenticatedError):
        PodTokens(key_set(), lambda: 0.0).verify(token)
    assert isinstance(_stated_audiences(token), list)
    assert not is_forged(token, key_set())


@given(st.text(max_size=100))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(CursorError):
        assert str(parse_cursor(text)).rpartition(".")[0] == text.rpartition(".")[0]


@given(st.text(max_size=30) | st.floats() | st.integers())
def test_any_amount_is_gpu_hours_or_refused(value: Any) -> None:
    with contextlib.suppress(ProblemError):
        assert float(gpu_hours_text("gpuHours", value)) > 0
