"""Encodes and decodes what the store holds as JSON, such as sessions, and encodes hourly points for the scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import orjson

from timekeeper.domain.attribution import Attribution
from timekeeper.domain.charges import Assignments, HourlyPoint, hours_of
from timekeeper.domain.forecast import BurnRecord, SpendSample
from timekeeper.domain.holdings.holding import Doubt, Holding
from timekeeper.domain.pricing import PricePoint, Prices
from timekeeper.domain.reports import Boot, HeldDevice, Intake, ReportLimits, Sample
from timekeeper.domain.sessions import EndProof, Session

UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that decoding may raise on a damaged document, or on one that the timekeeper did not write."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def compact(value: Any) -> str:
    """Returns a value as JSON without spaces; a named tuple becomes a list.

    Raises:
        TypeError: the value contains something that JSON cannot express.
    """
    try:
        return orjson.dumps(value, default=tuple).decode()
    except TypeError:  # orjson writes no integer of more than 64 bits
        return _encode(value)


class RecordError(ValueError):
    """A stored document does not have the form that the timekeeper writes."""


def encode_session(session: Session) -> str:
    """Encodes a session as the JSON of its record in the store; the record holds no amounts."""
    document: dict[str, Any] = {
        "uid": session.uid,
        "namespace": session.namespace,
        "pod": session.pod,
        "node": session.node,
        "start": session.start,
        "tariff": session.tariff,
    }
    if session.end is not None and session.proof is not None:
        document |= {"end": session.end, "proof": session.proof.value}
    if session.namespace_uid:
        document["namespaceUid"] = session.namespace_uid
    if session.use_bases:
        document["use"] = session.use_bases
    if session.attribution is not None:
        document["for"] = _attribution_document(session.attribution)
    if session.report_bases:
        document["reported"] = session.report_bases
    if session.use_total is not None:
        document["tally"] = [session.use_total, []]
    if session.use_missing[0]:
        document["unmeasured"] = session.use_missing
    return compact(document | _elsewhere_document(session))


def _elsewhere_document(session: Session) -> dict[str, Any]:
    """Returns the fields that a session's record has only for a pod or claim of another stack; empty for any other."""
    document: dict[str, Any] = {}
    if session.holdings:
        document["holds"] = [holding_document(holding) for holding in session.holdings]
    if session.doubts:
        document["doubts"] = session.doubts
    if session.idle:
        document["idle"] = True
    return document


def decode_session(text: str | bytes) -> Session:
    """Decodes a session's record.

    Raises:
        RecordError: the text is not an encoded session.
    """
    try:
        document = json.loads(as_text(text))
        rates = tuple((whole_number(since), whole_number(rate)) for since, rate in document["tariff"])
        if not rates:
            raise RecordError("no session: it has no rate")
        return Session(
            uid=plain_text(document["uid"]),
            namespace=plain_text(document["namespace"]),
            pod=plain_text(document["pod"]),
            node=plain_text(document["node"]),
            start=whole_number(document["start"]),
            tariff=rates,
            end=whole_number(document["end"]) if document.get("end") is not None else None,
            proof=EndProof(document["proof"]) if "proof" in document else None,
            use_bases=_bases(document.get("use", ())),
            namespace_uid=plain_text(document.get("namespaceUid", "")),
            attribution=_attribution(document["for"]) if "for" in document else None,
            report_bases=_bases(document.get("reported", ())),
            use_total=whole_number(document["tally"][0]) if "tally" in document else None,
            use_missing=_pair(document.get("unmeasured", (0, 0))),
            holdings=tuple(read_holding(item) for item in document.get("holds", ())),
            doubts=tuple(Doubt(value) for value in document.get("doubts", ())),
            idle=document.get("idle") is True,
        )
    except UNREADABLE as error:
        raise RecordError(f"no session: {error!r}") from error


def whole_number(value: Any) -> int:
    """Returns a value of a JSON document if it is a whole number.

    Raises:
        RecordError: the value is of another type.
    """
    if type(value) is not int:
        raise RecordError(f"{value!r} is no whole number")
    return value


