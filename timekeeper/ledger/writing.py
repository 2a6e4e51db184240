"""Writes to accounts: periods, settlements, orders, closing balances, published figures, and the fencing token.

Most functions take many changes and send them in one round trip per thousand. For each change they return the period's
totals after the change, or the error that refused the change. They raise StoreUnavailableError if Redis does not
answer; some of the changes may then have been done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from timekeeper.domain.charges import HourlyPoint
from timekeeper.domain.credits import Credit
from timekeeper.domain.timestamps import HOUR, Instant
from timekeeper.domain.usage import UNATTRIBUTED, dimensions
from timekeeper.ledger import keys
from timekeeper.ledger.client import Call, FencingToken, Store, StoreError, run, run_one
from timekeeper.ledger.codec import encode_hourly_points, encode_optional
from timekeeper.ledger.entries import Ending, pack_note
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.totals import PeriodTotals, read_totals, totals_or_error

MAX_ITEMS = 500
"""The most sessions in one script call; Lua's stack holds some thousands of arguments."""


class LedgerAction(StrEnum):
    """The effects of a session's settlement besides setting its amount in a period, such as posting a ledger entry."""

    HOLD = "hold"
    """No further effect."""
    OPEN = "open"
    """Stores the session's record as open, in place of any earlier record."""
    POST = "post"
    """Posts the unposted part of the amount as a ledger entry, if it is not 0. Replaces the session's record if the
    item has one.
    """
    MOVE = "move"
    """Posts as POST does, and removes the open session's record; the session continues under another account."""
    CLOSE = "close"
    """Posts as POST does, at first even an amount of 0, and stores the record as closed and no longer as open. The
    session has ended, and its pod is still on the API server.
    """
    FINALIZE_PERIOD = "finalize_period"
    """Posts as MOVE does, and marks the amount as finalized; the pod is deleted, so that only this store and
    checkpoints know of the session.
    """
    FINALIZE = "finalize"
    """Posts as FINALIZE_PERIOD does, and removes the closed session's record. The session must be finalized in its
    other periods before.
    """


class Kind(StrEnum):
    """The reason why a ledger entry was written, such as the end of a session or a grant."""

    CLOSE = "close"
    """A session ended."""
    RATE = "rate"
    """A session's rate changed."""
    PERIOD = "period"
    """A period ended while a session went on."""
    HOURLY = "hourly"
    """A session went on for an hour."""
    MOVE = "move"
    """A session went on in another account."""
    CORRECTION = "correction"
    """A correction was applied, or the amount of a closed session changed."""
    GRANT = "grant"
    """A grant was applied."""
    CHECKPOINT = "checkpoint"
    """Spending was restored from a checkpoint."""
    CARRY = "carry"
    """A credit carried over from the preceding period."""
    EXPIRY = "lapse"
    """The remainder of a credit at its expiry, as a negative amount."""


