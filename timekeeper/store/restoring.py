"""Brings an account that went back to an earlier state up to a checkpoint, in one step that may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import redis

from timekeeper.store import keys
from timekeeper.store.calls import Call, run_one
from timekeeper.store.standing import Standing, read_standing


class GoneSession(NamedTuple):
    """A session whose pod is gone, and that nobody can compute again."""

    uid: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class Restoration:
    """What an account is brought up to.

    Attributes:
        period: start of the period.
        checkpoint: what was spent in it by sessions whose pods are gone and that are not computed again.
        apart: the part of what the store has as gone that is computed again.
        version: the account's when the checkpoint was taken.
        gone: the sessions of the period that the store does not have as gone, and that are not computed again.
        note: what the ledger says of it.
    """

    account: str
    period: int
    checkpoint: int
    apart: int
    version: int
    gone: Sequence[GoneSession]
    note: str


def restore(client: redis.Redis, epoch: int, now: int, wanted: Restoration) -> tuple[int, Standing]:
    """Restores a period; what was added beyond what its sessions have, and what it stands at.

    Raises:
        StoreError: it was refused, or Redis does not answer.
    """
    account, period = keys.AccountKeys(wanted.account), wanted.period
    sums, amounts = account.period(period), account.amounts(period)
    touched = (account.head, sums, amounts, account.sessions, account.ended, account.ledger, account.hours)
    checkpoint = (wanted.checkpoint, wanted.version, wanted.apart, wanted.note)
    sessions = (part for session in wanted.gone for part in session)
    added, *answer = run_one(client, Call("restore", touched, (epoch, now, period, *checkpoint, *sessions)))
    return int(added), read_standing(answer)
