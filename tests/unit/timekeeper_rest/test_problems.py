from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pydantic import ValidationError
from structlog.testing import capture_logs
from werkzeug.exceptions import MethodNotAllowed, NotFound

from fairgpu.cluster.api import ApiError
from timekeeper.api.figures import BadCursorError
from timekeeper.api.models import GrantRequest, Report
from timekeeper.api.problems import OverloadedError, ProblemError, answer, invalid, not_found, problem_of
from timekeeper.auth.access_control import (
    ForbiddenError,
    IdentityUnavailableError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from timekeeper.ledger.client import StoreUnavailableError
from timekeeper.sources.base import SourceError


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    with capture_logs() as events:
        yield events


ERRORS: dict[str, tuple[Exception, int, str]] = {
    "no token": (UnauthenticatedError("no token"), 401, "unauthenticated"),
    "no right": (ForbiddenError("may not"), 403, "forbidden"),
    "a caller without patience": (TooManyRequestsError("too many", 7), 429, "too-many-requests"),
    "no API server to ask": (IdentityUnavailableError("away"), 503, "unavailable"),
    "Redis away": (redis.ConnectionError("refused"), 503, "unavailable"),
    "Redis slow": (redis.TimeoutError("slow"), 503, "unavailable"),
    "a script not run": (StoreUnavailableError("loading"), 503, "unavailable"),
    "too many reports": (OverloadedError("waiting"), 503, "unavailable"),
    "a slow event loop": (TimeoutError(), 503, "unavailable"),
    "an object refused": (ApiError(422, "Invalid", "spec.gpuHours: no"), 422, "invalid"),
    "the API server away": (ApiError(0, "Unreachable", "no route"), 503, "unavailable"),
    "the timekeeper not allowed": (ApiError(403, "Forbidden", "no"), 503, "unavailable"),
    "a folder not writable": (SourceError("read-only"), 503, "unavailable"),
    "an invented cursor": (BadCursorError("x"), 422, "invalid"),
    "no such path": (NotFound(), 404, "not-found"),
    "no such thing": (not_found("no budget 'x'"), 404, "not-found"),
    "a mistake of ours": (KeyError("secret"), 500, "internal"),
}


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_becomes_a_problem_document(error: Exception, status: int, kind: str) -> None:
    response = answer(problem_of(error))
    document = json.loads(response.body)
    assert (response.status, document["status"]) == (status, status)
    assert document["type"] == f"urn:fairgpu:problem:{kind}"
    assert response.content_type == b"application/problem+json"
    assert document["title"]
    assert document["detail"]


def test_a_refusal_that_may_be_tried_again_says_when() -> None:
    assert dict(answer(problem_of(redis.ConnectionError())).headers)[b"retry-after"] == b"5"
    assert dict(answer(problem_of(TooManyRequestsError("too many", 7))).headers)[b"retry-after"] == b"7"


def test_a_mistake_of_ours_is_logged_and_shows_the_client_nothing_of_the_inside(logged: list[Any]) -> None:
    response = answer(problem_of(KeyError("inside")))
    assert b"inside" not in response.body
    assert [event["event"] for event in logged] == ["request failed"]


def test_a_redis_error_does_not_tell_the_client_where_redis_is(logged: list[Any]) -> None:
    assert b"10.0.0.7" not in answer(problem_of(redis.ConnectionError("connecting to 10.0.0.7:6379"))).body
    assert "10.0.0.7" in logged[0]["error"]


def test_a_path_that_is_not_there_says_where_those_stand_that_are() -> None:
    assert "/openapi.json" in problem_of(NotFound()).detail


def test_a_method_that_is_not_there_names_those_that_are() -> None:
    assert problem_of(MethodNotAllowed(["POST", "GET"])).headers == {"Allow": "GET, POST"}


def test_a_body_is_refused_with_the_path_of_each_field_what_was_given_and_what_is_allowed() -> None:
    body = b'{"v":1,"boot":"b","seq":-1,"containers":[{"name":"main","devices":[{"uuid":"GPU-1","busyNs":1.5}]}]}'
    with pytest.raises(ValidationError) as caught:
        Report.model_validate_json(body)
    problem = problem_of(caught.value)
    faults = {fault["field"]: fault for fault in problem.faults}
    assert faults["seq"]["given"] == "-1"
    assert faults["seq"]["allowed"] == "a number from 0"
    assert faults["containers[0].devices[0].busyNs"]["given"] == "1.5"
    assert faults["containers[0].devices[0].oom"]["given"] == "nothing"
    assert "seq: given -1; allowed: a number from 0" in problem.detail


def test_a_body_with_many_faults_names_a_bounded_number_of_them() -> None:
    with pytest.raises(ValidationError) as caught:
        GrantRequest.model_validate({f"field{number}": "x" * 1000 for number in range(500)})
    problem = problem_of(caught.value)
    assert len(problem.faults) == 20
    assert len(problem.detail) < 10_000


def test_a_parameter_is_refused_by_its_name() -> None:
    problem = invalid("limit", "many", "a whole number")
    assert isinstance(problem, ProblemError)
    assert problem.detail == 'limit: given "many"; allowed: a whole number'
