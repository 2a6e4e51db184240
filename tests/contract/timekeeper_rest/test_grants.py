from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.timekeeper_rest.test_reading import assert_problem
from tests.support.ledger.seeding import EPOCH, START, seed_budget
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.orders import parse_grant
from timekeeper.ledger.totals import encode_summary
from timekeeper.ledger.writing import GrantEntry, Publication, apply_grants, publish_accounts

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import Answer, RestServer

GRANT = {"budget": "research", "gpuHours": "2.5", "reason": "the deadline"}


def order(rest: RestServer, body: Any, key: str | None = None, subject: str = "admin") -> Answer:
    headers = {"Idempotency-Key": key} if key is not None else {}
    return rest.as_person(subject, "POST", "/v1/grants", body=body, headers=headers)


def written(rest: RestServer, name: str) -> Any:
    return json.loads((rest.folder / "grants" / f"{name}.json").read_text())


def count(rest: RestServer) -> int:
    return len(list((rest.folder / "grants").glob("*.json")))


def test_a_grant_becomes_a_gpugrant_that_says_who_asked(rest: RestServer) -> None:
    name = f"g-{uuid.uuid4().hex}"
    answer = order(rest, {**GRANT, "name": name})
    assert answer.status == 201
    assert answer.document == {"name": name, **GRANT, "requestedBy": "admin", "expires": None}
    grant = parse_grant(written(rest, name))
    assert (grant.amount, grant.budget, grant.requested_by) == (5 * GPU_HOUR // 2, "research", "admin")


def test_money_may_be_taken_away_and_may_outlive_its_period(rest: RestServer) -> None:
    taken = order(rest, {**GRANT, "gpuHours": -2.5}, key=str(uuid.uuid4()))
    assert (taken.status, parse_grant(written(rest, taken.document["name"])).amount) == (201, -5 * GPU_HOUR // 2)
    key = str(uuid.uuid4())
    lasting = [order(rest, {**GRANT, "expires": moment}, key=key) for moment in ("2100-01-01T00:00:00Z",) * 2]
    assert [answer.status for answer in lasting] == [201, 200]
    assert lasting[0].document["expires"] == "2100-01-01T00:00:00Z"
    assert_problem(order(rest, GRANT, key=key), 409)


def test_the_same_key_grants_once_however_often_and_at_once_it_is_asked(rest: RestServer) -> None:
    order(rest, GRANT, key=str(uuid.uuid4()))
    key, before = str(uuid.uuid4()), count(rest)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: order(rest, GRANT, key=key), range(16)))
    assert sorted(answer.status for answer in answers) == [200] * 15 + [201]
    assert len({answer.document["name"] for answer in answers}) == 1
    assert count(rest) == before + 1


def test_a_key_that_comes_with_another_grant_is_refused(rest: RestServer) -> None:
    key = str(uuid.uuid4())
    order(rest, GRANT, key=key)
    assert_problem(order(rest, {**GRANT, "gpuHours": 3}, key=key), 409)


def test_a_name_that_the_ledger_holds_is_not_taken_again_once_its_object_is_deleted(
    rest: RestServer, store: RedisServer
) -> None:
    name = f"g-{uuid.uuid4().hex}"
    assert order(rest, {**GRANT, "name": name}).status == 201
    with store.client() as client:
        apply_grants(client, EPOCH, START, [GrantEntry("research", START, name, 5, "")])
    assert order(rest, {**GRANT, "name": name}).status == 200
    (rest.folder / "grants" / f"{name}.json").unlink()
    answer = order(rest, {**GRANT, "name": name})
    assert_problem(answer, 409)
    assert "choose another name" in answer.document["detail"]


def test_without_a_key_or_a_name_nothing_is_granted(rest: RestServer) -> None:
    order(rest, GRANT, key=str(uuid.uuid4()))
    before = count(rest)
    assert_problem(order(rest, GRANT), 400)
    assert count(rest) == before


@pytest.mark.parametrize("subject", ["finance", "alice", "nobody"])
def test_money_is_given_by_those_alone_who_may_create_grants_at_cluster_scope(rest: RestServer, subject: str) -> None:
    answer = order(rest, GRANT, key="k", subject=subject)
    assert_problem(answer, 403)
    assert "create gpugrants.fairgpu.io at cluster scope" in answer.document["detail"]


