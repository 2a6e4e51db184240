from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from timekeeper.api.models import AccessAnswer
from timekeeper.api.routes import MAX_TRIED, access_of, likely_first
from timekeeper.auth.access_control import Action, Caller, TooManyRequestsError

ALICE = Caller("alice", groups=("oidc:team-b", "system:authenticated"))


class Roles:
    """An access control that knows the readable namespaces; it records the questions."""

    def __init__(self, readable: Iterable[str], *, everything: bool = False) -> None:
        self.readable = set(readable)
        self.everything = everything
        self.asked: list[Action] = []
        self.patience = 10_000

    def authenticate(self, token: str, _origin: str = "", /) -> Caller:
        return Caller(token)

    def permits(self, _caller: Caller, action: Action) -> bool:
        if len(self.asked) >= self.patience:
            raise TooManyRequestsError("too many", 1)
        self.asked.append(action)
        if action.namespace:
            return action.namespace in self.readable
        return self.everything and action.verb == "list"


def shown(roles: Roles, caller: Caller, known: list[str], step: float = 0.0) -> AccessAnswer:
    clock = itertools.count(0.0, step) if step else itertools.repeat(0.0)
    return access_of(caller, roles, lambda: known, lambda: next(clock))


def test_a_person_who_may_list_all_budgets_is_asked_about_no_namespace() -> None:
    roles = Roles([], everything=True)
    answer = shown(roles, ALICE, ["team-a"])
    assert (answer.readsAll, answer.namespaces, answer.complete) == (True, [], True)
    assert [action for action in roles.asked if action.namespace] == []


def test_others_are_shown_the_namespaces_that_they_may_read() -> None:
    answer = shown(Roles(["team-a", "team-c"]), ALICE, ["team-a", "team-b", "team-c"])
    assert (answer.readsAll, answer.namespaces, answer.complete) == (False, ["team-a", "team-c"], True)


def test_a_large_cluster_is_not_searched_to_its_end_and_that_is_said() -> None:
    roles = Roles(["z"])
    answer = shown(roles, ALICE, [f"team-{number:04d}" for number in range(5000)] + ["z"])
    assert (answer.namespaces, answer.complete) == ([], False)
    assert len([action for action in roles.asked if action.namespace]) == MAX_TRIED


def test_a_slow_api_server_does_not_keep_a_person_waiting() -> None:
    roles = Roles(["team-9"])
    answer = shown(roles, ALICE, [f"team-{number}" for number in range(50)], step=0.5)
    assert answer.complete is False
    assert len([action for action in roles.asked if action.namespace]) < 5


def test_the_findings_before_the_caller_had_asked_too_often_are_shown() -> None:
    roles = Roles(["team-0", "team-9"])
    roles.patience = 5
    answer = shown(roles, ALICE, [f"team-{number}" for number in range(10)])
    assert (answer.namespaces, answer.complete) == (["team-0"], False)


def test_a_person_who_has_asked_too_often_for_anything_is_shown_so() -> None:
    roles = Roles(["team-0"])
    roles.patience = 1
    with pytest.raises(TooManyRequestsError):
        shown(roles, ALICE, ["team-0"])


def test_groups_and_names_that_an_error_names_are_tried_first() -> None:
    assert likely_first(ALICE, ["a", "b", "team-b", "z"]) == ["team-b", "a", "b", "z"]
    account = Caller("system:serviceaccount:team-z:viewer", groups=("system:serviceaccounts:team-z",))
    assert likely_first(account, ["a", "team-z"]) == ["team-z", "a"]


def test_a_service_accounts_own_namespace_is_tried_even_where_nothing_ran_yet() -> None:
    account = Caller("system:serviceaccount:new-team:viewer")
    assert shown(Roles(["new-team"]), account, []).namespaces == ["new-team"]
