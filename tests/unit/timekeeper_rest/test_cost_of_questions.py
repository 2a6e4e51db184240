"""One caller's questions about use leave a worker its threads and its memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from flask import Flask, Response

from timekeeper.api import routes
from timekeeper.api.dependencies import Dependencies
from timekeeper.api.problems import ProblemError, problem_of
from timekeeper.api.usage import Asking
from timekeeper.auth.access_control import Action, Caller, TooManyRequestsError
from timekeeper.domain.timestamps import parse_instant
from timekeeper.domain.usage import TooManySumsError


class Everybody:
    """Knows every token as a caller of that name, who may do everything."""

    def authenticate(self, token: str, _origin: str = "", /) -> Caller:
        return Caller(token)

    def permits(self, _caller: Caller, _action: Action, /) -> bool:
        return True


def test_a_third_question_of_a_caller_is_refused_until_one_is_answered() -> None:
    asking = Asking(most_at_once=2)
    with asking.one_more("finance"):
        with asking.one_more("finance"):
            with pytest.raises(TooManyRequestsError, match="ask again once one of them is, or ask about one namespace"):
                asking.one_more("finance").__enter__()
            with asking.one_more("ops"):
                pass
        with asking.one_more("finance"):
            pass


def test_a_question_that_fails_is_answered_too() -> None:
    asking = Asking(most_at_once=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="in between"), asking.one_more("finance"):
            raise ValueError("in between")


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> ProblemError:
    """Returns the answer to a question that comes to too many sums."""

    def too_many(*_: object) -> Any:
        raise TooManySumsError

    monkeypatch.setattr(routes, "find", too_many)
    caught: list[ProblemError] = []

    def note(error: Exception) -> Response:
        caught.append(problem_of(error))
        return Response(status=caught[-1].status)

    app = Flask("test")
    app.register_error_handler(Exception, note)
    parts = SimpleNamespace(
        access=Everybody(),
        asking=Asking(),
        now=lambda: parse_instant("2026-02-01T00:00:00Z"),
        usage_labels=(),
        store=None,
        closed_days=None,
        exported=None,
    )
    routes.add_usage_routes(app, cast("Dependencies", parts))
    client = app.test_client()
    client.get("/v1/usage?window=lastmonth&aggregate=owner,user", headers={"Authorization": "Bearer finance"})
    return caught[0]


def test_a_question_with_too_many_sums_is_refused_with_what_to_ask_instead(problem: ProblemError) -> None:
    assert problem.status == 422
    assert problem.faults[0]["field"] == "aggregate"
    assert problem.faults[0]["given"] == '"owner,user"'
    assert "at most 400000 sums: leave names out, such as owner or user" in problem.faults[0]["allowed"]
