"""Turns every error of the REST API into a problem document (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import redis
import structlog
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from fairgpu.cluster.api import ApiError
from fairgpu.faults import show
from fairgpu.serving.messages import PROBLEM, Handler, Request, Response, Stream
from timekeeper.api.figures import BadCursorError
from timekeeper.api.metrics import Measures
from timekeeper.auth.access_control import (
    ForbiddenError,
    IdentityUnavailableError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from timekeeper.export.destination import MonthUnavailableError
from timekeeper.ledger.client import StoreError
from timekeeper.sources.base import SourceError

TYPE_PREFIX = "urn:fairgpu:problem:"
RETRY_AFTER_SECONDS = 5
MAX_NAMED_FAULTS = 20

_ALLOWED = {
    "missing": "this field is needed: write it",
    "extra_forbidden": "no field of this name: leave it out, or look for its name in /openapi.json",
    "greater_than_equal": "a number from {ge}",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number up to {le}",
    "int_type": "a whole number without quotes",
    "int_from_float": "a whole number, without decimals",
    "finite_number": "a number; NaN and infinity are none",
    "string_type": "text in quotes",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_long": "at most {max_length} of them",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "literal_error": "{expected}",
}
"""The advice for each of pydantic's types of error (https://docs.pydantic.dev/latest/errors/validation_errors/)."""

_log = structlog.get_logger()


class OverloadedError(RuntimeError):
    """A request is not accepted, because the greatest allowed number of requests already waits for the store."""


class ProblemError(Exception):
    """A request is not served; the error has the fields of the problem document with which it is answered (RFC 9457).

    Attributes:
        status: the HTTP status.
        kind: the last part of the problem's type, such as not-found; stable, for programs.
        detail: the fault of this request, for people.
        faults: one mapping for each faulty field, with the keys `field`, `given` and `allowed`.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        faults: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.faults = faults
        self.headers = headers or {}


def invalid(name: str, given: Any, allowed: str) -> ProblemError:
    """Returns the problem of an invalid parameter or field of a request.

    Args:
        name: the name of the parameter or field.
        given: the value in the request.
        allowed: the allowed values, as a phrase.
    """
    fault = {"field": name, "given": show(given), "allowed": allowed}
    return ProblemError(422, "invalid", f"{name}: given {fault['given']}; allowed: {allowed}", (fault,))


def not_found(what: str) -> ProblemError:
    """Returns the problem of an object that does not exist; `what` is the message for people."""
    return ProblemError(404, "not-found", what)


def answer(problem: ProblemError) -> Response:
    """Returns a problem as an HTTP response."""
    document: dict[str, Any] = {
        "type": TYPE_PREFIX + problem.kind,
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.faults:
        document["errors"] = [dict(fault) for fault in problem.faults]
    headers = tuple(
        (name.lower().encode(), value.encode("latin-1", "replace")) for name, value in problem.headers.items()
    )
    return Response(problem.status, orjson.dumps(document), PROBLEM, headers)


def guarded(route: Handler, measures: Measures) -> Handler:
    """Wraps a route of the event loop, so that each error that it raises is answered as a problem document.

    Args:
        route: the route that may raise errors.
        measures: the worker's metrics, which count problems.
    """

    async def handle(request: Request) -> Response | Stream:
        try:
            return await route(request)
        except Exception as error:  # noqa: BLE001 - errors of the event loop's routes become answers here
            problem = problem_of(error)
            measures.problems.labels(problem.kind).inc()
            return answer(problem)

    return handle


def problem_of(error: BaseException) -> ProblemError:  # noqa: C901, PLR0911 - a table, one row for each kind of error
    """Converts an error to the problem that the client gets, and logs the error if the client did not cause it."""
    match error:
        case ProblemError():
            return error
        case UnauthenticatedError():
            return ProblemError(401, "unauthenticated", str(error), headers={"WWW-Authenticate": "Bearer"})
        case ForbiddenError():
            return ProblemError(403, "forbidden", str(error))
        case TooManyRequestsError():
            headers = {"Retry-After": str(error.retry_after_seconds)}
            return ProblemError(429, "too-many-requests", str(error), headers=headers)
        case BadCursorError():
            return invalid("cursor", str(error), "nothing, or the cursor of an earlier answer as it was")
        case ValidationError():
            return _invalid_body(error)
        case IdentityUnavailableError() | redis.RedisError() | StoreError() | OverloadedError() | TimeoutError():
            return _unavailable(error)
        case MonthUnavailableError():
            _log.warning("exported month not answered", error=str(error), reason=error.reason)
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            return ProblemError(503, "export-unavailable", f"{error}; the timekeeper's log says why", headers=headers)
        case ApiError() | SourceError():
            return _refused_by_cluster(error)
        case HTTPException():
            return _of_framework(error)
        case _:
            _log.error("request failed", error=repr(error), exc_info=error)
            return ProblemError(500, "internal", "the timekeeper's log has the reason")


def _invalid_body(error: ValidationError) -> ProblemError:
    errors = error.errors(include_url=False)
    if any(item["type"] == "json_invalid" for item in errors):
        return ProblemError(400, "not-json", f"the body is no JSON: {errors[0]['msg'].removeprefix('Invalid JSON: ')}")
    faults = [_fault(item) for item in errors[:MAX_NAMED_FAULTS]]
    detail = "; ".join(f"{item['field']}: given {item['given']}; allowed: {item['allowed']}" for item in faults)
    return ProblemError(422, "invalid", detail, faults)


def _fault(item: Mapping[str, Any]) -> dict[str, str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]).lstrip(".")
    given = "nothing" if item["type"] == "missing" else show(item["input"])
    words = _ALLOWED.get(item["type"])
    allowed = words.format(**item.get("ctx", {})) if words else str(item["msg"])
    return {"field": path or "body", "given": given, "allowed": allowed}


def _unavailable(error: BaseException) -> ProblemError:
    _log.warning("request not served", kind=type(error).__name__, error=str(error))
    detail = (
        str(error)
        if isinstance(error, IdentityUnavailableError | OverloadedError)
        else "the store of the ledger does not answer"
    )
    return ProblemError(503, "unavailable", f"{detail}; try again", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def _refused_by_cluster(error: ApiError | SourceError) -> ProblemError:
    """Returns the problem for an error of the API server, or of the folder in its place.

    If the API server refused an object (400 or 422), the problem has its message. Any other error is logged, and its
    problem has the status 503.
    """
    if isinstance(error, ApiError) and error.status in (400, 422):
        return ProblemError(422, "invalid", error.message)
    _log.warning("API server refused", error=str(error))
    detail = "the Kubernetes API server does not answer, or refuses the timekeeper"
    return ProblemError(503, "unavailable", f"{detail}; try again", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def _of_framework(error: HTTPException) -> ProblemError:
    status = error.code or 500
    headers = {}
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        headers["Allow"] = ", ".join(sorted(error.valid_methods))
    kind = HTTPStatus(status).phrase.lower().replace(" ", "-")
    if status == HTTPStatus.NOT_FOUND:
        return not_found("there is no such path; /openapi.json lists those that are")
    return ProblemError(status, kind, error.description or HTTPStatus(status).phrase, headers=headers)
