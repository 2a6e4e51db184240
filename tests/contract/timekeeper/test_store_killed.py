from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import redis

from tests.support.randomness import chance
from tests.support.servers.redis_server import RedisServer
from tests.support.waiting import LIMIT_S
from timekeeper.domain.money import GPU_HOUR
from timekeeper.ledger import reading
from timekeeper.ledger.client import StoreError, StoreUnavailableError
from timekeeper.ledger.totals import PeriodTotals
from timekeeper.ledger.writing import (
    GrantEntry,
    Item,
    Kind,
    LedgerAction,
    Opening,
    Revision,
    SettlementBatch,
    apply_grants,
    open_periods,
    write_settlements,
)

WRITERS = 8
KILLS = 20 if os.environ.get("CI") == "true" else 4
SETTLEMENTS_BETWEEN_KILLS = 150
ACCOUNT, PERIOD = "team-a", 1_769_850_000_000_000_000


@dataclass
class Writer:
    """Settles sessions of its own as a leader does: with new revisions, and after a kill all of them once more.

    Redis acknowledges before it has synced, and where the disk is slow before it has written, so that a killed one may
    have forgotten the last two seconds.
    """

    number: int
    server: RedisServer
    ending: threading.Event
    acknowledged: threading.Semaphore
    amounts: dict[str, int] = field(default_factory=dict)
    grants: list[str] = field(default_factory=list)
    counter: int = 0
    failures: int = 0

    def run(self) -> None:
        random = chance(self.number)
        with self.server.client(socket_timeout=2.0, retry=None) as client:
            while not self.ending.is_set():
                uid = f"pod-{self.number}-{random.randrange(40)}"
                amount = self.amounts.get(uid, 0) + random.choice([1, 10**9 - 1, 10**14, 2**53 + 1])
                self.amounts[uid] = amount
                if random.random() < 0.04:
                    self.grants.append(f"grant-{self.number}-{len(self.grants)}")
                    self.until_acknowledged(client, {}, self.grants[-1:])
                action = random.choice([LedgerAction.HOLD, LedgerAction.POST])
                self.until_acknowledged(client, {uid: (amount, action)}, [])
                self.acknowledged.release()
            self.repeat_all(client)

    def until_acknowledged(
        self, client: redis.Redis, amounts: dict[str, tuple[int, LedgerAction]], grants: list[str]
    ) -> None:
        while True:
            try:
                for name in grants:
                    self.grant(client, name)
                for uid, (amount, action) in amounts.items():
                    self.counter += 1
                    self.settle(client, Item(uid, amount, action, Kind.HOURLY), self.counter)
            except StoreUnavailableError:
                self.failures += 1
                amounts = {uid: (amount, LedgerAction.HOLD) for uid, amount in self.amounts.items()}
                grants = self.grants
            else:
                return

    def repeat_all(self, client: redis.Redis) -> None:
        amounts = {uid: (amount, LedgerAction.POST) for uid, amount in self.amounts.items()}
        self.until_acknowledged(client, amounts, self.grants)

    def settle(self, client: redis.Redis, item: Item, counter: int) -> None:
        (answer,) = write_settlements(client, Revision(1, counter), PERIOD, [SettlementBatch(ACCOUNT, PERIOD, [item])])
        if isinstance(answer, StoreError):
            raise answer

    def grant(self, client: redis.Redis, name: str) -> None:
        (answer,) = apply_grants(client, 1, PERIOD, [GrantEntry(ACCOUNT, PERIOD, name, GPU_HOUR, "")])
        if isinstance(answer, StoreError):
            raise answer


def test_nothing_acknowledged_is_lost_and_nothing_counted_twice_when_redis_is_killed_under_eight_writers(
    redis_server: RedisServer,
) -> None:
    with redis_server.client() as client:
        open_periods(client, 1, PERIOD, [Opening(ACCOUNT, PERIOD, PERIOD + 10**15, checkpoint=2**53 + 1)])
    ending, acknowledged = threading.Event(), threading.Semaphore(0)
    writers = [Writer(number, redis_server, ending, acknowledged) for number in range(WRITERS)]
    threads = [threading.Thread(target=writer.run) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            for _ in range(SETTLEMENTS_BETWEEN_KILLS):
                assert acknowledged.acquire(timeout=LIMIT_S)
            redis_server.restart()
        for _ in range(SETTLEMENTS_BETWEEN_KILLS):
            assert acknowledged.acquire(timeout=LIMIT_S)
    finally:
        ending.set()
        for thread in threads:
            thread.join(LIMIT_S)
    with redis_server.client() as client:
        standing = reading.period_totals(client, ACCOUNT, PERIOD)
        stored = reading.stored_amounts(client, ACCOUNT, PERIOD)
        entries = reading.ledger_page(client, ACCOUNT, "", 1_000_000)
    expected = {uid: amount for writer in writers for uid, amount in writer.amounts.items()}
    assert isinstance(standing, PeriodTotals)
    assert {uid: found.amount for uid, found in stored.items()} == expected
    assert standing.total == 2**53 + 1 + sum(expected.values())
    assert standing.granted == sum(len(writer.grants) for writer in writers) * GPU_HOUR
    posted = sum(entry.amount for entry in entries if entry.kind != "grant")
    assert posted + sum(found.amount - found.posted for found in stored.values()) == standing.total
    assert sum(writer.failures for writer in writers) > 0