def whole_numbers(values: Iterable[Any]) -> tuple[int, ...]:
    """Returns values of a JSON document if each is a whole number.

    Raises:
        RecordError: a value is of another type.
    """
    return tuple(whole_number(value) for value in values)


def plain_text(value: Any) -> str:
    """Returns a value of a JSON document if it is a string.

    Raises:
        RecordError: the value is of another type.
    """
    if type(value) is not str:
        raise RecordError(f"{value!r} is no text")
    return value


def _bases(document: Any) -> tuple[tuple[str, int, int], ...]:
    return tuple((plain_text(account), whole_number(period), whole_number(base)) for account, period, base in document)


def _pair(document: Any) -> tuple[int, int]:
    first, second = document
    return whole_number(first), whole_number(second)


def holding_document(holding: Holding) -> list[Any]:
    """Encodes a holding, equal parts of GPUs held by another stack, as a list for the JSON of a session's record."""
    return [holding.way, holding.model, holding.count, str(holding.time), str(holding.memory)]


def read_holding(document: Any) -> Holding:
    """Decodes a holding, equal parts of GPUs held by another stack, from the list that `holding_document` made.

    Args:
        document: the list, decoded from JSON.

    Raises:
        RecordError, ValueError, TypeError, ArithmeticError: the document has another form.
    """
    way, model, count, time, memory = document
    shares = Fraction(plain_text(time)), Fraction(plain_text(memory))
    return Holding(plain_text(way), plain_text(model), whole_number(count), *shares)


def _attribution_document(attribution: Attribution) -> list[Any]:
    return [
        attribution.model,
        attribution.owner,
        attribution.user,
        dict(attribution.labels),
        attribution.core_rate,
        attribution.memory_rate,
    ]


def _attribution(document: Any) -> Attribution:
    model, owner, user, labels, core_rate, memory_rate = document
    kept = tuple(sorted((plain_text(key), plain_text(value)) for key, value in labels.items()))
    return Attribution(
        plain_text(model), plain_text(owner), plain_text(user), kept, whole_number(core_rate), whole_number(memory_rate)
    )


def encode_assignments(assignments: Assignments) -> str:
    """Encodes a namespace's payers over time as JSON.

    Args:
        assignments: (from, account) pairs; instants are nanoseconds since 1970.
    """
    return compact(assignments)


def decode_assignments(text: str | bytes) -> Assignments:
    """Decodes a namespace's payers over time, as (from, account) pairs; instants are nanoseconds since 1970.

    Raises:
        RecordError: the text is not an encoded list of payers.
    """
    try:
        payers = tuple((whole_number(since), plain_text(account)) for since, account in orjson.loads(as_text(text)))
    except UNREADABLE as error:
        raise RecordError(f"no assignments: {error!r}") from error
    if not payers or any(not account or "}" in account for _, account in payers):
        raise RecordError("no assignments: each must name an account, and there must be one")
    return payers


def encode_prices(prices: Prices) -> str:
    """Encodes the prices of models over time as JSON; each price is a fraction, so that none is rounded."""
    points = {model: [[point.effective_from, str(point.price)] for point in prices[model]] for model in sorted(prices)}
    return json.dumps(points, separators=(",", ":"))


def decode_prices(text: str | bytes) -> Prices:
    """Decodes the prices of models over time.

    Raises:
        RecordError: the text is not an encoded list of prices.
    """
    try:
        document: Mapping[str, Any] = json.loads(text)
        return {
            model: tuple(PricePoint(whole_number(since), Fraction(price)) for since, price in points)
            for model, points in document.items()
        }
    except UNREADABLE as error:
        raise RecordError(f"no prices: {error!r}") from error


def decode_silent(text: str | bytes) -> dict[str, int]:
    """Decodes the last sign of life of each silent node, in nanoseconds since 1970, keyed by node.

    Raises:
        RecordError: the text is not an encoded list of silent nodes.
    """
    try:
        return {node: whole_number(instant) for node, instant in orjson.loads(as_text(text)).items()}
    except UNREADABLE as error:
        raise RecordError(f"no silent nodes: {error!r}") from error


