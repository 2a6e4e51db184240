"""Gathers items that arrive while one round trip is under way, so that the next one carries all of them.

Alone, an item goes out at once; under load, hundreds share one write to the store. No timer adds a delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 256
MAX_WAITING = 8192
"""The most items that wait; beyond it the store does not keep up, and further items are refused at once."""


class OverloadedError(RuntimeError):
    """The error of an item that was not accepted because too many items wait."""


class Batcher(Generic[Item, Result]):
    """Gathers items and passes them to a function in batches, one batch at a time, in the order of arrival."""

    def __init__(
        self,
        execute: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        observe: Callable[[float], None] = lambda _size: None,
    ) -> None:
        """Makes a batcher without items.

        Args:
            execute: returns the result or the error of each item; an error that it raises is that of all items.
            observe: receives the size of each batch.
        """
        self._execute = execute
        self._observe = observe
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Submits one item and waits for its result.

        Raises:
            OverloadedError: too many items are waiting.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} requests are waiting for the store already")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                self._observe(len(batch))
                await self._deliver(batch)
        finally:
            self._running = None

    async def _deliver(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._execute([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - every waiting caller gets the error
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # the caller has left
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
