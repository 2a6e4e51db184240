"""Present use: how busy pods keep their GPUs now, as a Prometheus answers the query that the admin configures.

It is advisory: it is shown beside what pods reserve, and no settlement, bill or audit reads it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from fairgpu.json_values import mapping
from timekeeper.domain.money import SECOND
from timekeeper.domain.sessions import CLAIM
from timekeeper.domain.timestamps import MINUTE, Instant

FullName = tuple[str, str]
"""A namespace, and the name of a session in it: the pod's, or CLAIM and the resource claim's."""

OVERSHOOT = 1.05
"""The largest value, as a part of full use, that still counts as full use: rates and averages overshoot a little."""
STALE = 2 * MINUTE
"""The most by which the time of an answer's evaluation may differ from the local clock: a cache may serve old answers.
"""
MOST_WARNINGS = 3
MOST_CHARACTERS = 200


class SeriesFault(StrEnum):
    """The causes for which a time series in Prometheus's answer counts for no pod and no claim."""

    NO_POD = "no-pod"
    """The series has no labels that name a pod or a claim in ASCII: for example, no pod holds its GPU."""
    NO_NUMBER = "no-number"
    """The series' value is NaN, infinite, a histogram, or no sample at all."""
    OUT_OF_SCALE = "out-of-scale"
    """The series' value is below 0, or above full use by more than OVERSHOOT allows."""


class AnswerFault(StrEnum):
    """The causes for which a whole answer of Prometheus is not used: no JSON, an error, no vector, or stale."""

    UNREADABLE = "unreadable"
    ERROR = "error"
    NO_VECTOR = "no-vector"
    STALE = "stale"


