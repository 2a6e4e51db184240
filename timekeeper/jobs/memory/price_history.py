"""Prices as they were charged, kept outside the store: settings that an admin has changed tell them no more.

Sessions that run are computed anew in an emptied store, and what was metered is never priced again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from timekeeper.rules.pricing import ANY_MODEL, Prices, price_at, price_changes
from timekeeper.store.records import RecordError, decode_prices, encode_prices

PRICES = ":prices"
"""Where they stand among the checkpoints; no account can be called so."""

_log = structlog.get_logger()


def kept_prices(charged: Prices, configured: Prices) -> dict[str, dict[str, Any]]:
    """The prices as a document; none where they are what the settings say of all time."""
    lists = (charged, configured)
    models = {ANY_MODEL, *charged, *configured}
    moments = {0, *(point.effective_from for prices in lists for points in prices.values() for point in points)}
    if all(price_at(charged, model, at) == price_at(configured, model, at) for model in models for at in moments):
        return {}
    return {PRICES: {"prices": encode_prices(charged)}}


def read_prices(documents: Mapping[str, Any]) -> Prices:
    """The prices among what was kept; none where they are not there, or cannot be read."""
    try:
        return decode_prices((documents.get(PRICES) or {}).get("prices", "{}"))
    except (RecordError, AttributeError) as error:
        _log.error("prices cannot be read", error=str(error))
        return {}


def later_prices(stored: Prices, kept: Prices, now: int) -> Prices:
    """Those of which a change was charged by last: a store may be empty, or have gone back to before it."""
    return kept if last_change(kept, now) > last_change(stored, now) else stored


def first_forgotten(stored: Prices, charged: Prices, now: int) -> int:
    """The first change up to an instant that a store does not know of; that instant where it knows of all."""
    return min(price_changes(charged, last_change(stored, now), now + 1), default=now)


def last_change(prices: Prices, now: int) -> int:
    """When the latest change up to an instant was, in nanoseconds since 1970; below 0 where there are no prices."""
    return max(price_changes(prices, 0, now + 1), default=0 if prices else -1)
