"""Writes the books into a Redis as the timekeeper's leader would, through the store's own functions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from fairgpu.states import BudgetState, NamespaceState, encode_state
from timekeeper.domain.sessions import Session
from timekeeper.ledger import shared, writing
from timekeeper.ledger.codec import encode_session
from timekeeper.ledger.totals import Summary, encode_summary

EPOCH = 1
SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
END = START + 31 * 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with an open session."""

    uid: str
    namespace: str
    name: str
    rate: int = 1_000_000
    amount: int = 3_600_000_000


def seed_budget(
    client: redis.Redis,
    name: str,
    namespaces: Iterable[str],
    pods: Iterable[Pod] = (),
    available: int | None = 36_000_000_000,
    spent: int = 7_200_000_000,
) -> Summary:
    """Writes a budget with a period, its namespaces, open sessions and published figures; returns these figures.

    The part of `spent` that the pods have not spent is written as the sum of a checkpoint. Amounts are
    microGPU-seconds.
    """
    pods, namespaces = list(pods), tuple(namespaces)
    now = time.time_ns()
    before = max(0, spent - sum(pod.amount for pod in pods))
    writing.open_periods(client, EPOCH, now, [writing.Opening(name, START, END, before)])
    items = [
        writing.Item(
            uid=pod.uid,
            amount=pod.amount,
            action=writing.LedgerAction.OPEN,
            namespace=pod.namespace,
            pod=pod.name,
            record=encode_session(Session(pod.uid, pod.namespace, pod.name, "n1", START, ((START, pod.rate),))),
        )
        for pod in pods
    ]
    if items:
        batch = writing.SettlementBatch(name, START, items)
        writing.write_settlements(client, writing.Revision(EPOCH, 1), now, [batch])
        shared.index_sessions(client, 1, [(pod.uid, name) for pod in pods], [])
    shared.write_assignments(client, 1, dict.fromkeys(namespaces, ((0, name),)))
    state = BudgetState.UNLIMITED if available is None else BudgetState.OPEN if spent < available else BudgetState.OVER
    summary = Summary(name, namespaces, state, "enforce", START, END, 0, available, spent, 1_000_000, None)
    writing.publish_accounts(client, EPOCH, [writing.Publication(name, START, None, encode_summary(summary))])
    return summary


def post_entries(client: redis.Redis, account: str, uid: str, amounts: Iterable[int]) -> None:
    """Posts ledger entries of one session, whose amount grows to each of the given ones in turn."""
    for counter, amount in enumerate(amounts, start=2):
        item = writing.Item(uid, amount, writing.LedgerAction.POST, writing.Kind.HOURLY, "team-a", "train-0", "", "")
        revision = writing.Revision(EPOCH, counter)
        batch = writing.SettlementBatch(account, START, [item])
        writing.write_settlements(client, revision, time.time_ns(), [batch])


def publish(client: redis.Redis, states: Iterable[NamespaceState], new_id: str = "e1") -> shared.StatesVersion:
    """Publishes states under one new version; returns the version."""
    encoded = {state.namespace: json.dumps(encode_state(state)) for state in states}
    return shared.publish_states(client, EPOCH, new_id, encoded, shared.Terms({"*": 1.0}, "unlimited"))
