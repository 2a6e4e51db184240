"""Asks for rights inside Flask's routes."""

from __future__ import annotations

from flask import request

from timekeeper.identity.bearer import bearer_token
from timekeeper.identity.callers import Action, Authority, Caller, require

GPU_BUDGETS = "gpubudgets"
GPU_GRANTS = "gpugrants"
GPU_CORRECTIONS = "gpucorrections"


def may(authority: Authority, action: Action) -> Caller:
    """The caller of the present request, who may do this.

    Raises:
        UnauthenticatedError: nobody was recognised.
        ForbiddenError: the caller lacks the right.
        IdentityUnavailableError: that cannot be found out now.
        TooManyRequestsError: it was asked for too often.
    """
    return require(authority, bearer_token(request.headers.get("Authorization")), action, request.remote_addr or "")


def may_read_namespace(authority: Authority, namespace: str) -> Caller:
    """The caller, who may read what a namespace spends."""
    return may(authority, Action("get", GPU_BUDGETS, namespace))


def may_read_budget(authority: Authority, name: str) -> Caller:
    """The caller, who may read one budget, of whichever namespaces."""
    return may(authority, Action("get", GPU_BUDGETS, name=name))


def may_read_all(authority: Authority) -> Caller:
    """The caller, who may read every budget."""
    return may(authority, Action("list", GPU_BUDGETS))


def may_grant(authority: Authority) -> Caller:
    """The caller, who may give money to any budget."""
    return may(authority, Action("create", GPU_GRANTS))


def may_correct(authority: Authority) -> Caller:
    """The caller, who may set right what any budget spent."""
    return may(authority, Action("create", GPU_CORRECTIONS))
