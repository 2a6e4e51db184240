"""Reads budgets, sessions and ledgers from the store, as plain values for the routes.

Amounts are microGPU-seconds, rates microGPU-seconds a second, instants nanoseconds since 1970.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest

import structlog

from fairgpu.states import BudgetState
from timekeeper.domain.charges import rate_now
from timekeeper.domain.sessions import Session
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import keys, present_use, reading
from timekeeper.ledger.client import Store, readable_answers
from timekeeper.ledger.entries import LedgerEntry
from timekeeper.ledger.present_use import NamespaceUse, PresentUse
from timekeeper.ledger.totals import Summary, SummaryError, decode_summary

READ_AT_ONCE = 1000

_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}", re.ASCII)
"""An id in the store's stream: Redis refuses numbers of more than 64 bits."""
_UID = re.compile(r"[A-Za-z0-9-]{1,128}", re.ASCII)

_log = structlog.get_logger()


class BadCursorError(ValueError):
    """A cursor in a request cannot come from an earlier answer."""


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """The figures of an open session for the REST API.

    Attributes:
        session: the session as the store holds it.
        account: the account that pays.
        rate: the session's present rate, in microGPU-seconds a second.
        amount: the session's cost in the present period of that account, in microGPU-seconds; 0 if the store has none
            that is readable.
        reported_at: the instant of the pod's last report; None without a report.
        used: the GPU time that the pod's containers used according to its reports, in microGPU-seconds; None without a
            report.
        present_use: how busy the session's GPUs are now, according to Prometheus; None if that is unknown, or the pod
            reports.
    """

    session: Session
    account: str
    rate: int
    amount: int
    reported_at: Instant | None
    used: int | None = None
    present_use: PresentUse | None = None


