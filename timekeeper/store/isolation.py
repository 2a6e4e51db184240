"""Keeps what is wrong with one account's data from stopping the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import redis

from timekeeper.store.calls import FencedError, StoreUnavailableError

_WRONG_TYPE = re.compile(r"(^|caused error: )WRONGTYPE ")
"""The text by which Redis, and redis-py's pipelines, say that a key holds another type."""


def concerns_all(error: Exception) -> bool:
    """Whether an error is the store's or the term's, and would meet every account."""
    if isinstance(error, redis.RedisError):
        return _WRONG_TYPE.search(str(error)) is None
    return isinstance(error, FencedError | StoreUnavailableError)


def each_apart(names: Iterable[str], act: Callable[[list[str]], object]) -> dict[str, Exception]:
    """Acts on accounts together and, where that fails by the data of some of them, on halves, down to single ones.

    Args:
        names: the accounts.
        act: what is done with several of them; it may be repeated.

    Returns:
        The accounts with which it failed, each with its error. An error that concerns all is raised.
    """
    failed: dict[str, Exception] = {}
    groups = [sorted(names)]
    while groups:
        group = groups.pop()
        try:
            act(group)
        except Exception as error:
            if not group or concerns_all(error):
                raise
            if len(group) == 1:
                failed[group[0]] = error
            else:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
    return failed
