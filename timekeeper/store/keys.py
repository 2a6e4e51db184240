"""Where everything lies in Redis.

All keys of an account (a budget, or a namespace that none pays for) carry its name as the hash tag, so that a script
may touch several of them on a Redis Cluster. Amounts are decimal strings of microGPU-seconds: Lua's numbers are
doubles, which lose units from 2^53 on. Instants are decimal strings of nanoseconds since 1970, and a period is named
by its start.

    fairgpu:{ACCOUNT}:head            hash    epoch     the highest Lease epoch that wrote here; lower ones are refused
                                              version   grows with each change: a lower one than before means that
                                                        this shard went back to an earlier state
                                              period    start of the latest period
                                              previous  start of the period before it
                                              settled   when its sessions were last settled
                                              past      another text whenever something was put down to an hour that
                                                        was more than a day ago, was forgotten, or was lost
                                              folds     how often hours were packed or folded
                                              summary   figures for readers, as JSON
                                              burn      what had been spent by when, over the last day, as JSON
                                              The key's absence means that this shard was emptied: nothing but
                                              open_period.lua writes then, and that starts from a checkpoint.
    fairgpu:{ACCOUNT}:periods         hash    START -> end, of each period ever opened
    fairgpu:{ACCOUNT}:period:START    hash    total       spent: checkpoint + ledger entries + what is not posted yet
                                              checkpoint  the part of total that was taken from checkpoints, where the
                                                          store had been lost or had gone back
                                              granted     added by grants and by what was carried into it
                                              gone        the part of total whose pods have left the API server
                                              folded      the part of gone whose amounts are not kept any more
                                              passed      the part of total, beside that, whose amounts are not kept
                                                          any more: of sessions that went on when the period ended
                                              exhausted   when the total first reached what was available, or empty
                                              struck      what the period before it had spent when what that one left
                                                          was carried over; absent where nothing was yet
    fairgpu:{ACCOUNT}:amounts:START   hash    UID -> "epoch counter amount posted flag": a session's cumulative amount
                                              in the period, the revision that set it, how much of it the ledger holds,
                                              and o (open), c (closed) or g (closed, and its pod is gone); then, once
                                              it was put down to hours, " until core memory used" of its last cut;
                                              then, once no leader knows the session, " @SECOND" when that was noted.
                                              A day after that it is folded into the period's sums
    fairgpu:{ACCOUNT}:hours:HOUR      hash    DIMENSIONS -> "billed core memory used": what the ledger's entries are put
                                              down to in an hour; hours count from 1970, dimensions are JSON, used is -
                                              where nothing was reported
    fairgpu:{ACCOUNT}:hours:index     hash    HOUR -> how often that hash was written to, of each that there is
    fairgpu:{ACCOUNT}:pots:START      hash    NAME -> "amount expires since flag": a grant that outlives periods, within
                                              this one: what it brought or, flagged l, what was burned of it when it
                                              expired; and what the period had spent when it came. The empty name is
                                              what was rolled over
    fairgpu:{ACCOUNT}:folded          hash    "h FIRST END" -> packed rows of older hours; "d FIRST END" -> packed rows
                                              of days of one month. They lie in the hours from FIRST up to END
    fairgpu:{ACCOUNT}:sessions        hash    UID -> open session as JSON
    fairgpu:{ACCOUNT}:ended           hash    UID -> closed session as JSON, while its pod is on the API server
    fairgpu:{ACCOUNT}:grants          hash    NAME -> "START amount"
    fairgpu:{ACCOUNT}:corrections     hash    NAME -> "START amount"
    fairgpu:{ACCOUNT}:ledger          stream  k kind, p period, a amount, t instant, u session, n namespace,
                                              d pod, x note (packed, see notes.py)
    fairgpu:{ACCOUNT}:segments        hash    "ID PERIOD" -> older entries, packed (see segments.py): the id of the last
                                              one, and the latest period of any
    fairgpu:{ACCOUNT}:segment-order   zset    "TIME-COUNTER NAME" of each of them, the id in 20 digits each (all scores
                                              are 0), so that a page finds its own; one that lacks any is passed over

    fairgpu:{book}:epoch              string  the latest epoch given to a leader
    fairgpu:{book}:term               string  "TERM HOLDER": the term that the latest epoch was given to, and who leads
                                              in it
    fairgpu:{book}:format             string  the highest FORMAT that a leader wrote in; lower ones do not lead
    fairgpu:{book}:converting         string  the format that the store had, while accounts may still be in it
    fairgpu:{book}:accounts           set     the name of each account
    fairgpu:{book}:namespaces         hash    NAMESPACE -> [[from, account], ...] as JSON: who pays from when on
    fairgpu:{book}:budgets            hash    NAME -> the GPUBudget as it last could be used, as JSON; once it is
                                              gone, too
    fairgpu:{book}:prices             string  the price of each model over time, as JSON
    fairgpu:{book}:watched            string  until when all open sessions were known to live
    fairgpu:{book}:restored           set     the accounts some of whose spending nobody can be named for
    fairgpu:{book}:capacity           hash    INSTANT -> what all nodes have from then on, in microGPU-seconds a second
    fairgpu:{book}:late               hash    MONTH -> how often it changed after it was closed
    fairgpu:{book}:exports            hash    MONTH -> what was written of it outside, as JSON
    fairgpu:{book}:mark               string  the epoch of the leader that last waited for a replica; nobody reads it
    fairgpu:{mark-N}:mark             string  the same at one node of a Redis Cluster
    fairgpu:{book}:open               zset    "UID ACCOUNT" of each open session, by uid (all scores are 0)

    fairgpu:{states}:head             hash    id        new whenever the store was emptied, or a server of it was
                                                        restarted or replaced: older cursors mean nothing
                                              servers   which runs of which servers held it when it was published
                                              version   grows with each change
                                              epoch     as above
                                              prices, default, charge: as in GET /v1/states
    fairgpu:{states}:values           hash    NAMESPACE -> its state as JSON, as GET /v1/states tells it
    fairgpu:{states}:changes          zset    NAMESPACE -> the version in which it last changed
    fairgpu:states                    channel the version, whenever it grows

    fairgpu:{notices}:head            hash    epoch, as above
    fairgpu:{notices}:told            hash    UID of a budget -> what of it was told outside the cluster, as JSON
    fairgpu:{notices}:outbox          stream  m: messages that are still to be delivered, as JSON

    fairgpu:{UID}:report              hash    terms: what a session may report, and state: what is known of its reports,
                                              as JSON (see reports.py); closed: the instant before which nothing is put
                                              any more, settled: the one before which nobody asks, phase: how far beside
                                              a quarter of an hour the period ends; at: when the pod was last heard of;
                                              used: the GPU time that the reports come to, in microGPU-seconds, where
                                              they name a device; of a pod whose session has closed, at and used alone
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "fairgpu"

FORMAT = 2
"""Of all that is described here; it grows when something is written that an earlier timekeeper would read wrongly."""

BOOK_FORMAT = f"{PREFIX}:{{book}}:format"
BOOK_CONVERTING = f"{PREFIX}:{{book}}:converting"
BOOK_EPOCH = f"{PREFIX}:{{book}}:epoch"
BOOK_TERM = f"{PREFIX}:{{book}}:term"
ACCOUNTS = f"{PREFIX}:{{book}}:accounts"
NAMESPACES = f"{PREFIX}:{{book}}:namespaces"
BUDGETS = f"{PREFIX}:{{book}}:budgets"
PRICES = f"{PREFIX}:{{book}}:prices"
WATCHED = f"{PREFIX}:{{book}}:watched"
RESTORED = f"{PREFIX}:{{book}}:restored"
CAPACITY = f"{PREFIX}:{{book}}:capacity"
LATE_CHANGES = f"{PREFIX}:{{book}}:late"
EXPORTS = f"{PREFIX}:{{book}}:exports"
MARK = f"{PREFIX}:{{book}}:mark"
OPEN_SESSIONS = f"{PREFIX}:{{book}}:open"

NOTICES_HEAD = f"{PREFIX}:{{notices}}:head"
NOTICES_TOLD = f"{PREFIX}:{{notices}}:told"
NOTICES_OUTBOX = f"{PREFIX}:{{notices}}:outbox"

STATES_HEAD = f"{PREFIX}:{{states}}:head"
STATES_VALUES = f"{PREFIX}:{{states}}:values"
STATES_CHANGES = f"{PREFIX}:{{states}}:changes"
STATES_CHANNEL = f"{PREFIX}:states"


@dataclass(frozen=True, slots=True)
class AccountKeys:
    """The keys of one account."""

    account: str

    def __post_init__(self) -> None:
        if not self.account or "}" in self.account:
            raise ValueError(f"{self.account!r} cannot be a hash tag")

    def _key(self, suffix: str) -> str:
        return f"{PREFIX}:{{{self.account}}}:{suffix}"

    @property
    def head(self) -> str:
        """What the account as a whole stands at."""
        return self._key("head")

    @property
    def periods(self) -> str:
        """When each period ends."""
        return self._key("periods")

    def period(self, start: int) -> str:
        """A period's sums."""
        return self._key(f"period:{start}")

    def amounts(self, start: int) -> str:
        """A period's amount of each session."""
        return self._key(f"amounts:{start}")

    @property
    def amounts_of_periods(self) -> str:
        """What the keys of amounts begin with; the period's start follows."""
        return self._key("amounts:")

    def pots(self, start: int) -> str:
        """A period's money that expires on its own."""
        return self._key(f"pots:{start}")

    @property
    def sessions(self) -> str:
        """The open sessions."""
        return self._key("sessions")

    @property
    def ended(self) -> str:
        """The closed sessions whose pods are still there."""
        return self._key("ended")

    @property
    def grants(self) -> str:
        """The grants that were applied."""
        return self._key("grants")

    @property
    def hours(self) -> str:
        """The keys of hours begin with it. In format 1 it is the key of all rows."""
        return self._key("hours")

    @property
    def hour_index(self) -> str:
        """The hours that have rows."""
        return self._key("hours:index")

    def rows_of(self, hour: int | str) -> str:
        """What the entries are put down to in an hour."""
        return self._key(f"hours:{hour}")

    @property
    def corrections(self) -> str:
        """The corrections that were applied."""
        return self._key("corrections")

    @property
    def folded(self) -> str:
        """Older hours, packed as they are or folded into days."""
        return self._key("folded")

    @property
    def segments(self) -> str:
        """Older entries, packed."""
        return self._key("segments")

    @property
    def segment_order(self) -> str:
        """The names of those in the order of their entries."""
        return self._key("segment-order")

    @property
    def ledger(self) -> str:
        """The entries that are not packed yet."""
        return self._key("ledger")


def mark(number: int) -> str:
    """One of many marks, among which each node of a cluster finds one of its own."""
    return f"{PREFIX}:{{mark-{number}}}:mark"


def report(uid: str) -> str:
    """The reports of a pod."""
    return f"{PREFIX}:{{{uid}}}:report"