def encode_burn(record: BurnRecord) -> str:
    """Encodes the samples of an account's recent spending as JSON."""
    samples = [[sample.at, sample.spent] for sample in record.samples]
    return compact([record.period, record.total, samples])


def decode_burn(text: str | bytes) -> BurnRecord:
    """Decodes the samples of an account's recent spending.

    Raises:
        RecordError: the text is not an encoded list of samples.
    """
    try:
        period, total, samples = json.loads(as_text(text))
        first, *others = (SpendSample(whole_number(at), whole_number(spent)) for at, spent in samples)
        return BurnRecord((first, *others), whole_number(period), whole_number(total))
    except UNREADABLE as error:
        raise RecordError(f"no samples: {error!r}") from error


def encode_report_limits(limits: ReportLimits) -> str:
    """Encodes the limits of a session's reports as JSON."""
    devices = [[uuid, shares, str(price), total, own] for uuid, shares, price, total, own in limits.devices]
    return compact([limits.start, devices, int(limits.billed), limits.rate, limits.most])


def decode_report_limits(text: str | bytes) -> ReportLimits:
    """Decodes the limits of a session's reports.

    Raises:
        RecordError: the text is not encoded limits.
    """
    try:
        start, devices, billed, rate, most = json.loads(text)
        held = tuple(_held(*device) for device in devices)
        start, rate, most = whole_numbers((start, rate, most))
        return ReportLimits(start, held, bool(billed), rate, most)
    except UNREADABLE as error:
        raise RecordError(f"no limits of reports: {error!r}") from error


def _held(uuid: Any, shares: Any, price: Any, total: Any, own: Any) -> HeldDevice:
    shares, total, own = whole_numbers((shares, total, own))
    held = HeldDevice(plain_text(uuid), shares, Fraction(price), total, own)
    if held.total_mib < 1:
        raise RecordError(f"a device of {total} MiB")
    return held


def encode_intake(intake: Intake) -> str:
    """Encodes the totals of a session's reports as JSON."""
    return compact([intake.boots, intake.named, intake.samples])


def decode_intake(text: str | bytes) -> Intake:
    """Decodes the totals of a session's reports.

    Raises:
        RecordError: the text is no encoded totals.
    """
    try:
        boots, named, samples = json.loads(text)
        return Intake(
            tuple(Boot(plain_text(name), *whole_numbers(figures)) for name, *figures in boots),
            whole_numbers(named),
            tuple(Sample(*whole_numbers(sample)) for sample in samples),
        )
    except UNREADABLE as error:
        raise RecordError(f"no state of reports: {error!r}") from error


def as_text(value: Any) -> str:
    """Decodes a value of the store as UTF-8; a value that is not bytes becomes its `str`.

    Raises:
        UnicodeDecodeError: the bytes are no UTF-8.
    """
    return value.decode() if isinstance(value, bytes) else str(value)


def as_texts(values: Iterable[Any]) -> list[str]:
    """Decodes values of the store as `as_text` does; None becomes an empty text."""
    return ["" if value is None else as_text(value) for value in values]


def encode_hourly_points(sessions: Sequence[Sequence[HourlyPoint]]) -> list[str]:
    """Encodes the hourly points of sessions for the script that settles them.

    Each point is its hour (counted from 1970), its instant in nanoseconds since 1970, and its billed, core, memory and
    used amounts in microGPU-seconds; a semicolon ends it. A dash stands for a used amount of None.

    Args:
        sessions: the points of each session, in order of time.

    Returns:
        The text of each session; empty for a session without points.
    """
    hours = iter(hours_of([point for points in sessions for point in points]))
    return [
        "".join(
            f"{next(hours)} {at.until} {at.billed} {at.core} {at.memory} {'-' if at.used is None else at.used};"
            for at in points
        )
        for points in sessions
    ]


def encode_optional(instant: int | None) -> str:
    """Encodes an instant in nanoseconds since 1970 for a script; empty for None."""
    return "" if instant is None else str(instant)
