from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.timekeeper_rest.conftest import BIG, OTHER, PAST, RUNNING
from timekeeper.ledger import keys, shared

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import RestServer


def test_all_budgets_are_asked_to_who_may_read_all(rest: RestServer) -> None:
    answer = rest.as_person("finance", "GET", "/v1/budgets")
    assert answer.status == 200
    assert [budget["name"] for budget in answer.document["budgets"]] == [
        "free",
        "history",
        "huge",
        "research",
        "serving",
    ]


def test_budgets_are_shown_page_by_page(rest: RestServer) -> None:
    names, query = [], "limit=2"
    for _ in range(10):
        page = rest.as_person("finance", "GET", f"/v1/budgets?{query}").document
        names += [budget["name"] for budget in page["budgets"]]
        if page["cursor"] is None:
            break
        query = f"limit=2&cursor={page['cursor']}"
    assert names == ["free", "history", "huge", "research", "serving"]


@pytest.mark.parametrize(
    ("subject", "reads_all", "grants", "namespaces"),
    [
        ("admin", True, True, []),
        ("finance", True, False, []),
        ("alice", False, False, ["team-a"]),
        ("nobody", False, False, []),
    ],
)
def test_a_caller_is_shown_whose_figures_they_may_read(
    rest: RestServer, subject: str, *, reads_all: bool, grants: bool, namespaces: list[str]
) -> None:
    assert rest.as_person(subject, "GET", "/v1/access").document == {
        "name": subject,
        "readsAll": reads_all,
        "grants": grants,
        "namespaces": namespaces,
        "complete": True,
    }


def test_a_budget_shows_exact_amounts_beside_gpu_hours(rest: RestServer) -> None:
    budget = rest.as_person("finance", "GET", "/v1/budgets/research").document
    assert budget["available"] == {"microGPUSeconds": "36000000000", "gpuHours": 10.0}
    assert budget["spent"] == {"microGPUSeconds": "7200000000", "gpuHours": 2.0}
    assert budget["remaining"]["gpuHours"] == 8.0
    assert budget["rate"] == {"microGPUSecondsPerSecond": "1000000", "gpus": 1.0}
    assert budget["period"] == {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}
    assert (budget["state"], budget["namespaces"]) == ("open", ["team-a", "team-a2"])


def test_amounts_beyond_what_a_double_can_tell_are_exact(rest: RestServer) -> None:
    huge = rest.as_person("finance", "GET", "/v1/budgets/huge").document
    assert huge["available"]["microGPUSeconds"] == str(BIG)
    assert huge["remaining"]["microGPUSeconds"] == str(BIG - 10**14)
    free = rest.as_person("finance", "GET", "/v1/budgets/free").document
    assert (free["available"], free["remaining"]) == (None, None)
    assert free["spent"]["microGPUSeconds"] == str(2**53 + 1)
    history = rest.as_person("finance", "GET", "/v1/budgets/history").document
    assert history["spent"]["microGPUSeconds"] == str(2**53 + 1)


@pytest.mark.parametrize("damage", ["{", "[]", "5", '{"period_start": "soon", "spent": 0}', "{}", "\udcff"])
def test_figures_of_an_account_that_cannot_be_read_hide_no_others(
    rest: RestServer, store: RedisServer, damage: str
) -> None:
    head = keys.AccountKeys("research").head
    with store.client() as client:
        kept = client.hget(head, "summary")
        client.hset(head, "summary", damage.encode(errors="surrogateescape"))
        try:
            answer = rest.as_person("finance", "GET", "/v1/budgets")
            alone = rest.as_person("finance", "GET", "/v1/budgets/research")
        finally:
            client.hset(head, "summary", kept)
    assert answer.status == 200
    names = [budget["name"] for budget in answer.document["budgets"]]
    assert "serving" in names
    assert "research" not in names
    assert alone.status == 404


def test_a_namespace_is_shown_what_pays_for_it(rest: RestServer) -> None:
    answer = rest.as_person("alice", "GET", "/v1/namespaces/team-a/budget").document
    assert (answer["namespace"], answer["state"], answer["budget"]["name"]) == ("team-a", "open", "research")


def test_a_namespace_that_moved_is_shown_who_pays_for_it_now(rest: RestServer, store: RedisServer) -> None:
    with store.client() as client:
        shared.write_assignments(client, 1, {"team-m": ((0, "serving"), (1, "research"))})
    assert rest.as_person("finance", "GET", "/v1/namespaces/team-m/budget").document["budget"]["name"] == "research"