class Item(NamedTuple):
    """A session's amount in a period, as a settlement sets it, with the fields of its ledger entry and of its record.

    Attributes:
        uid: the session's uid.
        amount: the whole amount in the period so far, in microGPU-seconds.
        action: the further effect of the settlement. With HOLD, only `uid` and `amount` are used.
        kind: the reason why the ledger entry is written.
        namespace: the session's namespace.
        pod: the pod's name.
        note: the note of the ledger entry.
        record: the session's record as JSON; empty if the stored one stays.
        dimensions: the dimensions that the hours are attributed to, as JSON.
        points: the hourly points that divide the amount by hours; the last one has the amount itself. Without points an
            entry is attributed to no hour.
    """

    uid: str
    amount: int
    action: LedgerAction = LedgerAction.HOLD
    kind: Kind = Kind.HOURLY
    namespace: str = ""
    pod: str = ""
    note: str | Ending = ""
    record: str = ""
    dimensions: str = ""
    points: tuple[HourlyPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Revision:
    """The revision of a settlement: revisions sort by the leader's fencing token, then by a counter.

    Attributes:
        counter: the number of the settlement under this token.
    """

    fencing_token: FencingToken
    counter: int


@dataclass(frozen=True, slots=True)
class SettlementBatch:
    """The settlements of sessions in one period of one account; each session once.

    Attributes:
        account: the account's name.
        period: the start of the period.
        items: the sessions' amounts.
    """

    account: str
    period: Instant
    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Opening:
    """A period of an account to open. Instants are nanoseconds since 1970.

    Attributes:
        account: the account's name.
        start: the period's start.
        end: its end.
        checkpoint: the spending of sessions that cannot be computed again, in microGPU-seconds.
        exhausted_at: the instant at which spending first reached the available amount; None before that.
        was_stored: whether the account was in the store before, so that its absence means that the store was emptied.
        version: the account's version when the checkpoint was taken.
        carries: whether money of the preceding period is still to be carried over into this one.
    """

    account: str
    start: int
    end: int
    checkpoint: int = 0
    exhausted_at: int | None = None
    was_stored: bool = False
    version: int = 0
    carries: bool = False


@dataclass(frozen=True, slots=True)
class Publication:
    """The figures of an account to publish for readers.

    Attributes:
        account: the account's name.
        period: the start of the present period.
        exhausted_at: the instant at which spending first reached the available amount; None before that.
        summary: the figures as JSON.
        burn: the samples of recent spending as JSON; empty if they have not changed.
    """

    account: str
    period: Instant
    exhausted_at: Instant | None
    summary: str
    burn: str = ""


class HeldTerm(NamedTuple):
    """The number of a leader's term, and the process that leads in this term.

    Attributes:
        number: the term's number.
        holder: a text that identifies the leader's process; empty if the process is not known.
    """

    number: int
    holder: str = ""


class LedTerm(NamedTuple):
    """A leader's term, and the fencing token that the store gave for it."""

    fencing_token: int
    term: HeldTerm


def take_fencing_token(client: Store, term: int, holder: str = "") -> int:
    """Takes a new fencing token for a leader from the store: higher than any before, and at least the term's number.

    The store then has this term and the format FORMAT. It also keeps an earlier format's number, for `convert_store`.

    Args:
        term: the number of the leader's term.
        holder: a text that identifies the leader's process; empty if the process is not known.

    Raises:
        FencedError: a fencing token was given to a later term, or to another holder of this term.
        StoreError: Redis does not answer, or the store's format is unreadable or later than this timekeeper knows.
        redis.RedisError: Redis does not answer.
    """
    touched = (keys.BOOK_FENCING_TOKEN, keys.BOOK_FORMAT, keys.BOOK_CONVERTING, keys.BOOK_TERM)
    return int(
        run_one(client, Call("take_fencing_token", touched, (term, keys.FORMAT, holder, highest_fencing_token(client))))
    )


def open_periods(
    client: Store, fencing_token: FencingToken, now: Instant, openings: Sequence[Opening]
) -> list[PeriodTotals | StoreError]:
    """Opens periods of accounts, and creates the accounts that the store does not hold; an open period stays as it is.

    An account that is missing but was stored before (see `Opening.was_stored`) is refused with StoreEmptyError.

    Returns:
        For each period, in order, its totals, or the error that refused to open it.
    """
    calls = []
    for opening in openings:
        account = keys.AccountKeys(opening.account)
        exhausted_at = encode_optional(opening.exhausted_at)
        begun = (
            opening.start,
            opening.end,
            opening.checkpoint,
            exhausted_at,
            int(opening.was_stored),
            opening.version,
            _hour_within(opening.start, opening.end, now),
            UNATTRIBUTED,
            int(opening.carries),
        )
        touched = (account.head, account.periods, account.period(opening.start), account.ledger, account.hours)
        calls.append(Call("open_period", touched, (fencing_token, now, *begun)))
    return [totals_or_error(answer, new_first=True) for answer in run(client, calls)]


def _hour_within(start: Instant, end: Instant, now: Instant) -> int:
    """Returns the hour, counted from 1970, in which `now` ends, or the nearest hour of the period from `start`."""
    return (min(max(start + 1, now), end) - 1) // HOUR


def write_settlements(
    client: Store, revision: Revision, now: Instant, settlements: Sequence[SettlementBatch]
) -> list[PeriodTotals | StoreError]:
    """Sets the amounts of sessions in periods of accounts.

    A finalized amount also stays if it would be finalized again, and a closed one if the action posts nothing.

    Args:
        revision: the revision of this settlement; a stored amount that has the same revision or a later one stays.
        settlements: the batches of amounts to set.

    Returns:
        For each batch, in order, the totals of its period, or the first error that refused a part of the batch. A part
        has at most MAX_ITEMS sessions, and the other parts may have been written.
    """
    calls, owners = list[Call](), list[int]()
    for index, settlement in enumerate(settlements):
        for call in _settle_calls(revision, now, settlement):
            calls.append(call)
            owners.append(index)
    answers: list[Any] = [None] * len(settlements)
    for index, answer in zip(owners, run(client, calls), strict=True):
        if not isinstance(answers[index], StoreError):
            answers[index] = answer
    return [totals_or_error(answer) for answer in answers]


def write_each_settlement(
    client: Store, revision: Revision, now: Instant, settlement: SettlementBatch
) -> tuple[PeriodTotals | None, dict[str, StoreError]]:
    """Sets the amounts of a batch that was refused, one session at a time, so that only faulty sessions stay refused.

    The revision must be the one with which the batch was sent: amounts that the store accepted from the batch then stay
    as they are.

    Returns:
        The totals of the period, None if no session was accepted; and the errors of refused sessions, keyed by uid.
    """
    alone = [SettlementBatch(settlement.account, settlement.period, [item]) for item in settlement.items]
    totals, refused = None, {}
    for item, answer in zip(settlement.items, write_settlements(client, revision, now, alone), strict=True):
        if isinstance(answer, StoreError):
            refused[item.uid] = answer
        else:
            totals = answer
    return totals, refused


def publish_accounts(
    client: Store, fencing_token: FencingToken, publications: Sequence[Publication]
) -> list[StoreError | None]:
    """Writes the figures of accounts for readers.

    Returns:
        For each account, in order, None, or the error that refused its figures.
    """
    calls = []
    for publication in publications:
        account = keys.AccountKeys(publication.account)
        arguments = (fencing_token, encode_optional(publication.exhausted_at), publication.summary, publication.burn)
        calls.append(Call("publish_account", (account.head, account.period(publication.period)), arguments))
    return [answer if isinstance(answer, StoreError) else None for answer in run(client, calls)]


def _settle_calls(revision: Revision, now: Instant, settlement: SettlementBatch) -> Iterator[Call]:
    period = settlement.period
    touched = keys.AccountKeys(settlement.account).settled(period)
    for start in range(0, len(settlement.items), MAX_ITEMS):
        arguments: list[str | int | bytes] = [revision.fencing_token, revision.counter, now, period]
        items = settlement.items[start : start + MAX_ITEMS]
        posted = [item.points for item in items if item.action is not LedgerAction.HOLD]
        points = iter(encode_hourly_points(posted) if posted else ())
        for item in items:
            arguments += (item.uid, item.amount, item.action)
            if item.action is not LedgerAction.HOLD:
                note = pack_note(item.note) if item.note else b""
                arguments += (item.kind, item.namespace, item.pod, note, item.record, item.dimensions, next(points))
        yield Call("settle", touched, tuple(arguments))


@dataclass(frozen=True, slots=True)
class GrantEntry:
    """A grant: money to add to a period of an account. The store applies a grant of one name to an account only once.

    Attributes:
        account: the account's name.
        period: the start of the period.
        name: the grant's name.
        amount: microGPU-seconds; below 0 if money is taken away.
        note: the note of the ledger entry.
        expires: the instant at which the money expires; None if it ends with the period.
        since: the amount that the period had spent when the grant was made, in microGPU-seconds.
        following: the start of the next period, whose closing balance is then computed again; None if it is not open.
    """

    account: str
    period: Instant
    name: str
    amount: int
    note: str
    expires: Instant | None = None
    since: int = 0
    following: Instant | None = None


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """A correction of what an account's period has spent.

    The store applies a correction of one name to an account only once.

    Attributes:
        account: the account's name.
        period: the start of the period.
        name: the correction's name.
        amount: microGPU-seconds; below 0 if less was spent.
        namespace: the namespace whose use is corrected; empty for the account as a whole.
        note: the note of the ledger entry.
        hour: the hour, counted from 1970, that the corrected use is attributed to.
        again: whether the store had applied the correction before its data was lost. Such a correction is applied
            always; any other is refused if it would take spending below 0.
    """

    account: str
    period: Instant
    name: str
    amount: int
    namespace: str
    note: str
    hour: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class CreditEntry:
    """The new state of a credit within a period, with the kind and the note of its ledger entry."""

    credit: Credit
    kind: Kind
    note: str


@dataclass(frozen=True, slots=True)
class ClosingBalance:
    """The credits to write into a period of an account: money carried over from the preceding period, or expired.

    Attributes:
        account: the account's name.
        period: the start of the period.
        credits: the new state of each of these credits.
        previous_spent: the spending of the preceding period, in microGPU-seconds; None if no credit is carried over
            from that period.
        terms: the allowance of the preceding period, and the most of its money that could be rolled over, both in
            microGPU-seconds; None if nothing is carried over.
    """

    account: str
    period: Instant
    credits: Sequence[CreditEntry]
    previous_spent: int | None = None
    terms: tuple[int, int] | None = None


def apply_grants(
    client: Store, fencing_token: FencingToken, now: Instant, grants: Sequence[GrantEntry]
) -> list[PeriodTotals | StoreError]:
    """Adds grants to their periods. A grant whose name the account's ledger has already is not added again.

    Returns:
        For each grant, in order, the totals of its period, or the error that refused it.
    """
    calls = []
    for grant in grants:
        account = keys.AccountKeys(grant.account)
        touched = [
            account.head,
            account.period(grant.period),
            account.grants,
            account.ledger,
            account.credits(grant.period),
        ]
        if grant.following is not None:
            touched.append(account.period(grant.following))
        named = (grant.name, grant.amount, grant.note, encode_optional(grant.expires), grant.since)
        calls.append(Call("grant", tuple(touched), (fencing_token, now, grant.period, *named)))
    return [totals_or_error(answer, new_first=True) for answer in run(client, calls)]


def apply_corrections(
    client: Store, fencing_token: FencingToken, now: Instant, corrections: Sequence[CorrectionEntry]
) -> list[PeriodTotals | StoreError]:
    """Adds corrections to their periods' spending. A correction whose name the ledger has already is not added again.

    Returns:
        For each correction, in order, the totals of its period, or the error that refused it.
    """
    calls = []
    for correction in corrections:
        account, period = keys.AccountKeys(correction.account), correction.period
        touched = (account.head, account.period(period), account.corrections, account.ledger, account.hours)
        attributed_to = (correction.hour, dimensions(correction.namespace, "", None), int(correction.again))
        named = (correction.name, correction.amount, correction.namespace, correction.note)
        calls.append(Call("correct", touched, (fencing_token, now, period, *named, *attributed_to)))
    return [totals_or_error(answer, new_first=True) for answer in run(client, calls)]


def close_balances(
    client: Store, fencing_token: FencingToken, now: Instant, balances: Sequence[ClosingBalance]
) -> list[PeriodTotals | StoreError]:
    """Writes closing balances: a period's unspent money becomes credits of the next period, or a credit expires.

    A credit that has expired does not change any more.

    Returns:
        For each balance, in order, the totals of its period, or the error that refused the change.
    """
    calls = []
    for change in balances:
        account = keys.AccountKeys(change.account)
        touched = (account.head, account.period(change.period), account.credits(change.period), account.ledger)
        arguments: list[str | int] = [fencing_token, now, change.period, encode_optional(change.previous_spent)]
        arguments.append(" ".join(map(str, change.terms or ())))
        for entry in change.credits:
            credit = entry.credit
            flag = "l" if credit.expired else "o"
            arguments += (credit.name, credit.amount, credit.expires, credit.since, flag, entry.kind, entry.note)
        calls.append(Call("close_balances", touched, tuple(arguments)))
    return [totals_or_error(answer) for answer in run(client, calls)]


class FinalizedSession(NamedTuple):
    """A session whose pod object is deleted, so that its amounts cannot be computed again.

    Attributes:
        uid: the session's uid.
        namespace: its namespace.
        pod: the pod's name.
    """

    uid: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """The state to which `restore` brings a period of an account after the store returned to an earlier state.

    The leader computes the amount of a session again if it still meters the session, or if the session's pod or claim
    exists. All other sessions of the period count as finalized: the checkpoint contains the amounts that they had
    spent. Amounts are microGPU-seconds.

    Attributes:
        account: the account's name.
        period: the period's start.
        end: the period's end; what is added counts in an hour before it.
        checkpoint: the amount that finalized sessions had spent in the period when the checkpoint was taken.
        apart: the amount of the sessions that the store holds as finalized, but that the leader computes again.
        version: the number of changes that the account has had at least afterwards: that of the checkpoint.
        to_finalize: the sessions that are not computed again, and that the store does not hold as finalized.
        note: the note of the ledger entries to write.
    """

    account: str
    period: Instant
    end: Instant
    checkpoint: int
    apart: int
    version: int
    to_finalize: Sequence[FinalizedSession]
    note: str


def restore(client: Store, fencing_token: FencingToken, now: Instant, wanted: Restoration) -> tuple[int, PeriodTotals]:
    """Restores a period of an account to a checkpoint. A repeated call changes no sum and writes no ledger entry.

    Returns:
        The amount that was added to the period, in microGPU-seconds: the excess of the checkpoint over the store's
        finalized sessions, or 0 without an excess. Then the period's totals.

    Raises:
        StoreError: the store refused the change, or Redis does not answer.
        ValueError: the period's totals cannot be read.
    """
    account, period = keys.AccountKeys(wanted.account), wanted.period
    sums, amounts = account.period(period), account.amounts(period)
    touched = (account.head, sums, amounts, account.sessions, account.ended, account.ledger, account.hours)
    hour = _hour_within(period, wanted.end, now)
    checkpoint = (wanted.checkpoint, wanted.version, wanted.apart, wanted.note, hour)
    sessions = (part for session in wanted.to_finalize for part in session)
    added, *answer = run_one(client, Call("restore", touched, (fencing_token, now, period, *checkpoint, *sessions)))
    return int(added), read_totals(answer)


class RestoringNote(NamedTuple):
    """The note in the store of how far an account is restored from a checkpoint; instants are nanoseconds since 1970.

    Attributes:
        account: the account's name.
        restoring: the start of the latest period that the store had when a leader began to restore the account, 0 for
            none; None once the store has what the checkpoint has.
        restored: the start of a restored period, the microGPU-seconds that the period before it had spent, and the part
            of them that is from corrections, None if it is not known; None once the store has that spending.
    """

    account: str
    restoring: Instant | None
    restored: tuple[Instant, int, int | None] | None


def note_restoring(client: Store, fencing_token: FencingToken, notes: Sequence[RestoringNote]) -> None:
    """Replaces the notes of how far these accounts are restored, so that the next leader does the rest.

    Raises:
        StoreError: the store refused a note, or Redis does not answer.
    """
    calls = []
    for note in notes:
        restored = " ".join(str(part) for part in note.restored or () if part is not None)
        fields = (encode_optional(note.restoring), restored)
        calls.append(Call("note_restoring", (keys.AccountKeys(note.account).head,), (fencing_token, *fields)))
    for answer in run(client, calls):
        if isinstance(answer, StoreError):
            raise answer
