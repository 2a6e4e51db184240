"""Notes what the nodes have whenever that changes, so that what nobody holds of it can be told."""

from __future__ import annotations

from timekeeper.jobs.round.desk import Desk
from timekeeper.store import book
from timekeeper.usage.capacity import capacity_rate


def note_capacity(desk: Desk, now: int) -> None:
    """Writes down what the nodes have from now on, where that is not what this term wrote last.

    Raises:
        redis.RedisError: the store does not answer.
    """
    rate = capacity_rate(desk.source.mirrors.nodes.items())
    if rate != desk.capacity:
        book.write_capacity(desk.client, now, rate)
        desk.capacity = rate