def test_a_namespace_that_nothing_pays_for_is_unlimited(rest: RestServer) -> None:
    answer = rest.as_person("finance", "GET", "/v1/namespaces/never-seen/budget")
    assert (answer.status, answer.document) == (200, {"namespace": "never-seen", "budget": None, "state": "unlimited"})


def test_a_namespace_that_nothing_pays_for_is_in_the_state_that_admission_takes_it_for(
    rest: RestServer, store: RedisServer
) -> None:
    with store.client() as client:
        client.hset(keys.STATES_HEAD, "default", "held")
        try:
            answer = rest.as_person("finance", "GET", "/v1/namespaces/never-seen/budget").document
            ancestors = rest.as_person("finance", "GET", "/budget/never-seen").document
        finally:
            client.hset(keys.STATES_HEAD, "default", "unlimited")
    assert (answer["state"], answer["budget"]) == ("held", None)
    assert ancestors == {"budget_available": False, "budget": None, "budget_remaining": None}


@pytest.mark.parametrize(
    ("subject", "path", "status"),
    [
        ("alice", "/v1/namespaces/team-b/budget", 403),
        ("alice", "/v1/budgets", 403),
        ("alice", "/v1/budgets/research", 403),
        ("alice", "/v1/ledger?budget=research", 403),
        ("alice", "/v1/sessions", 403),
        ("alice", "/v1/sessions?namespace=team-b", 403),
        ("alice", "/v1/states", 403),
        ("alice", "/budget/team-b", 403),
        ("nobody", "/v1/namespaces/team-a/budget", 403),
        ("finance", "/v1/budgets?limit=0", 422),
        ("finance", "/v1/budgets?order=name", 422),
        ("finance", "/v1/budgets/none", 404),
        ("finance", "/v1/budgets/%7D", 404),
        ("finance", "/v1/ledger?budget=none", 404),
        ("finance", "/v1/ledger", 422),
        ("finance", "/v1/ledger?budget=research&limit=0", 422),
        ("finance", "/v1/ledger?budget=research&limit=1001", 422),
        ("finance", "/v1/ledger?budget=research&limit=many", 422),
        ("finance", "/v1/ledger?budget=research&cursor=%21", 422),
        ("finance", "/v1/ledger?budget=research&cursor=YWJj", 422),
        ("finance", "/v1/ledger?budget=research&cursor=MTg0NDY3NDQwNzM3MDk1NTE2MTYtMQ", 422),  # 2^64-1
        ("finance", "/v1/sessions?cursor=LyoK", 422),
        ("finance", "/v1/sessions?order=pod", 422),
        ("finance", "/v1/sessions?order=amount&cursor=YWJj", 422),
        ("finance", "/v1/sessions?namespace=Team_A", 422),
        ("finance", "/v1/namespaces/Team_A/budget", 422),
        ("finance", "/v1/namespaces/%00/budget", 422),
        ("finance", "/v1/sessions?namspace=team-a", 422),
        ("finance", "/v1/ledger?budget=research&page=2", 422),
        ("finance", "/v1/states?from=e1.1", 422),
        ("finance", "/v1/states?since=x", 422),
        ("finance", "/v1/states?wait=-1", 422),
        ("finance", "/v1/states?wait=nan", 422),
        ("finance", "/v2/anything", 404),
        ("finance", "/budget/Team_A", 422),
    ],
)
def test_a_page_that_may_not_or_cannot_be_shown_is_a_problem(
    rest: RestServer, subject: str, path: str, status: int
) -> None:
    assert_problem(rest.as_person(subject, "GET", path), status)


def assert_problem(answer: Any, status: int) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.document["status"] == status
    assert answer.document["type"].startswith("urn:fairgpu:problem:") or status == 413
    assert answer.document["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/budgets",
        "/v1/budgets/x",
        "/v1/access",
        "/v1/namespaces/x/budget",
        "/v1/ledger",
        "/v1/sessions",
        "/v1/states",
        "/budget/x",
    ],
)
def test_nothing_of_the_book_is_asked_to_strangers(rest: RestServer, path: str) -> None:
    answer = rest.ask("GET", path)
    assert_problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
def test_probes_and_the_description_are_open(rest: RestServer, path: str) -> None:
    assert rest.ask("GET", path).status == 200


