"""Parses the parameters of a usage query, and its cursors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timekeeper.api.paging import cursor_after, decoded_cursor
from timekeeper.api.problems import invalid
from timekeeper.domain.usage import LABEL, PLAIN
from timekeeper.domain.usage_grouping import Place
from timekeeper.domain.windows import (
    FORECAST_ENDS,
    Window,
    WindowError,
    parse_forecast_end,
    parse_step,
    parse_window,
    steps,
)

DEFAULT_LIMIT = 1000
MAX_LIMIT = 10_000
MAX_DIMENSIONS = 6
MAX_CURSOR = 8192
PARAMETERS = ("window", "step", "aggregate", "limit", "cursor", "format", "forecast")


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a usage query.

    Attributes:
        window: the window of time.
        step: the length of the steps into which the window is divided, as written; None for the whole window.
        aggregate: the dimensions by which usage is added up, such as namespace.
        limit: the most items of an answer.
        after: the place after which the page begins; None for the first page.
        namespace: the only namespace to count; None for all.
        idle: whether to add the capacity that no pod held, as one item.
        idle_models: whether to add the capacity that no pod held, as one item for each model.
        forecast: the instant up to which to forecast what is billed, in nanoseconds since 1970; None for no forecast.
    """

    window: Window
    step: str | None
    aggregate: tuple[str, ...]
    limit: int
    after: Place | None = None
    namespace: str | None = None
    idle: bool = False
    idle_models: bool = False
    forecast: int | None = None


def read_query(arguments: Mapping[str, str], labels: Sequence[str], now: int, namespace: str | None = None) -> Query:
    """Parses a usage query from the parameters of an HTTP request.

    Args:
        labels: the labels of pods by which usage can be queried.
        now: nanoseconds since 1970.
        namespace: the only namespace to count; None for all.

    Raises:
        ProblemError: a parameter is invalid.
    """
    text = arguments.get("window", "")
    step = arguments.get("step") or None
    try:
        window = parse_window(text, now)
    except WindowError as error:
        raise invalid("window", text, str(error)) from error
    try:
        step = None if step is None else parse_step(step)
        list(steps(window, step))
    except WindowError as error:
        raise invalid("step", step, str(error)) from error
    aggregate = _aggregate(arguments.get("aggregate") or "namespace", labels)
    after = place_of(arguments.get("cursor", ""), len(aggregate))
    idle = arguments.get("idle", "false")
    if idle not in {"true", "false", "model"} or (idle == "model" and "model" not in aggregate):
        raise invalid("idle", idle, "true, false, or, where aggregate has model, model")
    return Query(
        window,
        step,
        aggregate,
        _limit(arguments.get("limit")),
        after,
        namespace,
        idle=idle == "true",
        idle_models=idle == "model",
        forecast=_forecast(arguments.get("forecast", ""), window, step, now),
    )


def _forecast(text: str, window: Window, step: str | None, now: int) -> int | None:
    if not text:
        return None
    if step is not None or not window.start <= now < window.end:
        raise invalid("forecast", text, FORECAST_ENDS)
    try:
        return parse_forecast_end(text, now)
    except WindowError as error:
        raise invalid("forecast", text, str(error)) from error


def _aggregate(text: str, labels: Sequence[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    choices = [*PLAIN, *(f"{LABEL}{key}" for key in labels)]
    allowed = f"a comma list without repetition of {', '.join(choices)}"
    if len(names) > MAX_DIMENSIONS:
        raise invalid("aggregate", text, f"{allowed}; at most {MAX_DIMENSIONS} of them")
    unknown = next((name for name in names if name not in choices), None)
    if unknown is not None and unknown.startswith(LABEL):
        raise invalid("aggregate", unknown, f"{allowed}; an admin adds labels in timekeeper.usage.labels")
    if unknown is not None or len(set(names)) != len(names):
        raise invalid("aggregate", text, allowed)
    return names


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LIMIT):
        raise invalid("limit", text, f"a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def cursor_of(place: Place) -> str:
    """Returns the cursor of the page of usage that begins after a place.

    Args:
        place: the number of the step, and the values of the dimensions.
    """
    return cursor_after(json.dumps([place[0], *place[1]], separators=(",", ":")))


def place_of(text: str, width: int) -> Place | None:
    """Returns the place of a cursor, after which a page of usage begins; None for an empty text.

    Args:
        width: the number of dimensions by which the query adds up.

    Raises:
        ProblemError: no earlier answer contained the cursor.
    """
    if not text:
        return None
    try:
        index, *key = json.loads(decoded_cursor(text, MAX_CURSOR) or "")
    except (ValueError, TypeError, RecursionError):
        index, key = None, []
    if type(index) is not int or index < 0 or len(key) != width or not all(isinstance(value, str) for value in key):
        raise invalid("cursor", text, "nothing, or the cursor of an earlier answer to the same question as it was")
    return index, tuple(key)
