"""Tells readers and waiting clients how accounts and namespaces stand."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterable
from dataclasses import replace

from fairgpu.states import BudgetState, NamespaceState, encode_charge
from timekeeper.jobs.memory.books import Books
from timekeeper.jobs.memory.committing import committed, lapsed, queued
from timekeeper.jobs.memory.figures import Figures, figures, namespace_state, state_text, summary, worth_telling
from timekeeper.jobs.round.desk import Desk
from timekeeper.metering.segments import rate_now
from timekeeper.rules.burn import FINE, BurnRecord, sampled
from timekeeper.rules.pricing import ANY_MODEL, price_at
from timekeeper.store import book
from timekeeper.store.calls import StoreEmptyError
from timekeeper.store.ledger import Publication, publish_accounts
from timekeeper.store.records import encode_burn
from timekeeper.store.summaries import Summary, encode_summary


def publish(desk: Desk, now: int, names: Iterable[str]) -> None:
    """Publishes the accounts that were brought up to date, and the namespaces whose state changed with them.

    Raises:
        StoreError: the store refused or does not answer; all is told again by the next call.
    """
    books = desk.books
    namespaces = books.namespaces_of()
    rates = _rates(books, names, now)
    promised, waiting = committed(books, rates, now), queued(books, rates, now)
    overdue = lapsed(books, rates, now)
    found = {
        name: figures(
            books.accounts[name], rate, now, promised.get(name, 0), waiting.get(name, 0), overdue.get(name, 0)
        )
        for name, rate in rates.items()
    }
    _publish_accounts(desk, now, found, namespaces)
    changed: dict[str, NamespaceState] = {}
    for name, figures_found in found.items():
        for namespace in namespaces.get(name, ()):
            told = namespace_state(namespace, books.accounts[name], figures_found)
            if worth_telling(books.told.get(namespace), told):
                changed[namespace] = told
    if changed or not books.figures:
        _publish_states(desk, now, changed)
    books.told.update(changed)
    books.figures.update(found)


def _rates(books: Books, names: Iterable[str], now: int) -> dict[str, int]:
    """What each account's running sessions spend."""
    rates = {name: 0 for name in names if books.accounts[name].periods}
    for metered in books.sessions_under(rates):
        name = books.account_of(metered.session.namespace)
        if name in rates and metered.session.end is None:
            rates[name] += rate_now(metered.session.tariff, now)
    return rates


def _publish_accounts(desk: Desk, now: int, found: dict[str, Figures], namespaces: dict[str, list[str]]) -> None:
    books = desk.books
    told: list[tuple[Summary, BurnRecord, Publication]] = []
    for name, figures_found in found.items():
        account = books.accounts[name]
        new = summary(account, figures_found, tuple(sorted(namespaces.get(name, ()))))
        start, exhausted_at = figures_found.period.start, figures_found.exhausted_at
        lasting = new
        if new.committed:
            lasting = replace(new, committed=_in_steps(new.committed, new.available or 0))
        burn = sampled(account.burn, now, start, account.totals(), _offset(name))
        fresh = lasting != account.summary or exhausted_at != account.standings[start].exhausted_at
        if fresh or burn is not account.burn:
            samples = encode_burn(burn) if burn is not account.burn else ""
            text = encode_summary(replace(new, spent=figures_found.spent))
            told.append((lasting, burn, Publication(name, start, exhausted_at, text, samples)))
    errors = publish_accounts(desk.client, desk.epoch, [publication for _, _, publication in told])
    for (lasting, burn, publication), error in zip(told, errors, strict=True):
        if error is not None:
            raise error
        account = books.accounts[publication.account]
        account.summary, account.burn = lasting, burn
        standing = account.standings[publication.period]
        account.standings[publication.period] = replace(standing, exhausted_at=publication.exhausted_at)


def _publish_states(desk: Desk, now: int, changed: dict[str, NamespaceState]) -> None:
    books = desk.books
    limited = books.rules.template.allowance is not None
    default = BudgetState.OPEN if limited else BudgetState.UNLIMITED
    prices = {model: float(price_at(books.prices, model, now)) for model in {*books.prices, ANY_MODEL}}
    texts = {namespace: state_text(told) for namespace, told in changed.items()}
    fresh = secrets.token_hex(8)
    terms = book.Terms(prices, default.value, encode_charge(books.rules.charge))
    version = book.publish_states(desk.client, desk.epoch, fresh, texts, terms, desk.servers)
    if version.id == fresh and books.told:
        raise StoreEmptyError("the published states were lost")


def _offset(name: str) -> int:
    """Spreads the samples of many accounts over the time between two of them."""
    return zlib.crc32(name.encode()) * FINE >> 32


def _in_steps(amount: int, available: int) -> int:
    """An amount that changes all the time in hundredths of what is available, as readers need it no finer."""
    return amount * 100 // max(available, 1)