def test_a_method_that_is_not_there_names_those_that_are(rest: RestServer) -> None:
    answer = rest.ask("DELETE", "/v1/budgets")
    assert_problem(answer, 405)
    assert "GET" in answer.headers["allow"]


def test_a_ledger_is_read_page_by_page_from_the_oldest_entry_on(rest: RestServer) -> None:
    amounts, cursor = [], ""
    for _ in range(10):
        path = f"/v1/ledger?budget=history&limit=3&cursor={cursor}"
        page = rest.as_person("finance", "GET", path).document
        if not page["entries"]:
            assert page["cursor"] == cursor
            break
        amounts += [int(entry["amount"]["microGPUSeconds"]) for entry in page["entries"]]
        cursor = page["cursor"]
    assert amounts == [10**14 - 1, 1, 2**53 - 10**14, 1]
    entry = rest.as_person("finance", "GET", "/v1/ledger?budget=history").document["entries"][0]
    assert (entry["kind"], entry["session"], entry["period"]) == ("hourly", PAST, "2026-01-01T00:00:00Z")


def test_sessions_are_listed_for_all_page_by_page(rest: RestServer) -> None:
    first = rest.as_person("finance", "GET", "/v1/sessions?limit=1").document
    second = rest.as_person("finance", "GET", f"/v1/sessions?limit=1&cursor={first['cursor']}").document
    third = rest.as_person("finance", "GET", f"/v1/sessions?limit=1&cursor={second['cursor']}").document
    found = first["sessions"] + second["sessions"]
    assert [session["uid"] for session in found] == [RUNNING.uid, OTHER.uid]
    assert (third["sessions"], third["cursor"]) == ([], None)
    assert found[1]["rate"] == {"microGPUSecondsPerSecond": "300000", "gpus": 0.3}
    assert (found[1]["budget"], found[1]["end"]) == ("serving", None)


def test_the_dearest_sessions_come_first_where_that_is_asked_for(rest: RestServer) -> None:
    answer = rest.as_person("finance", "GET", "/v1/sessions?order=amount").document
    amounts = [int(session["amount"]["microGPUSeconds"]) for session in answer["sessions"]]
    assert (len(amounts), amounts, answer["cursor"]) == (2, sorted(amounts, reverse=True), None)
    assert len(rest.as_person("finance", "GET", "/v1/sessions?order=amount&limit=1").document["sessions"]) == 1
    of_one = rest.as_person("alice", "GET", "/v1/sessions?order=amount&namespace=team-a").document["sessions"]
    assert [session["pod"] for session in of_one] == ["train-0"]


def test_a_long_answer_is_compressed_for_who_takes_that(rest: RestServer) -> None:
    plain = rest.as_person("finance", "GET", "/v1/budgets")
    small = rest.as_person("finance", "GET", "/v1/budgets", headers={"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert len(small.body) < len(plain.body) / 2
    budgets = json.loads(gzip.decompress(small.body))["budgets"]
    assert [budget["name"] for budget in budgets] == [budget["name"] for budget in plain.document["budgets"]]
    assert "content-encoding" not in plain.headers


def test_a_compressed_answer_that_the_client_has_is_not_sent_again(rest: RestServer) -> None:
    headers = {"Accept-Encoding": "gzip"}
    path = "/v1/usage?window=2026-01-01T00:00:00Z,2026-01-31T00:00:00Z&step=1h"
    first = rest.as_person("finance", "GET", path, headers=headers)
    again = rest.as_person("finance", "GET", path, headers={**headers, "If-None-Match": first.headers["etag"]})
    assert (first.status, again.status) == (200, 304)


def test_a_namespaces_sessions_are_listed_for_who_may_read_it(rest: RestServer) -> None:
    answer = rest.as_person("alice", "GET", "/v1/sessions?namespace=team-a").document
    assert [session["pod"] for session in answer["sessions"]] == ["train-0"]
    assert answer["sessions"][0]["amount"]["microGPUSeconds"] == "3600000000"


ANCESTORS = ("team-a", "team-b", "team-f")


def test_the_ancestors_clients_are_shown_gpu_hours(rest: RestServer) -> None:
    shown = {name: rest.as_person("finance", "GET", f"/budget/{name}").document for name in ANCESTORS}
    assert shown["team-a"] == {"budget_available": True, "budget": 10.0, "budget_remaining": 8.0}
    assert shown["team-b"]["budget_available"] is False
    assert shown["team-f"] == {"budget_available": True, "budget": None, "budget_remaining": None}
