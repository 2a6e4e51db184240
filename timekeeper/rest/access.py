"""Tells callers whose figures they may read: Kubernetes has no question for it, so namespaces are tried one by one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

from flask import Flask, Response, request

from timekeeper.identity.bearer import bearer_token
from timekeeper.identity.callers import Action, Authority, Caller
from timekeeper.identity.refusals import TooManyRequestsError
from timekeeper.rest.answers import AccessAnswer
from timekeeper.rest.guard import GPU_BUDGETS, GPU_GRANTS
from timekeeper.rest.parts import Parts

MAX_TRIED = 100
"""Each namespace costs the API server an access review, so a large cluster is not searched to its end."""
TRYING_SECONDS = 2.0
"""Nor is a person kept waiting for an API server whose reviews are slow."""

_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):")
_PARTS = re.compile(r"[:/@,=]")


def add_access_route(app: Flask, parts: Parts) -> None:
    """Adds `GET /v1/access`."""

    @app.get("/v1/access")
    def access() -> Response:
        token = bearer_token(request.headers.get("Authorization"))
        caller = parts.authority.authenticate(token, request.remote_addr or "")
        found = access_of(caller, parts.authority, parts.book.namespaces, time.monotonic)
        return Response(found.model_dump_json(), mimetype="application/json")


def access_of(
    caller: Caller, authority: Authority, known: Callable[[], Sequence[str]], clock: Callable[[], float]
) -> AccessAnswer:
    """What a caller may read.

    Args:
        caller: who asks.
        authority: who knows their rights.
        known: gives the namespaces of the book; asked for only where not everything may be read.
        clock: a monotonic one, in seconds.

    Raises:
        IdentityUnavailableError: the authority cannot be asked.
        TooManyRequestsError: the caller has asked it too often to be told anything.
    """
    grants = authority.permits(caller, Action("create", GPU_GRANTS))
    if authority.permits(caller, Action("list", GPU_BUDGETS)):
        return AccessAnswer(name=caller.name, readsAll=True, grants=grants, namespaces=[], complete=True)
    ends, readable, tried = clock() + TRYING_SECONDS, [], 0
    namespaces = likely_first(caller, known())
    for namespace in namespaces[:MAX_TRIED]:
        if clock() >= ends:
            break
        try:
            if authority.permits(caller, Action("get", GPU_BUDGETS, namespace)):
                readable.append(namespace)
        except TooManyRequestsError:  # what was found so far is worth more to them than nothing
            break
        tried += 1
    complete = tried == len(namespaces)
    return AccessAnswer(name=caller.name, readsAll=False, grants=grants, namespaces=sorted(readable), complete=complete)


def likely_first(caller: Caller, known: Iterable[str]) -> list[str]:
    """Namespaces in the order in which they are worth trying, each once.

    First a service account's own, then those that the caller's name or groups speak of, then the others.
    """
    own = _SERVICE_ACCOUNT.match(caller.name)
    first = [own.group(1)] if own else []
    words = {word for text in (caller.name, *caller.groups) for word in _PARTS.split(text)}
    named = sorted(known, key=lambda namespace: (namespace not in words, namespace))
    return list(dict.fromkeys([*first, *named]))
