"""A store of format 1, as that format's code left it after twelve days, and the facts that a conversion must keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import redis

from tests.support.ledger.harness import LedgerHarness
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.audit.difference import Difference
from timekeeper.domain.usage_folding import parse_part
from timekeeper.ledger import keys, reading
from timekeeper.ledger.usage import accounts_usage

STORE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "contract" / "timekeeper" / "stores" / "format_1.json").read_text()
)
"""The old store's keys, its answers about use, and the files of the cluster around it."""


def begin(harness: LedgerHarness) -> None:
    """Fills the harness with the old store and its cluster, and sets its clock to the time when the store was left."""
    fill(harness.client)
    for name, text in STORE["world"].items():
        (harness.folder / name).parent.mkdir(exist_ok=True)
        (harness.folder / name).write_text(text)
    harness.now = STORE["now"]


def fill(client: redis.Redis) -> None:
    """Writes the old store's keys."""
    for key, (kind, content) in STORE["keys"].items():
        name = stored(key)
        if kind == "string":
            client.set(name, stored(content))
        elif kind == "hash":
            client.hset(name, mapping={stored(field): stored(value) for field, value in content.items()})
        elif kind == "set":
            client.sadd(name, *map(stored, content))
        elif kind == "zset":
            client.zadd(name, {stored(member): score for member, score in content})
        else:
            for entry, fields in content:
                client.xadd(name, {stored(field): stored(value) for field, value in fields.items()}, id=entry)


def stored(text: str) -> bytes:
    return text.encode("latin-1")


def usage(client: redis.Redis) -> dict[str, list[Any]]:
    """Returns each account's use in the form in which the old store's code returned it."""
    found = accounts_usage(client, reading.account_names(client), reading.assignments(client))
    return {
        each.account: sorted([row.hour, row.hours, list(row.dimensions[:5]), list(row.figures)] for row in each.rows())
        for each in found
    }


def check_converted(harness: LedgerHarness) -> None:
    """Checks that no key has the old format, every answer is as before, and the auditor finds no difference."""
    assert usage(harness.client) == STORE["usage"]
    assert harness.client.get(keys.BOOK_FORMAT) == b"2"
    assert not harness.client.exists(keys.BOOK_CONVERTING)
    for name in reading.account_names(harness.client):
        account = keys.AccountKeys(name)
        assert not harness.client.exists(account.hours)
        assert all(parse_part(part) is not None for part in harness.client.hkeys(account.folded))
    assert differences(harness) == ()


def differences(harness: LedgerHarness) -> tuple[Difference, ...]:
    """Returns the differences that the auditor finds in the store."""
    around = AuditEnvironment(harness.client, lambda: None, lambda: harness.now, lambda _: False)
    return audit(around, AuditRequest(patience_seconds=0)).differences
