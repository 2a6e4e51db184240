"""The keys of the store, and the format of each value.

All keys of an account (a budget, or a namespace that no budget pays for) carry the account's name as the hash tag, so
that a script may touch several of them on a Redis Cluster. Amounts are decimal strings of microGPU-seconds: Lua's
numbers are doubles, exact only up to 2^53. Instants are decimal strings of nanoseconds since 1970. A period is
named by its start.

    fairgpu:{ACCOUNT}:head            hash    epoch     the highest fencing token that wrote; lower ones are refused
                                              version   grows with each change: a lower one than before means that
                                                        this shard went back to an earlier state
                                              period    start of the latest period
                                              previous  start of the period before it
                                              settled   the instant of the last settlement of its sessions
                                              past      changes whenever hourly use that is more than a day old is
                                                        changed, removed or lost
                                              folds     the number of times that hours were packed or folded
                                              restoring start of the latest period that the store had when a leader
                                                        began to restore the account from a checkpoint, 0 for none;
                                                        absent once the store has what the checkpoint has
                                              restored  "START SPENT CORRECTED": the period START was restored from a
                                                        checkpoint, by which the period before had spent SPENT, of which
                                                        CORRECTED is from corrections (left out if it is not known);
                                                        absent once the store has that spending
                                              summary   the account's figures for readers, as JSON
                                              burn      samples of spending over the last day, as JSON
                                              An absent key means that this shard was emptied: only
                                              open_period.lua writes then, and it starts from a checkpoint.
    fairgpu:{ACCOUNT}:periods         hash    START -> end, of each period ever opened
    fairgpu:{ACCOUNT}:period:START    hash    total       spent: checkpoint + ledger entries + unposted amounts
                                              checkpoint  the part of total that was taken from checkpoints, after the
                                                          store had been lost or had gone back
                                              granted     added by grants and by credits carried into the period
                                              gone        the part of total that finalized sessions spent
                                              folded      the part of gone whose amounts were removed
                                              passed      a further part of total whose amounts were removed: of
                                                          sessions that were still open when the period ended
                                              exhausted   when the total first reached the available amount, or empty
                                              struck      the preceding period's total when its unspent money was
                                                          carried over; empty while this is still to be done, and
                                                          absent if no money is to be carried over
                                              terms       "allowance rollover" of the preceding period at that moment
    fairgpu:{ACCOUNT}:amounts:START   hash    UID -> "epoch counter amount posted flag": a session's cumulative amount
                                              in the period, the revision that set it, the part of it that the ledger
                                              holds, and the flag: o (open), c (closed) or g (closed and finalized).
                                              After the first hourly point follow " until core memory used" of the last
                                              point. Once no leader knows the session, " @SECOND" follows: when that was
                                              noted. A day later the amount is folded into the period's sums
    fairgpu:{ACCOUNT}:hours:HOUR      hash    DIMENSIONS -> "billed core memory used": the use of one hour, which the
                                              ledger's entries are attributed to. Hours count from 1970, dimensions are
                                              JSON, used is - where nothing was reported
    fairgpu:{ACCOUNT}:hours:HOUR:sums hash    DIMENSIONS -> the sum of these rows by namespace and model
    fairgpu:{ACCOUNT}:hours:index     hash    HOUR -> the number of writes to the hour's hashes, of each hour with rows
    fairgpu:{ACCOUNT}:pots:START      hash    NAME -> "amount expires since flag": a credit within this period. The
                                              amount is what the credit brought or, under the flag l (expired), what
                                              was spent of it; since is what the period had spent when the credit came.
                                              The empty name is the rollover
    fairgpu:{ACCOUNT}:folded          hash    "h FIRST END" -> packed rows of older hours; "d FIRST END" -> packed rows
                                              of days of one month. The rows lie in the hours from FIRST up to END
    fairgpu:{ACCOUNT}:sessions        hash    UID -> open session as JSON
    fairgpu:{ACCOUNT}:ended           hash    UID -> closed session as JSON, while its pod is on the API server
    fairgpu:{ACCOUNT}:grants          hash    NAME -> "START amount"
    fairgpu:{ACCOUNT}:corrections     hash    NAME -> "START amount"
    fairgpu:{ACCOUNT}:ledger          stream  k kind, p period, a amount, t instant, u session, n namespace,
                                              d pod, x note (packed, see entries.py)
    fairgpu:{ACCOUNT}:segments        hash    "ID PERIOD" -> older entries, packed (see entries.py): the id of the last
                                              entry, and the latest period of any
    fairgpu:{ACCOUNT}:segment-order   zset    "TIME-COUNTER NAME" of each segment, the id in 20 digits each (all scores
                                              are 0), so that a page finds its segment. A set that lacks any segment is
                                              not used

    fairgpu:{book}:epoch              string  the latest fencing token that was given to a leader
    fairgpu:{book}:term               string  "TERM HOLDER": the term that got the latest fencing token, and its leader
    fairgpu:{book}:format             string  the highest FORMAT that a leader wrote in; lower ones do not lead
    fairgpu:{book}:converting         string  the format that the store had, while accounts may still be in it
    fairgpu:{book}:accounts           set     the name of each account
    fairgpu:{book}:namespaces         hash    NAMESPACE -> [[from, account], ...] as JSON: the namespace's payers
    fairgpu:{book}:budgets            hash    NAME -> the GPUBudget as JSON, in its last valid version; it stays after
                                              the object is deleted
    fairgpu:{book}:prices             string  the price of each model over time, as JSON
    fairgpu:{book}:since              string  the instant from which pods of other stacks are metered
    fairgpu:{book}:watched            string  the latest instant at which the pods of all open sessions were known to
                                              live
    fairgpu:{book}:watched-claims     string  the same of ResourceClaims
    fairgpu:{book}:silent             string  {NODE: INSTANT} as JSON: each silent node's last sign of life, also while
                                              sessions are left on a node whose object is deleted. A store of an earlier
                                              version lacks this key
    fairgpu:{book}:unmetered          hash    UID -> the end of a session whose pod is not observed any more. A session
                                              that cannot be read, or whose end cannot be written, has its entry until
                                              the store holds the end. A session of another stack has an entry if a new
                                              leader did not observe its pod or claim, which is deleted or not metered
                                              any more. This session goes on if its pod is observed again, so its
                                              amounts are not folded. Its entry stays until then, or until no period
                                              reaches back to the end.
                                              UID/seen -> the instant up to which pods had been observed when the pod of
                                              a session that cannot be read was missing: the session ends no later.
                                              A store of an earlier version lacks this key
    fairgpu:{book}:past               string  the instant of the last reconciliation that began to settle: the leader's
                                              time or, if earlier, the store's
    fairgpu:{book}:restored           set     the accounts with spending that cannot be attributed to a pod
    fairgpu:{book}:not-settled        set     the accounts whose last settlement failed, at least in part
    fairgpu:{book}:capacity           hash    INSTANT -> the capacity of all nodes from then on, in microGPU-seconds a
                                              second
    fairgpu:{book}:capacity-of-models hash    INSTANT -> the same by model, as JSON; an empty name is an unknown model
    fairgpu:{book}:late               hash    MONTH -> the number of changes to it after it was closed
    fairgpu:{book}:exports            hash    MONTH -> the record of its exported file, as JSON
    fairgpu:{book}:mark               string  the fencing token of the leader that last waited for a replica; never read
    fairgpu:{mark-N}:mark             string  the same, on one node of a Redis Cluster
    fairgpu:{book}:open               zset    "UID ACCOUNT" of each open session, by uid (all scores are 0)
    fairgpu:{book}:present            hash    UID -> "AT UNTIL SHARE": how busy a session's GPUs were at an instant,
                                              by Prometheus, in ten-thousandths; shown until UNTIL, and no money.
                                              namespace/NAME -> "AT UNTIL BUSY KNOWN": of the sessions of a namespace
                                              whose use is known, in microGPU-seconds a second

    fairgpu:{states}:head             hash    id        the store id: new whenever the store was emptied, or a server of
                                                        it was restarted or replaced; cursors of another id are void
                                              servers   the runs of the servers that held the store at publication
                                              version   grows with each change
                                              epoch     as above
                                              prices, default, charge: as in GET /v1/states
    fairgpu:{states}:values           hash    NAMESPACE -> its published state as JSON, as in GET /v1/states
    fairgpu:{states}:changes          zset    NAMESPACE -> the version in which it last changed
    fairgpu:states                    channel the version, whenever it grows

    fairgpu:{notices}:head            hash    epoch, as above
    fairgpu:{notices}:told            hash    UID of a budget -> its announced milestones, as JSON
    fairgpu:{notices}:outbox          stream  m: messages that are still to be delivered, as JSON

    fairgpu:{UID}:report              hash    terms: its reports' limits, and state: its reports so far, both as
                                              JSON (see reports.py); closed: the instant before which reports add
                                              nothing any more; settled: the instant before which reports are not read
                                              any more; phase: the offset of period starts from a quarter of an hour;
                                              epoch: the fencing token of the leader that last wrote terms and phase;
                                              at: the time of the pod's last report; used: the GPU time of all reports,
                                              in microGPU-seconds, where they name a device. Of a pod whose session
                                              has closed, at and used alone are kept
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from timekeeper.domain.timestamps import Instant

PREFIX = "fairgpu"

FORMAT = 2
"""The version of these formats. It grows when a timekeeper writes what an earlier one would read wrongly."""

BOOK_FORMAT = f"{PREFIX}:{{book}}:format"
BOOK_CONVERTING = f"{PREFIX}:{{book}}:converting"
BOOK_FENCING_TOKEN = f"{PREFIX}:{{book}}:epoch"
BOOK_TERM = f"{PREFIX}:{{book}}:term"
ACCOUNTS = f"{PREFIX}:{{book}}:accounts"
NAMESPACES = f"{PREFIX}:{{book}}:namespaces"
BUDGETS = f"{PREFIX}:{{book}}:budgets"
PRICES = f"{PREFIX}:{{book}}:prices"
SINCE = f"{PREFIX}:{{book}}:since"
WATCHED = f"{PREFIX}:{{book}}:watched"
WATCHED_CLAIMS = f"{PREFIX}:{{book}}:watched-claims"
SILENT = f"{PREFIX}:{{book}}:silent"
UNMETERED = f"{PREFIX}:{{book}}:unmetered"
SEEN = "/seen"
"""The end of the names of fields of `UNMETERED` that hold no end. A uid has no slash."""
PAST = f"{PREFIX}:{{book}}:past"
RESTORED = f"{PREFIX}:{{book}}:restored"
NOT_SETTLED = f"{PREFIX}:{{book}}:not-settled"
CAPACITY = f"{PREFIX}:{{book}}:capacity"
CAPACITY_OF_MODELS = f"{PREFIX}:{{book}}:capacity-of-models"
LATE_CHANGES = f"{PREFIX}:{{book}}:late"
EXPORTS = f"{PREFIX}:{{book}}:exports"
MARK = f"{PREFIX}:{{book}}:mark"
OPEN_SESSIONS = f"{PREFIX}:{{book}}:open"
PRESENT_USE = f"{PREFIX}:{{book}}:present"

NOTICES_HEAD = f"{PREFIX}:{{notices}}:head"
NOTICES_ANNOUNCED = f"{PREFIX}:{{notices}}:told"
NOTICES_OUTBOX = f"{PREFIX}:{{notices}}:outbox"

STATES_HEAD = f"{PREFIX}:{{states}}:head"
STATES_VALUES = f"{PREFIX}:{{states}}:values"
STATES_CHANGES = f"{PREFIX}:{{states}}:changes"
STATES_CHANNEL = f"{PREFIX}:states"


@dataclass(frozen=True, slots=True)
class AccountKeys:
    """The names of the Redis keys that hold one account's data.

    Attributes:
        account: the account's name, which is the keys' hash tag. An empty name, or one with a `}`, raises ValueError.
    """

    account: str

    def __post_init__(self) -> None:
        if not self.account or "}" in self.account:
            raise ValueError(f"{self.account!r} cannot be a hash tag")

    def _key(self, suffix: str) -> str:
        return f"{PREFIX}:{{{self.account}}}:{suffix}"

    @property
    def head(self) -> str:
        """The name of the hash with the account's own fields, such as its fencing token, version and latest periods."""
        return self._key("head")

    @property
    def periods(self) -> str:
        """The name of the hash with the end of each of the account's periods, keyed by the period's start."""
        return self._key("periods")

    def period(self, start: int) -> str:
        """Returns the name of the hash with the totals of the period with this start, in nanoseconds since 1970."""
        return self._key(f"period:{start}")

    def amounts(self, start: int) -> str:
        """Returns the name of the hash with each session's amount in a period, keyed by the session's uid.

        `start` is the period's start in nanoseconds since 1970.
        """
        return self._key(f"amounts:{start}")

    @property
    def amounts_of_periods(self) -> str:
        """The prefix of the names that `amounts` returns; the period's start follows."""
        return self._key("amounts:")

    def settled(self, start: Instant) -> tuple[str, ...]:
        """Returns the names of the keys that a settlement in a period touches, in the order that settle.lua expects.

        Args:
            start: the start of the period.
        """
        period, amounts = self.period(start), self.amounts(start)
        return self.head, period, amounts, self.sessions, self.ended, self.ledger, self.hours

    def credits(self, start: int) -> str:
        """Returns the name of the hash with a period's credits, keyed by their names; the empty name is the rollover.

        `start` is the period's start in nanoseconds since 1970.
        """
        return self._key(f"pots:{start}")

    @property
    def sessions(self) -> str:
        """The name of the hash with the account's open sessions, keyed by uid."""
        return self._key("sessions")

    @property
    def ended(self) -> str:
        """The name of the hash with the closed sessions whose pods are still on the API server, keyed by uid."""
        return self._key("ended")

    @property
    def grants(self) -> str:
        """The name of the hash with the grants that were applied to the account, keyed by their names."""
        return self._key("grants")

    @property
    def hours(self) -> str:
        """The prefix of the names that `rows_of` returns.

        In a store of format 1 (see FORMAT) it is the name of the one hash with the rows of all hours.
        """
        return self._key("hours")

    @property
    def hour_index(self) -> str:
        """The name of the hash with the number of writes to each hour with use, keyed by the hour since 1970."""
        return self._key("hours:index")

    def rows_of(self, hour: int | str) -> str:
        """Returns the name of the hash with an hour's rows of use, keyed by their dimensions as JSON.

        `hour` is the number of hours since 1970.
        """
        return self._key(f"hours:{hour}")

    def sums_of(self, hour: int | str) -> str:
        """Returns the name of the hash with an hour's use, summed by namespace and model and keyed by these as JSON.

        `hour` is the number of hours since 1970.
        """
        return self._key(f"hours:{hour}:sums")

    @property
    def corrections(self) -> str:
        """The name of the hash with the corrections that were applied to the account, keyed by their names."""
        return self._key("corrections")

    @property
    def folded(self) -> str:
        """The name of the hash with older hours of use, packed as hours or folded into days.

        A field's name states whether its value has hours or days, and the first hour and the end of the value's rows.
        """
        return self._key("folded")

    @property
    def segments(self) -> str:
        """The name of the hash with older ledger entries, many packed into one value.

        A field's name states the id of the value's last entry, and the latest period of any entry in the value.
        """
        return self._key("segments")

    @property
    def segment_order(self) -> str:
        """The name of the sorted set that lists the fields of `segments` in the order of their ledger entries."""
        return self._key("segment-order")

    @property
    def ledger(self) -> str:
        """The name of the stream with the ledger entries that are not packed yet."""
        return self._key("ledger")


def mark(number: int) -> str:
    """Returns the name of one of many Redis keys that spread over all slots, so that each node of a cluster holds some.

    The leader writes one such key on each node: a replica of the node that has the key also has all earlier writes.

    Args:
        number: the number of the key, from 0.
    """
    return f"{PREFIX}:{{mark-{number}}}:mark"


def report(uid: str) -> str:
    """Returns the name of the hash with the state of a pod's reports, given the pod's uid."""
    return f"{PREFIX}:{{{uid}}}:report"


def reports(uids: Collection[str]) -> list[str]:
    """Returns, for each uid of a pod in order, the name of the hash with the state of the pod's reports."""
    return [report(uid) for uid in uids]
