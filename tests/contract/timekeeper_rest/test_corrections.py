from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.timekeeper_rest.test_reading import assert_problem
from tests.support.ledger.seeding import EPOCH, START
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.orders import parse_correction
from timekeeper.domain.timestamps import HOUR
from timekeeper.ledger.writing import CorrectionEntry, apply_corrections

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import Answer, RestServer

CORRECTION = {
    "budget": "research",
    "gpuHours": "-1.5",
    "effectivePeriod": "2026-01-01T00:00:00Z",
    "reason": "a failed node",
}


def order(rest: RestServer, body: Any, key: str | None = None, subject: str = "admin") -> Answer:
    headers = {"Idempotency-Key": key} if key is not None else {}
    return rest.as_person(subject, "POST", "/v1/corrections", body=body, headers=headers)


def test_a_correction_becomes_a_gpucorrection_that_says_who_asked(rest: RestServer) -> None:
    name = f"c-{uuid.uuid4().hex}"
    answer = order(rest, {**CORRECTION, "name": name, "namespace": "team-a"})
    assert answer.status == 201
    assert answer.document == {"name": name, **CORRECTION, "namespace": "team-a", "requestedBy": "admin"}
    found = parse_correction(json.loads((rest.folder / "corrections" / f"{name}.json").read_text()))
    assert (found.amount, found.budget, found.requested_by) == (-3 * GPU_HOUR // 2, "research", "admin")


def test_the_same_key_corrects_once_and_another_correction_under_it_is_refused(rest: RestServer) -> None:
    key = str(uuid.uuid4())
    answers = [order(rest, CORRECTION, key=key) for _ in range(3)]
    assert [answer.status for answer in answers] == [201, 200, 200]
    assert len({answer.document["name"] for answer in answers}) == 1
    same = {**CORRECTION, "effectivePeriod": "2026-01-01T01:00:00+01:00", "gpuHours": -1.5}
    assert order(rest, same, key=key).status == 200
    assert_problem(order(rest, {**CORRECTION, "effectivePeriod": "2026-01-02T00:00:00Z"}, key=key), 409)
    assert_problem(order(rest, {**CORRECTION, "namespace": "team-a2"}, key=key), 409)


def test_a_name_that_the_ledger_holds_is_not_taken_again_once_its_object_is_deleted(
    rest: RestServer, store: RedisServer
) -> None:
    name = f"c-{uuid.uuid4().hex}"
    assert order(rest, {**CORRECTION, "name": name}).status == 201
    with store.client() as client:
        apply_corrections(client, EPOCH, START, [CorrectionEntry("research", START, name, 5, "", "", START // HOUR)])
    assert order(rest, {**CORRECTION, "name": name}).status == 200
    (rest.folder / "corrections" / f"{name}.json").unlink()
    assert_problem(order(rest, {**CORRECTION, "name": name}), 409)


@pytest.mark.parametrize("subject", ["finance", "alice", "nobody"])
def test_books_are_set_right_by_those_alone_who_may_at_cluster_scope(rest: RestServer, subject: str) -> None:
    answer = order(rest, CORRECTION, key="k", subject=subject)
    assert_problem(answer, 403)
    assert "create gpucorrections.fairgpu.io at cluster scope" in answer.document["detail"]


def test_without_a_key_or_a_name_nothing_is_corrected(rest: RestServer) -> None:
    assert_problem(order(rest, CORRECTION), 400)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"gpuHours": 0}, "gpuHours"),
    "too much": ({"gpuHours": 10**9}, "gpuHours"),
    "no period": ({"effectivePeriod": None}, "effectivePeriod"),
    "a period that is none": ({"effectivePeriod": "January"}, "effectivePeriod"),
    "more than was spent": ({"gpuHours": "-2.000001"}, "gpuHours"),
    "a period that is not known": ({"effectivePeriod": "2025-12-31T23:59:59Z"}, "effectivePeriod"),
    "a period to come": ({"effectivePeriod": "2100-01-01T00:00:00Z"}, "effectivePeriod"),
    "no reason": ({"reason": " "}, "reason"),
    "an unknown budget": ({"budget": "nobody-has-it"}, "budget"),
    "no namespace": ({"namespace": "Team_A"}, "namespace"),
    "another budget's namespace": ({"namespace": "team-b"}, "namespace"),
    "a namespace that does not exist": ({"namespace": "taem-a"}, "namespace"),
    "a field that is none": ({"period": "2026-01-01T00:00:00Z"}, "period"),
}


@pytest.mark.parametrize(("change", "field"), BAD.values(), ids=BAD.keys())
def test_a_correction_is_refused_by_its_field(rest: RestServer, change: dict[str, Any], field: str) -> None:
    answer = order(rest, {**CORRECTION, **change}, key=str(uuid.uuid4()))
    assert_problem(answer, 422)
    assert answer.document["errors"][0]["field"].startswith(field)
