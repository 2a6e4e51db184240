"""Publishes figures of accounts for the REST API, and states of namespaces for the webhooks that wait for them."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable

from fairgpu.states import NamespaceState, encode_charge, encode_state
from timekeeper.controller.reconcile.context import ReconcileContext
from timekeeper.controller.state.commitments import committed, overdue, queued
from timekeeper.controller.state.figures import Figures, changed_states, figures, summary
from timekeeper.domain.forecast import FINE, BurnRecord, sampled
from timekeeper.domain.pricing import prices_in_force
from timekeeper.domain.timestamps import Instant
from timekeeper.ledger import shared
from timekeeper.ledger.client import StoreEmptyError
from timekeeper.ledger.codec import compact, encode_burn
from timekeeper.ledger.totals import Summary, encode_summary
from timekeeper.ledger.writing import Publication, publish_accounts


def publish(context: ReconcileContext, now: Instant, names: Iterable[str]) -> None:
    """Publishes the figures of settled accounts, and the changed states of the namespaces for which they pay.

    Raises:
        StoreError: the store refused or does not answer; the next call publishes what this one did not.
    """
    books = context.books
    namespaces = books.namespaces_of()
    rates = books.running_rates(names, now)
    promised, waiting = committed(books, rates, now), queued(books, rates, now)
    overdue_pods = overdue(books, rates, now)
    all_figures = {
        name: figures(
            books.accounts[name], rate, now, promised.get(name, 0), waiting.get(name, 0), overdue_pods.get(name, 0)
        )
        for name, rate in rates.items()
    }
    _publish_accounts(context, now, all_figures, namespaces)
    changed: dict[str, NamespaceState] = {}
    for name, account_figures in all_figures.items():
        paid_for = namespaces.get(name, ())
        changed |= changed_states(books.accounts[name], account_figures, paid_for, books.published)
    if changed or not books.figures:
        _publish_states(context, now, changed)
    books.published.update(changed)
    books.figures.update(all_figures)


def _publish_accounts(
    context: ReconcileContext, now: Instant, figures: dict[str, Figures], namespaces: dict[str, list[str]]
) -> None:
    books = context.books
    due: list[tuple[Summary, BurnRecord, Publication]] = []
    for name, account_figures in figures.items():
        account = books.accounts[name]
        new = summary(account, account_figures, tuple(sorted(namespaces.get(name, ()))))
        start, exhausted_at = account_figures.period.start, account_figures.exhausted_at
        lasting = new
        if new.committed:
            lasting = new._replace(committed=_in_steps(new.committed, new.available or 0))
        burn = sampled(account.burn, now, start, account.totals(), _offset(name))
        fresh = lasting != account.summary or exhausted_at != account.period_totals[start].exhausted_at
        if fresh or burn is not account.burn:
            samples = encode_burn(burn) if burn is not account.burn else ""
            text = encode_summary(new._replace(spent=account_figures.spent))
            due.append((lasting, burn, Publication(name, start, exhausted_at, text, samples)))
    errors = publish_accounts(context.client, context.fencing_token, [publication for _, _, publication in due])
    for (lasting, burn, publication), error in zip(due, errors, strict=True):
        if error is not None:
            raise error
        account = books.accounts[publication.account]
        account.summary, account.burn = lasting, burn
        totals = account.period_totals[publication.period]
        if totals.exhausted_at != publication.exhausted_at:
            account.period_totals[publication.period] = totals._replace(exhausted_at=publication.exhausted_at)


def _publish_states(context: ReconcileContext, now: Instant, changed: dict[str, NamespaceState]) -> None:
    books = context.books
    prices = {key: float(price) for key, price in prices_in_force(books.prices, now).items()}
    texts = {namespace: compact(encode_state(state)) for namespace, state in changed.items()}
    fresh = secrets.token_hex(8)
    unused = books.rules.unused
    terms = shared.Terms(
        prices,
        books.rules.unused_state.value,
        encode_charge(books.rules.charge),
        "" if unused is None else compact(encode_state(unused)),
    )
    version = shared.publish_states(context.client, context.fencing_token, fresh, texts, terms, context.servers)
    if version.id == fresh and books.published:
        raise StoreEmptyError("the published states were lost")


def _offset(name: str) -> int:
    """Returns the nanoseconds by which an account's samples are shifted, so that accounts are not sampled at once."""
    return zlib.crc32(name.encode()) * FINE >> 32


def _in_steps(amount: int, available: int) -> int:
    """Returns an amount in hundredths of the available money, rounded down.

    The amount that admitted pods may still spend changes all the time. Its account is published again for it only once
    this number has changed.
    """
    return amount * 100 // max(available, 1)
