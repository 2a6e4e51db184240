"""A script that meets data that it cannot work with has written nothing, whichever key or field that data is in.

The scripts are called as the timekeeper calls them. Before each call the keys that lie beside it are spoiled, one key
and one field after another; a call that breaks off then must leave all of them as they were.
"""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.ledger import old_store
from tests.support.ledger.harness import EACH_REDIS, MONTH, LedgerHarness, harness_on, report
from timekeeper.audit.auditing import AuditEnvironment, AuditRequest, audit
from timekeeper.controller.archive import Archivist
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.pricing import Bill
from timekeeper.domain.state import Announced
from timekeeper.domain.timestamps import DAY
from timekeeper.domain.windows import Retention
from timekeeper.ledger import client, compaction, outbox, shared, writing
from timekeeper.ledger.reports import ReportIntake, Submission
from timekeeper.ledger.scripts import SHARED, script
from timekeeper.ledger.writing import HeldTerm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from timekeeper.ledger.client import Call

HOUR = 3600
CALLS_OF_EACH = 3
FIELDS_OF_EACH = 8
BROKEN = (b"nonsense", b"", b"9" * 30, b"1.5")
TAG = re.compile(r"\{[^}]*\}")
WRITES = re.compile(
    r"redis\.call\(\s*(?:'(?:[HZSX]?(?:SET|DEL|ADD|REM|TRIM|INCRBY)|HSETNX|EXPIRE|PUBLISH)'|ARGV)"
    r"|\b(?:changed|change_the_past|write_rows)\("
)
MAY_FAIL = re.compile(
    r"error_reply|\berror\(|tonumber\(|\b(?:limbs|signed|refusal|open_sum|expect_types|grown_rows|read_points|in_order)\("
    r"|string\.match|redis\.call\(\s*'(?:H?GET|HMGET|HGETALL|HKEYS|HLEN|HEXISTS|XRANGE|XLEN|ZCARD|ZRANGE\w*)'"
)
ANSWERS_ERRORS = {"write_report_limits", "read_report", "end_report", "read_used"}
"""Scripts of several keys, each of which is read or written apart: its error is part of the answer."""
BELIEVES_NOTHING = {"raise_fencing_token"}
"""Scripts that write over what they cannot read."""
NAMES = sorted(
    file.name.removesuffix(".lua")
    for file in files("timekeeper.ledger.scripts").iterdir()
    if file.name.endswith(".lua") and file.name not in SHARED
)


@pytest.fixture(params=EACH_REDIS)
def harness(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerHarness]:
    with harness_on(request.param, tmp_path, monkeypatch) as found:
        yield found


class Spoiler:
    """Tries each call on spoiled data before it is done."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.broke_off: Counter[str] = Counter()
        self.half_done: set[str] = set()

    def execute(self, do: Callable[..., Any], client: redis.Redis, chosen: Sequence[Call]) -> Any:
        for call in chosen:
            if self.tried[call.script] < CALLS_OF_EACH:
                self.tried[call.script] += 1
                self._try(client, call)
        return do(client, chosen)

    def _try(self, client: redis.Redis, call: Call) -> None:
        found = TAG.search(call.keys[0])
        assert found is not None
        beside = sorted({*a_few_of_each_kind(client.keys(f"fairgpu:{found[0]}:*")), *call.keys})
        good = {key: client.dump(key) for key in beside}
        for key in beside:
            for what, spoil in spoilings(client, key):
                spoil()
                self._run(client, call, f"{call.script}: {what}", beside)
                restore(client, beside, good)

    def _run(self, client: redis.Redis, call: Call, what: str, beside: Sequence[str]) -> None:
        before = [client.dump(key) for key in beside]
        try:
            client.eval(script(call.script).text, len(call.keys), *call.keys, *call.arguments)
        except redis.ResponseError:
            self.broke_off[call.script] += 1
            if [client.dump(key) for key in beside] == before:
                return
            now = [content(client, key) for key in beside]
            restore(client, beside, dict(zip(beside, before, strict=True)))
            if now != [content(client, key) for key in beside]:
                self.half_done.add(what)


def content(client: redis.Redis, key: str) -> Any:
    """The value of a key, without the order in which a hash happens to hold its fields."""
    kind = client.type(key)
    if kind == b"hash":
        return client.hgetall(key)
    return client.xrange(key) if kind == b"stream" else client.dump(key)


def a_few_of_each_kind(found: Sequence[bytes]) -> set[str]:
    """The latest two of keys that differ by their numbers alone."""
    kinds: dict[str, list[str]] = {}
    for key in sorted(key.decode() for key in found):
        kinds.setdefault(re.sub(r"\d+", "", key), []).append(key)
    return {key for kind in kinds.values() for key in kind[-2:]}


def spoilings(client: redis.Redis, key: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Ways to spoil a key, each with words for it."""
    name = re.sub(r"\{.*\}|\d{5,}", "", key)
    kind = client.type(key)
    if kind != b"string":
        yield f"{name} is a string", lambda: (client.delete(key), client.set(key, "text"))
    else:
        for broken in BROKEN:
            yield f"{name} is {broken!r}", lambda broken=broken: client.set(key, broken)
    if kind != b"list":
        yield f"{name} is a list", lambda: (client.delete(key), client.rpush(key, "text"))
    if kind == b"hash":
        yield f"{name} has a field more", lambda: client.hset(key, "nonsense", "nonsense")
        for field in sorted(client.hkeys(key))[:FIELDS_OF_EACH]:
            for broken in BROKEN:
                yield (
                    f"{name} {field!r} is {broken!r}",
                    lambda field=field, broken=broken: client.hset(key, field, broken),
                )
    if kind == b"zset":
        yield f"{name} has a member more", lambda: client.zadd(key, {"nonsense": 0})
    if kind == b"stream":
        yield f"{name} has an entry more", lambda: client.xadd(key, {"nonsense": "nonsense"})