class AnswerError(ValueError):
    """An answer of Prometheus that cannot be used; the text is for the log.

    Attributes:
        fault: the cause.
    """

    def __init__(self, fault: AnswerFault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The rules by which a time series in Prometheus's answer is read.

    Attributes:
        labels: pairs of labels that name a namespace and a pod; the first pair that a series has in full counts.
        full: the value that a series has for a GPU in full use, such as 100 for percent.
        claims: pairs of labels that name a namespace and a resource claim; a series that has both labels of a pair is
            the claim's, not a pod's.
    """

    labels: tuple[FullName, ...]
    full: float
    claims: tuple[FullName, ...] = ()


@dataclass(frozen=True, slots=True)
class BusyPods:
    """The pods and claims in Prometheus's answer, and how busy they keep their GPUs.

    Attributes:
        busy: the values of each pod's or claim's time series, as parts of full use from 0 to 1. The key is a pair of
            the namespace and the pod's name, or `resourceclaim/NAME` for a ResourceClaim.
        faults: the number of time series that are assigned to no pod or claim, keyed by cause.
        warnings: the beginnings of Prometheus's first MOST_WARNINGS warnings; with any, the answer may be incomplete.
    """

    busy: Mapping[FullName, Sequence[float]]
    faults: Mapping[SeriesFault, int]
    warnings: tuple[str, ...] = ()


class _Series(NamedTuple):
    """A time series of an answer: the pod or claim that it is about, None if no labels name one, and its value.

    The value is a part of full use from 0 to 1, or the reason why the series states none.
    """

    pod: FullName | None
    share: float | SeriesFault


def read_answer(body: bytes, rules: AnswerRules, now: Instant) -> BusyPods:
    """Reads Prometheus's answer to an instant query (https://prometheus.io/docs/prometheus/latest/querying/api/).

    Each series is reduced to its pod and value as soon as it is decoded: an answer with all labels takes four times the
    memory.

    Args:
        body: the body of Prometheus's HTTP response.
        rules: the rules by which a series is read.
        now: the present by the local clock.

    Returns:
        How busy each pod or claim is that a series names. Series that count for none are counted by cause.

    Raises:
        AnswerError: the body is no answer of Prometheus, states an error or another result than a vector, or was
            evaluated more than STALE before or after `now`.
    """

    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Series:
        fields = dict(pairs)
        labels = fields.get("metric")
        if isinstance(labels, dict):
            return _Series(_pod(labels, rules), _share(fields.get("value"), rules.full, now))
        return {key: fields[key] for key in kept & fields.keys()}

    kept = _FIELDS.union(*rules.labels, *rules.claims)
    document = _document(body, read)
    data = mapping(document.get("data"))
    result = data.get("result")
    if data.get("resultType") != "vector" or not isinstance(result, list):
        given = _text(data.get("resultType"))
        raise AnswerError(AnswerFault.NO_VECTOR, f"the result is of the type {given!r}: write a query for a vector")
    busy: dict[FullName, list[float]] = {}
    faults: Counter[SeriesFault] = Counter()
    for series in result:
        pod, share = series if isinstance(series, _Series) else (None, SeriesFault.NO_POD)
        if pod is None:
            faults[SeriesFault.NO_POD] += 1
        elif isinstance(share, SeriesFault):
            faults[share] += 1
        else:
            busy.setdefault(pod, []).append(share)
    return BusyPods(busy, faults, _texts(document.get("warnings")))


def error_text(body: bytes) -> str:
    """Returns the error that Prometheus states in the body of a response; empty if the body states none."""
    try:
        _document(body)
    except AnswerError as error:
        return str(error) if error.fault is AnswerFault.ERROR else ""
    return ""


_FIELDS = frozenset({"status", "data", "resultType", "result", "warnings", "errorType", "error", "metric", "value"})


def _document(body: bytes, read: Callable[[list[tuple[str, Any]]], Any] = dict) -> Mapping[str, Any]:
    """Decodes the body of Prometheus's answer.

    Args:
        read: makes a value of the fields of each JSON object; called for inner objects first.

    Raises:
        AnswerError: the body is no JSON, or states an error, or is no answer.
    """
    try:
        document = json.loads(body, object_pairs_hook=read, parse_int=_number, parse_constant=_refuse)
    except AnswerError:
        raise
    except (ValueError, RecursionError) as error:
        raise AnswerError(AnswerFault.UNREADABLE, f"it is no JSON: {_text(error)}") from None
    if not isinstance(document, dict) or document.get("status") not in ("success", "error"):
        raise AnswerError(AnswerFault.UNREADABLE, "it has no status `success` or `error`")
    if document["status"] == "error":
        texts = [_text(document.get(key, "")) for key in ("errorType", "error")]
        raise AnswerError(AnswerFault.ERROR, ": ".join(texts))
    return document


_LONGEST_WHOLE = 18
"""The most digits of a whole number that is read exactly. A longer one is a float, perhaps an infinite one."""


def _number(digits: str) -> float:
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)


def _refuse(constant: str) -> None:
    """Refuses NaN and Infinity, which Python's parser would accept as JSON.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{constant} is no number of JSON")


def _text(value: object) -> str:
    """Returns the beginning of a value's text for the log; halves of surrogate pairs, which no log holds, become ?."""
    return str(value)[:MOST_CHARACTERS].encode(errors="replace").decode()


def _pod(labels: Mapping[str, Any], rules: AnswerRules) -> FullName | None:
    claim = _named(labels, rules.claims)
    return _named(labels, rules.labels) if claim is None else (claim[0], f"{CLAIM}{claim[1]}")


def _named(labels: Mapping[str, Any], pairs: Sequence[FullName]) -> FullName | None:
    for of_namespace, of_name in pairs:
        namespace, name = labels.get(of_namespace), labels.get(of_name)
        # Names of objects are ASCII. Half of a surrogate pair in a name would be an error of the log.
        if (
            isinstance(namespace, str)
            and isinstance(name, str)
            and namespace
            and name
            and f"{namespace}{name}".isascii()
        ):
            return namespace, name
    return None


def _share(sample: Any, full: float, now: Instant) -> float | SeriesFault:
    """Returns the part of full use that a sample states, from 0 to 1, or the fault for which the sample is not used.

    Args:
        sample: a pair of the time in seconds since 1970 and the value as text.
        full: the value for a GPU in full use.
        now: the present by the local clock.

    Raises:
        AnswerError: the sample was evaluated more than STALE before or after `now`.
    """
    if not isinstance(sample, list) or len(sample) != 2:
        return SeriesFault.NO_NUMBER
    at, text = sample
    if not isinstance(at, int | float) or isinstance(at, bool) or not isinstance(text, str):
        return SeriesFault.NO_NUMBER
    late = now / SECOND - at
    if abs(late) > STALE / SECOND:
        raise AnswerError(AnswerFault.STALE, f"it was evaluated {late:.0f} s before now")
    try:
        value = float(text)
    except ValueError:
        return SeriesFault.NO_NUMBER
    if not math.isfinite(value):
        return SeriesFault.NO_NUMBER
    share = value / full
    return min(share, 1.0) if 0 <= share <= OVERSHOOT else SeriesFault.OUT_OF_SCALE


def _texts(warnings: Any) -> tuple[str, ...]:
    given = warnings if isinstance(warnings, list) else []
    return tuple(map(_text, given[:MOST_WARNINGS]))