class Book:
    """Reads the ledger in the store for the REST API. Every method may raise redis.RedisError."""

    def __init__(self, client: Store, now: Callable[[], Instant]) -> None:
        """Makes a reader of the store of `client`, whose answers are bytes; `now` returns nanoseconds since 1970."""
        self._client = client
        self._now = now

    def budgets(self, after: str, limit: int) -> list[Summary]:
        """Returns a page of GPUBudgets' figures, sorted by name.

        Accounts of single namespaces are left out, and so are unreadable figures.

        Args:
            after: the name after which the page begins; empty for the first page.
            limit: the most budgets of the page.
        """
        names = [name for name in reading.account_names(self._client) if name > after]
        page: list[Summary] = []
        for start in range(0, len(names), limit):
            summaries = reading.summaries(self._client, names[start : start + limit])
            decoded = (_decoded(name, text) for name, text in sorted(summaries.items()))
            page += [summary for summary in decoded if summary is not None and is_budget(summary)]
            if len(page) >= limit:
                break
        return page[:limit]

    def namespaces(self) -> list[str]:
        """Returns the names, sorted, of the namespaces whose payers over time the store holds."""
        return reading.namespaces(self._client)

    def budget(self, name: str) -> Summary | None:
        """Returns the figures of the account with this name; None if the store holds none that are readable."""
        if not name or "}" in name:
            return None
        summaries = reading.summaries(self._client, [name])
        return _decoded(name, summaries[name]) if name in summaries else None

    def namespace(self, namespace: str) -> Summary | None:
        """Returns the figures of the account that pays for a namespace.

        Returns:
            None if the store knows no payer of the namespace, or holds no readable figures of the account.
        """
        accounts = self._accounts_of(namespace)
        return self.budget(accounts[-1]) if accounts else None

    def unused_state(self) -> BudgetState:
        """Returns the state of a namespace that no budget names and in which no pod was ever metered."""
        return reading.unused_state(self._client)

    def has_paid_for(self, account: str, namespace: str) -> bool:
        """Returns whether an account pays for a namespace, or did, by the readable payers in the store."""
        return account in self._accounts_of(namespace)

    def has_taken(self, account: str, kind: str, name: str) -> bool:
        """Returns whether an order of this kind (GPUGrant or GPUCorrection) and name was applied to an account."""
        names = keys.AccountKeys(account)
        return bool(self._client.hexists(names.grants if kind == "GPUGrant" else names.corrections, name))

    def present_use(self, budgets: Sequence[Summary]) -> dict[str, NamespaceUse]:
        """Returns the present use of the namespaces that these budgets name, keyed by namespace.

        The present use states how busy a namespace's pods keep their GPUs now, as a Prometheus measures it. A namespace
        whose present use is not known is left out.
        """
        names = sorted({name for budget in budgets for name in budget.namespaces})
        return present_use.of_namespaces(self._client, names, self._now())

    def spent_in_period_of(self, account: str, instant: Instant) -> int | None:
        """Returns the amount that an account has spent in the period of an instant, in microGPU-seconds.

        Returns:
            None if the ledger has no such period.
        """
        period = reading.period_at(self._client, account, instant)
        totals = None if period is None else reading.period_totals(self._client, account, period.start)
        return None if totals is None else totals.total

    def ledger(self, account: str, after: str, limit: int) -> list[LedgerEntry]:
        """Returns a page of an account's ledger entries, the oldest first.

        Args:
            after: the id of the entry after which the page begins; empty for the first page.
            limit: the most entries of the page.

        Raises:
            BadCursorError: `after` is not an id.
            StoreError: Redis does not run the script, or a value of packed older entries cannot be read.
        """
        if after and not _ENTRY_ID.fullmatch(after):
            raise BadCursorError(after)
        return reading.ledger_page(self._client, account, after, limit)

    def sessions(self, namespace: str, after: str, limit: int) -> list[SessionFigures]:
        """Returns a page of open sessions, sorted by uid.

        Sessions that have just ended or cannot be read are left out, and the next sessions take their places: a page
        with fewer than `limit` sessions is the last one.

        Args:
            namespace: the namespace of the sessions; empty for all namespaces.
            after: the uid after which the page begins; empty for the first page.
            limit: the most sessions of the page.

        Raises:
            BadCursorError: `after` is not a uid.
        """
        if after and not _UID.fullmatch(after):
            raise BadCursorError(after)
        if namespace:
            of_namespace = self._sessions_of(namespace)
            page = [item for item in of_namespace if item[0].uid > after][:limit]
        else:
            page = self._open_sessions(after, limit)
        return self._with_amounts(page)

    def dearest_sessions(self, namespace: str, limit: int) -> list[SessionFigures]:
        """Returns the open sessions with the highest cost in the present periods, the highest first.

        Args:
            namespace: the namespace of the sessions; empty for all namespaces.
            limit: the most sessions.
        """
        dearest: list[SessionFigures] = []
        after = ""
        while page := self.sessions(namespace, after, READ_AT_ONCE):
            dearest = nlargest(limit, [*dearest, *page], key=lambda session: (session.amount, session.session.uid))
            after = page[-1].session.uid
        return dearest

    def _open_sessions(self, after: str, limit: int) -> list[tuple[Session, str]]:
        """Returns pairs of an open session and its account, sorted by uid; fewer than `limit` only at the end.

        A session that ends between two reads, or cannot be read, is left out, and the next session takes its place.

        Args:
            after: the uid after which the sessions begin; empty for the first sessions.
            limit: the most sessions.
        """
        page: list[tuple[Session, str]] = []
        members = reading.open_sessions(self._client, after, limit)
        while members:
            decoded = reading.sessions(self._client, members)
            page += [(decoded[uid, account], account) for uid, account in members if (uid, account) in decoded]
            if len(page) >= limit or len(members) < limit:
                break
            uid, payer = members[-1]
            members = reading.open_sessions(self._client, uid, limit, payer)
        return page[:limit]

    def _accounts_of(self, namespace: str) -> list[str]:
        known = reading.assignments_of(self._client, [namespace])
        return [account for _, account in known.get(namespace, ())]

    def _sessions_of(self, namespace: str) -> list[tuple[Session, str]]:
        accounts = sorted(set(self._accounts_of(namespace)))
        pipeline = self._client.pipeline(transaction=False)
        for account in accounts:
            pipeline.hgetall(keys.AccountKeys(account).sessions)
        stored = zip(accounts, readable_answers(pipeline.execute(raise_on_error=False)), strict=True)
        with_accounts = [
            (each, account) for account, texts in stored for each in reading.readable_sessions(texts or {}).values()
        ]
        return sorted((item for item in with_accounts if item[0].namespace == namespace), key=lambda item: item[0].uid)

    def _with_amounts(self, page: list[tuple[Session, str]]) -> list[SessionFigures]:
        accounts = sorted({account for _, account in page})
        heads = self._client.pipeline(transaction=False)
        for account in accounts:
            heads.hget(keys.AccountKeys(account).head, "period")
        periods = dict(zip(accounts, readable_answers(heads.execute(raise_on_error=False)), strict=True))
        figures = self._client.pipeline(transaction=False)
        for session, account in page:
            figures.hget(keys.AccountKeys(account).amounts(reading.whole(periods[account]) or 0), session.uid)
            figures.hmget(keys.report(session.uid), ["at", "used"])
        if page:
            figures.hmget(keys.PRESENT_USE, [session.uid for session, _ in page])
        answers = readable_answers(figures.execute(raise_on_error=False))
        shares = (answers.pop() if page else None) or [None] * len(page)
        reports = [(None, None) if answer is None else answer for answer in answers[1::2]]
        now = self._now()
        return [
            SessionFigures(
                session=session,
                account=account,
                rate=rate_now(session.tariff, now),
                amount=0 if text is None or (amount := reading.readable_amount(text)) is None else amount.amount,
                reported_at=reading.whole(at),
                used=reading.whole(used),
                present_use=present_use.shown(share, now) if at is None else None,
            )
            for (session, account), text, (at, used), share in zip(page, answers[::2], reports, shares, strict=True)
        ]


def is_budget(summary: Summary) -> bool:
    """Returns whether figures belong to a GPUBudget, to which money can be granted, and not to a single namespace."""
    return bool(summary.enforcement)


def _decoded(name: str, text: str) -> Summary | None:
    try:
        return decode_summary(text)
    except SummaryError as error:
        _log.error("summary unreadable", account=name, error=str(error))
        return None
