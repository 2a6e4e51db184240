from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tests.support.waiting import LIMIT_S
from timekeeper.api import reports
from timekeeper.api.problems import OverloadedError
from timekeeper.api.reports import MAX_BATCH, Batcher


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


class Store:
    """Doubles numbers; holds each batch until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def execute(self, items: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append(list(items))
        await self.open.wait()
        return [ValueError(f"{item} is odd") if item % 2 else item * 2 for item in items]


def test_reports_that_come_while_a_batch_is_under_way_go_out_together_and_in_order() -> None:
    async def work() -> None:
        store = Store()
        batcher = Batcher(store.execute)
        tasks = [asyncio.create_task(batcher.submit(0))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(batcher.submit(number)) for number in range(2, 2 * MAX_BATCH + 4, 2)]
        await asyncio.sleep(0)
        store.open.set()
        assert await asyncio.gather(*tasks) == [0, *range(4, 4 * MAX_BATCH + 8, 4)]
        assert [len(batch) for batch in store.batches] == [1, MAX_BATCH, 1]

    run(work())


def test_an_error_of_one_item_is_its_own() -> None:
    async def work() -> None:
        store = Store()
        store.open.set()
        batcher = Batcher(store.execute)
        good, bad = await asyncio.gather(batcher.submit(2), batcher.submit(3), return_exceptions=True)
        assert good == 4
        assert isinstance(bad, ValueError)

    run(work())


def test_a_batch_that_fails_fails_for_all_of_it_and_the_next_one_is_tried() -> None:
    async def work() -> None:
        failing = [OSError("gone")]

        async def execute(items: Sequence[int]) -> Sequence[int | Exception]:
            if failing:
                raise failing.pop()
            return items

        batcher = Batcher(execute)
        first = await asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True)
        assert [type(error) for error in first] == [OSError, OSError]
        assert await batcher.submit(3) == 3

    run(work())


def test_a_client_that_leaves_disturbs_nobody() -> None:
    async def work() -> None:
        store = Store()
        batcher = Batcher(store.execute)
        leaving, staying = asyncio.create_task(batcher.submit(2)), asyncio.create_task(batcher.submit(4))
        await asyncio.sleep(0)
        leaving.cancel()
        store.open.set()
        assert await staying == 8

    run(work())


def test_a_report_that_the_store_cannot_keep_up_with_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_WAITING", 2)

    async def work() -> None:
        store = Store()
        batcher = Batcher(store.execute)
        tasks = [asyncio.create_task(batcher.submit(0))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(batcher.submit(2)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await batcher.submit(4)
        store.open.set()
        assert await asyncio.gather(*tasks) == [0, 4, 4]

    run(work())