def restore(client: redis.Redis, beside: Sequence[str], good: dict[str, Any]) -> None:
    pipeline = client.pipeline(transaction=False)
    pipeline.delete(*beside)
    for key in beside:
        if good[key] is not None:
            pipeline.restore(key, 0, good[key])
    pipeline.execute()


def use_all_scripts(harness: LedgerHarness) -> None:
    """Lives through everything that a script is there for."""
    client = harness.client
    old_store.begin(harness)
    reconciler = harness.lead(ControllerRules(bill=Bill.USED))
    harness.grant("gift", "research", 5, expiresAt="2027-01-01T00:00:00Z")
    harness.correct("again", "research", -1, harness.now)
    harness.reconcile()
    harness.pod("p1", "team-a")
    harness.reconcile()
    report(harness, "p1", 1, 0)
    ReportIntake(client).take([Submission("p1", "", 0, harness.now)])
    shared.write_fencing_token(client, reconciler.fencing_token, HeldTerm(reconciler.fencing_token))
    audit(
        AuditEnvironment(client, lambda: None, lambda: harness.now, lambda _: False), AuditRequest(patience_seconds=0)
    )
    old_store.usage(client)
    for file in (harness.folder / "pods").glob("*.json"):
        harness.remove(file.stem)
    harness.reconcile(HOUR)
    archivist = Archivist(client, harness.source, reconciler.books, reconciler.fencing_token, Retention(hourly_days=1))
    for _ in range(3):
        harness.reconcile(36 * HOUR)
        reconciler.books.finalized = []
        archivist.archive(harness.now)
    outbox.write(client, reconciler.fencing_token, 10, [outbox.Change("u", Announced(0, None, frozenset()), "news")])
    latest = reconciler.books.accounts["research"].version
    writing.restore(
        client,
        reconciler.fencing_token,
        harness.now,
        writing.Restoration("research", MONTH, MONTH + 31 * DAY, 10**12, 0, latest + 1, [], ""),
    )
    writing.note_restoring(client, reconciler.fencing_token, [writing.RestoringNote("research", MONTH, (MONTH, 1))])
    compaction.prune(client, reconciler.fencing_token, "daily", harness.now, [MONTH], harness.now)
    compaction.drop_account(client, reconciler.fencing_token, "daily", [])


def test_a_script_that_breaks_off_has_written_nothing(harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiler, do = Spoiler(), client._execute
    monkeypatch.setattr(client, "_execute", lambda client, chosen: spoiler.execute(do, client, chosen))
    use_all_scripts(harness)
    assert sorted(spoiler.tried) == NAMES
    assert sorted(spoiler.half_done) == []
    assert set(NAMES) - set(spoiler.broke_off) == ANSWERS_ERRORS | BELIEVES_NOTHING


@pytest.mark.parametrize("name", NAMES)
def test_a_script_reads_and_computes_nothing_that_may_fail_after_its_first_write(name: str) -> None:
    code = re.sub(r"--[^\n]*", "", files("timekeeper.ledger.scripts").joinpath(f"{name}.lua").read_text())
    code = re.sub(r"local function .*?\nend\n", "", code, flags=re.DOTALL)
    first = WRITES.search(code)
    after = code[first.end() :] if first else ""
    assert [found[0] for found in MAY_FAIL.finditer(after)] == []
