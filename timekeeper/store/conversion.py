"""Converts a store of format 1 to the present one, account by account, in steps that may be repeated.

The format is raised before the first step: from then on no timekeeper leads that knows the old one alone. A mark beside
it says that accounts may still be in the old one, and goes after the last step. A leader that is killed in between
leaves the rest to the next one, and so does an account whose data cannot be converted: the others do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
import structlog

from timekeeper.rules.timestamps import HOUR
from timekeeper.store import keys, reading
from timekeeper.store.calls import Call, StoreError, described, run_one
from timekeeper.store.isolation import each_apart
from timekeeper.usage.parts import PackedPart, parse_part
from timekeeper.usage.windows import month_start, parse_month

ROWS_AT_ONCE = 500
ACCOUNTS_AT_ONCE = 500

_log = structlog.get_logger()


def convert_store(client: redis.Redis, epoch: int, step: Callable[[str], None]) -> int:
    """Converts what is in an earlier format; how many accounts were.

    Args:
        client: the store; its answers are bytes.
        epoch: the leader's.
        step: told before each step.

    Raises:
        StoreError: it was refused, a later timekeeper wrote the store, or Redis does not answer.
        redis.RedisError: Redis does not answer.
    """
    check_format(client)
    known: Any = client.get(keys.BOOK_FORMAT)
    if known is not None and int(known) < keys.FORMAT:
        # A store that went back to before it was converted.
        client.set(keys.BOOK_CONVERTING, known)
        client.set(keys.BOOK_FORMAT, keys.FORMAT)
    if client.get(keys.BOOK_CONVERTING) is None:
        return 0
    names, converted = reading.account_names(client), list[str]()

    def convert(chosen: list[str]) -> None:
        for name in _unconverted(client, chosen):
            step("convert")
            _convert(client, epoch, keys.AccountKeys(name))
            converted.append(name)

    failed: dict[str, Exception] = {}
    for start in range(0, len(names), ACCOUNTS_AT_ONCE):
        failed |= each_apart(names[start : start + ACCOUNTS_AT_ONCE], convert)
    for name, error in failed.items():
        _log.error("account not converted", account=name, error=described(error))
    if not failed:
        step("converted")
        client.delete(keys.BOOK_CONVERTING)
    return len(converted)


def check_format(client: redis.Redis) -> None:
    """Makes sure that this timekeeper knows the store's format.

    Raises:
        StoreError: a later one wrote it.
        redis.RedisError: Redis does not answer.
    """
    found: Any = client.get(keys.BOOK_FORMAT)
    if found is not None and int(found) > keys.FORMAT:
        raise StoreError(
            f"the store is of format {int(found)}, and this timekeeper knows formats up to {keys.FORMAT}: install the "
            "timekeeper that wrote it, or a later one"
        )


def _unconverted(client: redis.Redis, names: Sequence[str]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        account = keys.AccountKeys(name)
        pipeline.exists(account.hours)
        pipeline.hkeys(account.folded)
    answers = pipeline.execute()
    found = zip(names, answers[::2], answers[1::2], strict=True)
    return [name for name, rows, parts in found if rows or any(parse_part(part) is None for part in parts)]


def _convert(client: redis.Redis, epoch: int, account: keys.AccountKeys) -> None:
    months: Any = client.hkeys(account.folded)
    for month in months:
        if parse_part(month) is None:
            run_one(client, Call("convert_folded", (account.head, account.folded), (epoch, month, _days_of(month))))
    cursor, begun = 0, False
    while cursor or not begun:
        cursor, rows = _page(client, account, cursor)
        begun = True
        if rows:
            run_one(client, Call("convert_hours", (account.head, account.hours), (epoch, *rows)))


def _page(client: redis.Redis, account: keys.AccountKeys, cursor: int) -> tuple[int, list[bytes]]:
    answer: Any = client.hscan(account.hours, cursor, count=ROWS_AT_ONCE)
    following, rows = answer
    return int(following), list(rows)


def _days_of(month: bytes) -> str:
    start = parse_month(month.decode())
    return PackedPart(hourly=False, first=start // HOUR, end=month_start(start, 1) // HOUR).name
