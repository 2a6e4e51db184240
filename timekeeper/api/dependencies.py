"""The objects that the routes share in a worker, and the checks whether a caller may do what a request asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import redis
from flask import request

from timekeeper.api.exported_months import ExportedMonths
from timekeeper.api.figures import Book
from timekeeper.api.metrics import Measures
from timekeeper.api.orders import OrderStore
from timekeeper.api.pods import EndedPods
from timekeeper.api.reports import Submissions
from timekeeper.api.states_feed import StatesFeed
from timekeeper.api.usage import Asking, ClosedDays
from timekeeper.auth.access_control import AccessControl, Action, Caller, bearer_token, require
from timekeeper.auth.signed_tokens import PodAuthenticator
from timekeeper.dashboard.serving import Assets
from timekeeper.domain.money import Currency
from timekeeper.domain.timestamps import Instant


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The objects that the routes of the REST API use, one set for each worker.

    Attributes:
        book: reads budgets, sessions and ledgers from the store.
        store: a client of Redis whose answers are bytes.
        usage_labels: the labels of pods by which usage can be queried.
        access: authenticates people and services, and checks their rights.
        recognise: authenticates pods by their tokens, in the event loop.
        grants: stores GPUGrants.
        corrections: stores GPUCorrections.
        pods: finds out whether pods have ended.
        feed: the states of namespaces, in the event loop.
        submissions: stores reports, in the event loop.
        loop: returns the worker's event loop; raises RuntimeError before the worker has started.
        now: returns the time in nanoseconds since 1970.
        report_interval_seconds: the interval at which sidecars are asked to report.
        measures: the worker's metrics.
        assets: the files of the dashboard.
        asking: limits a caller's concurrent usage queries about all namespaces.
        closed_days: caches the usage of closed days, added up, for usage queries.
        currency: the currency of amounts beside GPU-hours; None for none.
        present_use: the name of the source that measures how busy pods keep their GPUs; None if none is configured.
        exported: the exported months that the store no longer holds; None if months are not exported.
    """

    book: Book
    store: redis.Redis
    usage_labels: tuple[str, ...]
    access: AccessControl
    recognise: PodAuthenticator
    grants: OrderStore
    corrections: OrderStore
    pods: EndedPods
    feed: StatesFeed
    submissions: Submissions
    loop: Callable[[], asyncio.AbstractEventLoop]
    now: Callable[[], Instant]
    report_interval_seconds: int
    measures: Measures
    assets: Assets
    asking: Asking
    closed_days: ClosedDays
    currency: Currency | None = None
    present_use: Literal["prometheus"] | None = None
    exported: ExportedMonths | None = None


GPU_BUDGETS = "gpubudgets"
GPU_GRANTS = "gpugrants"
GPU_CORRECTIONS = "gpucorrections"


def may(access: AccessControl, action: Action) -> Caller:
    """Returns the caller of the present HTTP request if the caller has the right to an action; raises an error if not.

    Args:
        access: authenticates the caller and decides the caller's rights.
        action: a verb of the Kubernetes API and the object that it concerns.

    Raises:
        UnauthenticatedError: the request has no valid token.
        ForbiddenError: the caller lacks the right.
        IdentityUnavailableError: the caller's identity or rights cannot be checked now.
        TooManyRequestsError: the caller, or the client's address, has caused too many reviews.
    """
    return require(access, bearer_token(request.headers.get("Authorization")), action, request.remote_addr or "")


def may_read_namespace(access: AccessControl, namespace: str) -> Caller:
    """Returns the request's caller if they may read the namespace's budget; if not, raises an error as `may` does."""
    return may(access, Action("get", GPU_BUDGETS, namespace))


def may_read_budget(access: AccessControl, name: str) -> Caller:
    """Returns the request's caller if they may read the budget of this name; if not, raises an error as `may` does."""
    return may(access, Action("get", GPU_BUDGETS, name=name))


def may_read_all(access: AccessControl) -> Caller:
    """Returns the request's caller if they may read all budgets; if not, raises an error as `may` does."""
    return may(access, Action("list", GPU_BUDGETS))


def may_grant(access: AccessControl) -> Caller:
    """Returns the request's caller if they may grant money; if not, raises an error as `may` does."""
    return may(access, Action("create", GPU_GRANTS))


def may_correct(access: AccessControl) -> Caller:
    """Returns the request's caller if they may correct spending; if not, raises an error as `may` does."""
    return may(access, Action("create", GPU_CORRECTIONS))
