"""The totals of an account's period as the scripts return them, and the summary that is published for readers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from fairgpu.states import BudgetState
from timekeeper.domain.credits import Credit, burn
from timekeeper.domain.forecast import Burns, burns_at_last_sample
from timekeeper.domain.timestamps import LAST_INSTANT, Instant
from timekeeper.ledger.client import ScriptError, StoreError
from timekeeper.ledger.codec import (
    UNREADABLE,
    RecordError,
    as_texts,
    compact,
    decode_burn,
    plain_text,
    whole_number,
)


class PeriodTotals(NamedTuple):
    """The totals of an account's period. Amounts are microGPU-seconds.

    Attributes:
        total: the amount spent; below 0 if both a correction and a session's lower amount take back the same money.
        granted: the amount added by grants and by credits carried in; negative if more was taken away.
        finalized: the part of the total that finalized sessions spent, which a checkpoint must contain.
        exhausted_at: the instant at which spending first reached the available amount; None before that.
        previous_spent: the amount that the preceding period had spent when its balance was closed; None before that,
            and if no money is to be carried over.
        new: whether the script that returned the totals created the account or applied an order.
        version: the number of changes to the account; 0 if it was not read.
        terms: the preceding period's allowance and the most of its money that could be rolled over, both when its
            balance was closed; None before that, and if no money is to be carried over.
    """

    total: int
    granted: int
    finalized: int
    exhausted_at: Instant | None
    previous_spent: int | None = None
    new: bool = False
    version: int = 0
    terms: tuple[int, int] | None = None


def read_totals(sums: Sequence[Any], *, new: bool = False) -> PeriodTotals:
    """Reads a period's totals from a script's reply.

    Args:
        sums: the values of the period's fields total, granted, gone, exhausted, struck and terms (see ledger/keys.py),
            then the account's version.
        new: whether the script created the account or applied the order.

    Raises:
        ValueError: a value cannot be read.
    """
    total, granted, finalized, exhausted, previous_spent, terms, version = as_texts(sums)
    allowance, _, rollover = terms.partition(" ")
    return PeriodTotals(
        int(total),
        int(granted),
        int(finalized),
        int(exhausted) if exhausted else None,
        int(previous_spent) if previous_spent else None,
        new,
        int(version or 0),
        (int(allowance), int(rollover)) if terms else None,
    )


def totals_or_error(answer: Any, *, new_first: bool = False) -> PeriodTotals | StoreError:
    """Reads a period's totals from a script's answer; returns an error instead of raising it.

    The caller reads many answers, and an error in one of them must not stop the reading of the others.

    Args:
        answer: the values that `read_totals` takes, or the StoreError to return.
        new_first: whether a value precedes the others: 1 if the script created the account or applied the order.

    Returns:
        The totals, or an error if the script failed or its answer cannot be read. In the second case the script may
        have made its change.
    """
    if isinstance(answer, StoreError):
        return answer
    try:
        return read_totals(answer[1:], new=answer[0] == 1) if new_first else read_totals(answer)
    except ValueError as error:
        return ScriptError(f"the sums of this period cannot be read: {error}")


class SummaryError(ValueError):
    """A stored document is not the summary of an account."""


class Summary(NamedTuple):
    """The figures of an account in its present period, for readers. Amounts are microGPU-seconds.

    Instants are nanoseconds since 1970.

    Attributes:
        name: the budget's name; the account's name if no budget pays.
        namespaces: the namespaces that spend from this account, sorted.
        state: the published state.
        enforcement: observe, enforce or evict; empty if no budget pays.
        period_start: start of the period, inclusive.
        period_end: its end, exclusive.
        granted: the amount that grants and carried-over credits added to the period.
        available: the allowance and `granted` together; None for no limit.
        spent: the amount spent in the period.
        rate: the rate of running sessions, in microGPU-seconds a second.
        exhausted_at: the instant at which spending first reached the available amount; None before that.
        computed: the state if the budget were enforced; None if an earlier version of FairGPU wrote the summary.
        admission: simple or safe.
        committed: the amount that admitted pods may still spend; 0 if admission is simple.
        own: the money of the period without `credits`.
        credits: the credits of the period that outlive it, each from a grant.
        grace_amount: the amount by which the period may be overspent before the budget counts as exhausted; None sets
            no limit.
        grace_duration: the nanoseconds for which the period may be overspent before the budget counts as exhausted;
            None sets no limit.
        burns: recent spending; read from the store, and not part of the summary's JSON.
    """

    name: str
    namespaces: tuple[str, ...]
    state: BudgetState
    enforcement: str
    period_start: int
    period_end: int
    granted: int
    available: int | None
    spent: int
    rate: int
    exhausted_at: int | None
    computed: BudgetState | None = None
    admission: str = "simple"
    committed: int = 0
    own: int = 0
    credits: tuple[Credit, ...] = ()
    grace_amount: int | None = None
    grace_duration: int | None = None
    burns: Burns = Burns()

    @property
    def expiring(self) -> list[tuple[Credit, int]]:
        """Each credit that has not expired, with its unspent microGPU-seconds; the next to expire is first."""
        if not self.credits:
            return []
        left = burn(self.own, self.credits, self.period_end, self.spent).credits
        there = (credit for credit in self.credits if not credit.expired)
        return [
            (credit, left[credit.name]) for credit in sorted(there, key=lambda credit: (credit.expires, credit.name))
        ]


def encode_summary(summary: Summary) -> str:
    """Encodes the summary of an account as JSON."""
    document = summary._asdict()
    del document["burns"], document["credits"]
    document["pots"] = [
        (credit.name, credit.amount, credit.expires, credit.since, credit.expired) for credit in summary.credits
    ]
    return compact(document)


def decode_summary(text: str | bytes) -> Summary:
    """Decodes the summary of an account; fields that only later timekeepers write are ignored.

    Raises:
        SummaryError: the text is not a summary.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        return Summary(
            name=plain_text(document["name"]),
            namespaces=tuple(map(plain_text, document["namespaces"])),
            state=BudgetState(document["state"]),
            enforcement=plain_text(document["enforcement"]),
            period_start=_instant(document["period_start"]),
            period_end=_instant(document["period_end"]),
            granted=whole_number(document["granted"]),
            available=_number_or_none(document["available"]),
            spent=whole_number(document["spent"]),
            rate=whole_number(document["rate"]),
            exhausted_at=_instant_or_none(document["exhausted_at"]),
            computed=BudgetState(document["computed"]) if document.get("computed") else None,
            admission=plain_text(document.get("admission", "simple")),
            committed=whole_number(document.get("committed", 0)),
            own=whole_number(document.get("own", 0)),
            credits=tuple(_credit(*fields) for fields in document.get("pots", ())),
            grace_amount=_number_or_none(document.get("grace_amount")),
            grace_duration=_instant_or_none(document.get("grace_duration")),
            burns=burns_at_last_sample(decode_burn(document["burn"]) if document.get("burn") else None),
        )
    except UNREADABLE as error:
        raise SummaryError(f"no summary: {error!r}") from error


def _number_or_none(value: Any) -> int | None:
    return None if value is None else whole_number(value)


def _instant(value: Any) -> Instant:
    """Returns a value of a JSON document if it is an instant or a duration, in nanoseconds, that a date can express.

    Raises:
        RecordError: it is none.
    """
    if not 0 <= whole_number(value) <= LAST_INSTANT:
        raise RecordError(f"{value!r} is no instant")
    return whole_number(value)


def _instant_or_none(value: Any) -> Instant | None:
    return None if value is None else _instant(value)


def _credit(name: Any, amount: Any, expires: Any, since: Any, expired: Any) -> Credit:
    return Credit(plain_text(name), whole_number(amount), _instant(expires), whole_number(since), expired is True)
