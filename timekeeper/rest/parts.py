"""What the routes work with, put together once in each worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import redis

from timekeeper.identity.callers import Authority
from timekeeper.page.assets import Assets
from timekeeper.rest.figures import Book
from timekeeper.rest.hot_routes import Submissions
from timekeeper.rest.measures import Measures
from timekeeper.rest.ordering import OrderStore
from timekeeper.rest.pods import EndedPods
from timekeeper.rest.recognising import Recognizer
from timekeeper.rest.states_feed import StatesFeed
from timekeeper.rest.usage.closed_days import ClosedDays
from timekeeper.rest.usage.exported_months import ExportedMonths
from timekeeper.rules.currency import Currency


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts.

    Attributes:
        book: answers questions about budgets.
        store: a client of Redis whose answers are bytes.
        usage_labels: the labels of pods that use can be asked for by.
        authority: knows people and services.
        recognise: knows pods by their tokens, in the event loop.
        grants: keeps GPUGrants.
        corrections: keeps GPUCorrections.
        pods: knows pod objects.
        feed: the states, in the event loop.
        submissions: takes reports, in the event loop.
        loop: names the event loop, once the worker has started.
        now: nanoseconds since 1970.
        report_interval_seconds: how often sidecars are asked to report.
        measures: the worker's metrics.
        assets: the files of the page for people.
        closed_days: remembers what days long closed came to.
        currency: what amounts are shown in beside GPU-hours; None for nothing.
        exported: months that the store has forgotten; None where they are written nowhere.
    """

    book: Book
    store: redis.Redis
    usage_labels: tuple[str, ...]
    authority: Authority
    recognise: Recognizer
    grants: OrderStore
    corrections: OrderStore
    pods: EndedPods
    feed: StatesFeed
    submissions: Submissions
    loop: Callable[[], asyncio.AbstractEventLoop]
    now: Callable[[], int]
    report_interval_seconds: int
    measures: Measures
    assets: Assets
    closed_days: ClosedDays
    currency: Currency | None = None
    exported: ExportedMonths | None = None
