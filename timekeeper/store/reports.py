"""The form of a session's reports in the store: their terms, their state, and the leader's marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import redis

from timekeeper.metering.reports import Boot, HeldDevice, Intake, Marks, ReportTerms, Sample
from timekeeper.store import keys
from timekeeper.store.calls import Call, StoreError, run

REPORT_SECONDS = 35 * 86400
"""The time for which the store keeps a pod's reports after the last one."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Reports(NamedTuple):
    """The terms and the state of a session's reports."""

    terms: ReportTerms
    intake: Intake


def encode_terms(terms: ReportTerms) -> str:
    """The terms of a session's reports as JSON."""
    devices = [[uuid, shares, str(price), total, own] for uuid, shares, price, total, own in terms.devices]
    return _encode([terms.start, devices, int(terms.billed), terms.rate, terms.most])


def decode_terms(text: str | bytes) -> ReportTerms:
    """Reads what a session may report; a ValueError, KeyError or TypeError where it is none."""
    start, devices, billed, rate, most = json.loads(text)
    held = tuple(HeldDevice(uuid, shares, Fraction(price), total, own) for uuid, shares, price, total, own in devices)
    return ReportTerms(start, held, bool(billed), rate, most)


def encode_intake(intake: Intake) -> str:
    """The state of a session's reports as JSON."""
    return _encode([intake.boots, intake.named, intake.samples])


def decode_intake(text: str | bytes | None) -> Intake:
    """Reads what is known of a session's reports; nothing of none."""
    if text is None:
        return Intake()
    boots, named, samples = json.loads(text)
    return Intake(tuple(Boot(*boot) for boot in boots), tuple(named), tuple(Sample(*sample) for sample in samples))


def write_terms(client: redis.Redis, terms: Mapping[str, ReportTerms], phases: Mapping[str, int]) -> None:
    """Writes down what sessions may report, by uid, and how far beside a quarter of an hour their periods end."""
    calls = []
    for uid, found in terms.items():
        written = ("terms", encode_terms(found), "phase", phases.get(uid, 0))
        calls.append(Call("put", (keys.report(uid),), ("HSET", *written)))
        calls.append(Call("put", (keys.report(uid),), ("EXPIRE", REPORT_SECONDS)))
    for answer in run(client, calls):
        if isinstance(answer, StoreError):
            raise answer


def close_and_read(client: redis.Redis, wanted: Sequence[tuple[str, Marks]]) -> list[Reports | None]:
    """Closes sessions' time up to an instant, and reads their reports in the same step; None where nothing is there.

    What a session had reported before that instant does not change any more.

    Raises:
        StoreError: Redis does not answer, or does not run the script.
    """
    calls = [
        Call("read_report", (keys.report(uid),), (marks.closed, marks.settled, marks.phase, REPORT_SECONDS))
        for uid, marks in wanted
    ]
    found: list[Reports | None] = []
    for answer in run(client, calls):
        if isinstance(answer, StoreError):
            raise answer
        found.append(None if not answer else Reports(decode_terms(answer[0]), decode_intake(answer[1] or None)))
    return found
