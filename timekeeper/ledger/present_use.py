"""The present use of sessions in the store: advisory figures, which are no money and need no fencing token.

Each figure states the instant from which it is not shown any more, so a figure that is not renewed disappears. Every
function but `shown` may raise redis.RedisError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys
from timekeeper.ledger.client import Store, readable_answers

FIELDS_AT_ONCE = 1000
LEFT_SECONDS = 4 * 3600
"""The time from the last write until the store drops all present use: more than three of the longest intervals at which
Prometheus is asked.
"""

Value = TypeVar("Value")
Use = TypeVar("Use", "PresentUse", "NamespaceUse")

_STORED = re.compile(rb"([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,9})")
_STORED_OF_NAMESPACE = re.compile(rb"([0-9]{1,20}) ([0-9]{1,20}) ([0-9]{1,15}) ([0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class PresentUse:
    """The busy part of the GPUs that a session holds.

    Attributes:
        at: the instant of Prometheus's answer.
        until: the instant from which the figure is not shown any more.
        share: the busy part of the GPUs that the session holds, in ten-thousandths.
    """

    at: Instant
    until: Instant
    share: int


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    """The busy part of the GPUs that the sessions of a namespace hold, as far as it is known.

    Attributes:
        at: the instant of Prometheus's answer.
        until: the instant from which the figure is not shown any more.
        busy: the busy part of `known`, in microGPU-seconds a second.
        known: the GPU time held by the sessions whose use is known, in microGPU-seconds a second.
    """

    at: Instant
    until: Instant
    busy: int
    known: int


def write(client: Store, uses: Mapping[str, PresentUse], namespaces: Mapping[str, NamespaceUse]) -> None:
    """Replaces the stored present use of all sessions and all namespaces; it expires LEFT_SECONDS after this call.

    Args:
        uses: the present use of sessions, keyed by the session's uid.
        namespaces: the present use of namespaces, keyed by name.
    """
    fields = {uid: f"{use.at} {use.until} {use.share}" for uid, use in uses.items()}
    for name, use in namespaces.items():
        fields[_field(name)] = f"{use.at} {use.until} {use.busy} {use.known}"
    kept = {field.encode() for field in fields}
    gone = [field for field in client.hkeys(keys.PRESENT_USE) if field not in kept]
    pipeline = client.pipeline(transaction=False)
    for chunk in _chunks(list(fields.items())):
        pipeline.hset(keys.PRESENT_USE, mapping=dict(chunk))
    for names in _chunks(gone):
        pipeline.hdel(keys.PRESENT_USE, *names)
    pipeline.expire(keys.PRESENT_USE, LEFT_SECONDS)
    pipeline.execute()


def of_namespaces(client: Store, names: Sequence[str], now: Instant) -> dict[str, NamespaceUse]:
    """Returns the present use of these namespaces, keyed by name.

    A namespace without a readable figure is left out, and also one whose figure's `until` is not after `now`.
    """
    if not names:
        return {}
    pipeline = client.pipeline(transaction=False)
    pipeline.hmget(keys.PRESENT_USE, [_field(name) for name in names])
    (texts,) = readable_answers(pipeline.execute(raise_on_error=False))
    stored = zip(names, texts or [None] * len(names), strict=True)
    uses = {name: _read(_STORED_OF_NAMESPACE, NamespaceUse, text, now) for name, text in stored}
    return {name: use for name, use in uses.items() if use is not None}


def _field(namespace: str) -> str:
    return f"namespace/{namespace}"  # no uid has a slash


def shown(text: Any, now: Instant) -> PresentUse | None:
    """Returns a session's present use from its stored text.

    Args:
        text: the stored text, in bytes; None if nothing is stored.

    Returns:
        None if there is no text, it cannot be read, or `now` has reached the instant `until` that it states.
    """
    return _read(_STORED, PresentUse, text, now)


def _read(pattern: re.Pattern[bytes], kind: type[Use], text: Any, now: Instant) -> Use | None:
    matched = pattern.fullmatch(text) if isinstance(text, bytes) else None
    use = None if matched is None else kind(*map(int, matched.groups()))
    return use if use is not None and now < use.until else None


def _chunks(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    for start in range(0, len(values), FIELDS_AT_ONCE):
        yield values[start : start + FIELDS_AT_ONCE]
