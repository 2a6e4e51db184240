"""How sessions, assignments and prices stand in the store as JSON, and cuts and instants as its scripts read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from timekeeper.metering.attribution import Attribution
from timekeeper.metering.cuts import Cut
from timekeeper.metering.segments import Assignments
from timekeeper.metering.sessions import EndProof, Session
from timekeeper.rules.burn import BurnRecord, Sample
from timekeeper.rules.pricing import PricePoint, Prices

_encode = json.JSONEncoder(separators=(",", ":")).encode


class RecordError(ValueError):
    """What stands in the store is none of ours."""


def encode_session(session: Session) -> str:
    """A session, without its amounts."""
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
    return _encode(document)


def decode_session(text: str | bytes) -> Session:
    """Reads a session.

    Raises:
        RecordError: it is none.
    """
    try:
        document = json.loads(_text(text))
        return Session(
            uid=document["uid"],
            namespace=document["namespace"],
            pod=document["pod"],
            node=document["node"],
            start=document["start"],
            tariff=tuple((since, rate) for since, rate in document["tariff"]),
            end=document.get("end"),
            proof=EndProof(document["proof"]) if "proof" in document else None,
            use_bases=tuple((account, period, base) for account, period, base in document.get("use", ())),
            namespace_uid=document.get("namespaceUid", ""),
            attribution=_attribution(document["for"]) if "for" in document else None,
            report_bases=tuple((account, period, base) for account, period, base in document.get("reported", ())),
            use_total=int(document["tally"][0]) if "tally" in document else None,
            use_missing=_pair(document.get("unmeasured", (0, 0))),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"no session: {error!r}") from error


def _pair(document: Any) -> tuple[int, int]:
    first, second = document
    return int(first), int(second)


def _attribution_document(found: Attribution) -> list[Any]:
    return [found.model, found.owner, found.user, dict(found.labels), found.core_rate, found.memory_rate]


def _attribution(document: Any) -> Attribution:
    model, owner, user, labels, core_rate, memory_rate = document
    return Attribution(model, owner, user, tuple(sorted(labels.items())), core_rate, memory_rate)


def encode_assignments(assignments: Assignments) -> str:
    """Who pays for a namespace from when on."""
    return _encode(assignments)


def decode_assignments(text: str | bytes) -> Assignments:
    """Reads who pays for a namespace.

    Raises:
        RecordError: it is none.
    """
    try:
        found = json.loads(_text(text))
        return tuple((int(since), str(account)) for since, account in found)
    except (ValueError, TypeError) as error:
        raise RecordError(f"no assignments: {error!r}") from error


def encode_prices(prices: Prices) -> str:
    """Prices over time; each a fraction, so that none is rounded."""
    points = {model: [[point.effective_from, str(point.price)] for point in prices[model]] for model in sorted(prices)}
    return json.dumps(points, separators=(",", ":"))


def decode_prices(text: str | bytes) -> Prices:
    """Reads prices.

    Raises:
        RecordError: they are none.
    """
    try:
        document: Mapping[str, Any] = json.loads(text)
        return {
            model: tuple(PricePoint(int(since), Fraction(price)) for since, price in points)
            for model, points in document.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise RecordError(f"no prices: {error!r}") from error


def encode_burn(record: BurnRecord) -> str:
    """An account's samples."""
    samples = [[sample.at, sample.spent] for sample in record.samples]
    return _encode([record.period, record.total, samples])


def decode_burn(text: str | bytes) -> BurnRecord:
    """Reads an account's samples.

    Raises:
        RecordError: there are none.
    """
    try:
        period, total, samples = json.loads(_text(text))
        first, *others = (Sample(int(at), int(spent)) for at, spent in samples)
        return BurnRecord((first, *others), int(period), int(total))
    except (ValueError, TypeError) as error:
        raise RecordError(f"no samples: {error!r}") from error


def _text(stored: str | bytes) -> str:
    """What json need not guess the encoding of."""
    return stored.decode() if isinstance(stored, bytes) else stored


def encode_cuts(cuts: Sequence[Cut]) -> str:
    """Cuts as the script reads them: hour, instant, billed, core, memory, used (- for unknown) and a semicolon."""
    return "".join(
        f"{cut.hour} {cut.until} {cut.billed} {cut.core} {cut.memory} {'-' if cut.used is None else cut.used};"
        for cut in cuts
    )


def encode_optional(instant: int | None) -> str:
    """An instant in nanoseconds, or nothing."""
    return "" if instant is None else str(instant)
