"""Converts a store of format 1 to the present format, account by account, in steps that may be repeated.

The stored format number is raised before the first step: from then on a timekeeper that knows only the old format
does not lead. The key `converting` says that accounts may still be in the old format; the last step removes it. A
leader that is killed in between leaves the rest to the next leader. An account that cannot be converted does not stop
the conversion of other accounts; the next leader tries it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
import structlog

from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage_folding import PackedPart, parse_part
from timekeeper.domain.windows import month_start, parse_month
from timekeeper.ledger import keys, reading
from timekeeper.ledger.client import (
    Call,
    FencingToken,
    Store,
    StoreFormatError,
    concerns_all,
    described,
    isolate_failures,
    put,
    run_one,
)

ROWS_AT_ONCE = 500
ACCOUNTS_AT_ONCE = 500

_log = structlog.get_logger()


def convert_store(client: Store, fencing_token: FencingToken) -> int:
    """Converts the accounts of the store that are in an earlier format; returns the number of converted accounts.

    An account that cannot be converted is logged as an error, and stays in the earlier format. The key `converting`
    then stays in the store, so that the next leader tries the account again.

    Raises:
        StoreFormatError: a later timekeeper wrote the store, or the stored format cannot be read.
        StoreError: a later leader has taken over, the store refused to note the conversion, or Redis does not answer a
            script.
        redis.RedisError: Redis does not answer a command outside scripts, such as a read.
    """
    stored_format = check_format(client)
    if stored_format < keys.FORMAT:
        # The store went back to a state from before its conversion.
        put(client, fencing_token, "SET", keys.BOOK_CONVERTING, [stored_format])
        put(client, fencing_token, "SET", keys.BOOK_FORMAT, [keys.FORMAT])
    if client.get(keys.BOOK_CONVERTING) is None:
        return 0
    names, converted = reading.account_names(client), list[str]()

    def convert(chosen: list[str]) -> None:
        for name in _unconverted(client, chosen):
            _convert(client, fencing_token, keys.AccountKeys(name))
            converted.append(name)

    failed: dict[str, Exception] = {}
    for start in range(0, len(names), ACCOUNTS_AT_ONCE):
        failed |= isolate_failures(names[start : start + ACCOUNTS_AT_ONCE], convert)
    for name, error in failed.items():
        _log.error("account not converted", account=name, error=described(error))
    if not failed:
        client.delete(keys.BOOK_CONVERTING)
    return len(converted)


def check_format(client: Store) -> int:
    """Returns the number of the store's format; the number of the present format if the store states none.

    Raises:
        StoreFormatError: a later timekeeper wrote the store, or the stored format cannot be read.
        redis.RedisError: Redis does not answer.
    """
    try:
        stored: Any = client.get(keys.BOOK_FORMAT)
    except redis.ResponseError as error:
        if concerns_all(error):
            raise
        raise StoreFormatError(f"{keys.BOOK_FORMAT} holds another type than a string: {error}") from error
    if stored is None:
        return keys.FORMAT
    stored_format = reading.whole(stored)
    if stored_format is None:
        raise StoreFormatError(f"{keys.BOOK_FORMAT} holds {stored[:40]!r}, and no number of a format")
    if stored_format > keys.FORMAT:
        raise StoreFormatError(
            f"the store is of format {stored_format}, and this timekeeper knows formats up to {keys.FORMAT}: "
            "install the timekeeper that wrote it, or a later one"
        )
    return stored_format


def _unconverted(client: Store, names: Sequence[str]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        account = keys.AccountKeys(name)
        pipeline.exists(account.hours)
        pipeline.hkeys(account.folded)
    answers = pipeline.execute()
    accounts = zip(names, answers[::2], answers[1::2], strict=True)
    return [name for name, rows, parts in accounts if rows or any(parse_part(part) is None for part in parts)]


def _convert(client: Store, fencing_token: FencingToken, account: keys.AccountKeys) -> None:
    months: Any = client.hkeys(account.folded)
    for month in months:
        if parse_part(month) is None:
            run_one(
                client, Call("convert_folded", (account.head, account.folded), (fencing_token, month, _days_of(month)))
            )
    cursor, begun = 0, False
    while cursor or not begun:
        cursor, rows = _page(client, account, cursor)
        begun = True
        if rows:
            run_one(client, Call("convert_hours", (account.head, account.hours), (fencing_token, *rows)))


def _page(client: Store, account: keys.AccountKeys, cursor: int) -> tuple[int, list[bytes]]:
    answer: Any = client.hscan(account.hours, cursor, count=ROWS_AT_ONCE)
    following, rows = answer
    return int(following), list(rows)


def _days_of(month: bytes) -> str:
    start = parse_month(month.decode())
    return PackedPart(hourly=False, first=start // HOUR, end=month_start(start, 1) // HOUR).name