def test_a_pods_own_token_grants_no_money(rest: RestServer) -> None:
    token = rest.signer.pod("team-a", "train-0", "u1")
    assert_problem(rest.ask("POST", "/v1/grants", token, GRANT, {"Idempotency-Key": "k"}), 403)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to give": ({"gpuHours": 0}, "gpuHours"),
    "too much to take": ({"gpuHours": -(10**9)}, "gpuHours"),
    "an expiry that is over": ({"expires": "2020-01-01T00:00:00Z"}, "expires"),
    "an expiry that is none": ({"expires": "tomorrow"}, "expires"),
    "an expiry of what is taken": ({"gpuHours": -5, "expires": "2100-01-01T00:00:00Z"}, "expires"),
    "too much": ({"gpuHours": 10**9}, "gpuHours"),
    "2^53": ({"gpuHours": 2**53}, "gpuHours"),
    "seven places": ({"gpuHours": 0.1234567}, "gpuHours"),
    "an exponent": ({"gpuHours": "1e3"}, "gpuHours"),
    "a list": ({"gpuHours": [1]}, "gpuHours"),
    "true": ({"gpuHours": True}, "gpuHours"),
    "no reason": ({"reason": ""}, "reason"),
    "a blank reason": ({"reason": "  "}, "reason"),
    "a long reason": ({"reason": "x" * 1025}, "reason"),
    "an unknown budget": ({"budget": "nobody-has-it"}, "budget"),
    "no name of a budget": ({"budget": "../etc"}, "budget"),
    "no name of a grant": ({"name": "../x"}, "name"),
    "a field that is none": ({"gpu_hours": 5}, "gpu_hours"),
}


@pytest.mark.parametrize(("change", "field"), BAD.values(), ids=BAD.keys())
def test_a_grant_is_refused_by_its_field(rest: RestServer, change: dict[str, Any], field: str) -> None:
    answer = order(rest, {**GRANT, **change}, key=str(uuid.uuid4()))
    assert_problem(answer, 422)
    assert answer.document["errors"][0]["field"].startswith(field)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"gpuHours": NaN}', b"null", b"\xff"])
def test_a_body_that_is_no_grant_is_refused(rest: RestServer, body: bytes) -> None:
    assert order(rest, body, key="k").status in (400, 422)


def test_the_ancestors_increase_is_a_grant_for_the_namespaces_budget(rest: RestServer) -> None:
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"gpu_hours": 1.5, "reason": "more"}
    answers = [rest.as_person("admin", "POST", "/budget/team-a/increase", body=body, headers=headers) for _ in "ab"]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].document["budget"] == 10.0
    grants = [json.loads(file.read_text())["spec"] for file in (rest.folder / "grants").glob("*.json")]
    assert [grant["budget"] for grant in grants if grant["reason"] == "more"] == ["research"]


@pytest.mark.parametrize(
    ("namespace", "body", "key", "status"),
    [
        ("team-a", {"gpu_hours": 1.5, "reason": "more"}, None, 400),
        ("team-f", {"gpu_hours": 1.5, "reason": "more"}, "k1", 409),
        ("never-seen", {"gpu_hours": 1.5, "reason": "more"}, "k2", 409),
        ("team-a", {"gpu_hours": -1, "reason": "more"}, "k3", 422),
        ("team-a", {"gpu_hours": 1}, "k4", 422),
        ("Team_A", {"gpu_hours": 1, "reason": "more"}, "k5", 422),
    ],
)
def test_an_increase_is_refused(rest: RestServer, namespace: str, body: Any, key: str | None, status: int) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    answer = rest.as_person("admin", "POST", f"/budget/{namespace}/increase", body=body, headers=headers)
    assert_problem(answer, status)


def test_a_budget_that_was_deleted_is_given_no_money(rest: RestServer, store: RedisServer) -> None:
    with store.client() as client:
        summary = seed_budget(client, "deleted", [])
        gone = encode_summary(summary._replace(enforcement=""))
        publish_accounts(client, EPOCH, [Publication("deleted", START, None, gone)])
    answer = order(rest, {**GRANT, "budget": "deleted"}, key=str(uuid.uuid4()))
    assert_problem(answer, 422)
