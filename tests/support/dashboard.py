"""Fills a Redis with the figures of a whole cluster for the dashboard, as the timekeeper's leader would write them."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from fairgpu.states import BudgetState
from tests.support.ledger.stored_hours import write_rows
from timekeeper.domain.attribution import Attribution
from timekeeper.domain.sessions import Session
from timekeeper.ledger import keys, shared, writing
from timekeeper.ledger.codec import encode_session
from timekeeper.ledger.totals import Summary, encode_summary

EPOCH = 1
SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
GPU_HOUR = 3_600_000_000
GPU = 1_000_000


@dataclass(frozen=True, slots=True)
class Team:
    """A budget of one namespace with its pods; amounts are in GPU-hours.

    Attributes:
        available: the allowance; None for no limit.
        spent: the part that is spent.
        gpus: the number of GPUs that the pods hold now.
    """

    name: str
    available: float | None
    spent: float
    gpus: float
    enforcement: str = "enforce"
    on_exhausted: BudgetState = BudgetState.OVER
    pods: tuple[str, ...] = ()
    utilisation: float | None = None
    """The used part of its reservations, from 0 to 1; None if its pods send no reports."""
    model: str = "A100"


CLUSTER_GPUS = 64
TEAMS = (
    Team("vision-research", 6000, 3120, 9.5, pods=("resnet-sweep-0", "resnet-sweep-1", "dino-0"), utilisation=0.61),
    Team("language-models", 12000, 9650, 24, pods=("llm-pretrain-0", "llm-eval-7"), utilisation=0.95, model="H100"),
    Team("speech", 2400, 2431, 3, pods=("whisper-finetune-0",), utilisation=0.66),
    Team("robotics", 1800, 640, 2.5, pods=("sim-rollout-3", "policy-train-0"), utilisation=0.22, model="L40S"),
    Team("drug-discovery", 4000, 1480, 6, pods=("docking-12", "alphafold-4"), utilisation=0.7),
    Team("recommendations", 3000, 2790, 5.5, pods=("two-tower-2",), utilisation=0.3),
    Team("students", 200, 200, 0, on_exhausted=BudgetState.HELD, utilisation=0.18, model="L40S"),
    Team("fraud", 900, 260, 0.6, pods=("gnn-nightly-1",), utilisation=0.1, model="L40S"),
    Team("platform", None, 85, 0.4, pods=("dcgm-bench-0",), model="H100"),
    Team("weather", 1500, 410, 1.2, enforcement="observe", pods=("graphcast-0",), utilisation=0.5),
)


def period_of(now: int) -> tuple[int, int]:
    """Returns the start and end, in nanoseconds, of thirty days, of which some twenty are over at `now`."""
    start = now - now % DAY - 20 * DAY
    return start, start + 30 * DAY


def seed(client: redis.Redis, teams: Iterable[Team] = TEAMS, step_hours: int = 1) -> None:
    """Writes budgets with their pods, and the hours of use in their present period.

    Args:
        client: the store.
        teams: the budgets.
        step_hours: the hours between two hours with use.
    """
    now = time.time_ns()
    start, end = period_of(now)
    for number, team in enumerate(teams):
        running = _seed_team(client, team, number, (start, end), now)
        _seed_hours(client, team, (start, now), max(0, round(team.spent * GPU_HOUR) - running), step_hours)
    client.hset(keys.CAPACITY, str(start), str(CLUSTER_GPUS * GPU))


def many(count: int) -> list[Team]:
    """Returns `count` budgets with varied random figures, the same at each call."""
    chance = random.Random(7)
    teams = []
    for number in range(count):
        available = round(200 * math.exp(chance.gauss(1, 1)))
        spent = available * min(1.1, chance.betavariate(3, 3))
        teams.append(Team(f"team-{number:03d}", available, spent, round(chance.expovariate(0.5), 1), pods=("train-0",)))
    return teams


def _seed_team(client: redis.Redis, team: Team, number: int, period: tuple[int, int], now: int) -> int:
    """Writes a budget with its pods; returns the cost of the pods, in microGPU-seconds."""
    start, end = period
    pods = [_session(team, number, index, period, now) for index in range(len(team.pods))]
    amounts = [(now - pod.start) // SECOND * pod.tariff[0][1] for pod in pods]
    spent = round(team.spent * GPU_HOUR)
    writing.open_periods(client, EPOCH, now, [writing.Opening(team.name, start, end)])
    items = [
        writing.Item(
            pod.uid,
            amount,
            writing.LedgerAction.OPEN,
            namespace=pod.namespace,
            pod=pod.pod,
            record=encode_session(pod),
        )
        for pod, amount in zip(pods, amounts, strict=True)
    ]
    past = writing.Item(
        f"past-{number}", max(0, spent - sum(amounts)), writing.LedgerAction.CLOSE, writing.Kind.CLOSE, team.name
    )
    writing.write_settlements(
        client, writing.Revision(EPOCH, 1), now, [writing.SettlementBatch(team.name, start, [past, *items])]
    )
    if pods:
        shared.index_sessions(client, EPOCH, [(pod.uid, team.name) for pod in pods], [])
    shared.write_assignments(client, EPOCH, {team.name: ((0, team.name),)})
    available = None if team.available is None else round(team.available * GPU_HOUR)
    summary = Summary(
        name=team.name,
        namespaces=(team.name,),
        state=state_of(team),
        enforcement=team.enforcement,
        period_start=start,
        period_end=end,
        granted=0,
        available=available,
        spent=spent,
        rate=round(team.gpus * GPU),
        exhausted_at=now - 3 * HOUR if team.available is not None and team.spent >= team.available else None,
    )
    writing.publish_accounts(client, EPOCH, [writing.Publication(team.name, start, None, encode_summary(summary))])
    for pod, amount in zip(pods, amounts, strict=True):
        if team.utilisation is not None:
            _seed_report(client, pod.uid, round(amount * team.utilisation) * 1000, now)
    return sum(amounts)


def _session(team: Team, number: int, index: int, period: tuple[int, int], now: int) -> Session:
    rate = round(team.gpus * GPU / len(team.pods))
    name = team.pods[index]
    held = Attribution(team.model, f"Job/{name}", f"{team.name}@lab", (), rate * 95 // 100, rate * 8 // 10)
    return Session(
        f"0b1c2d3e-0000-4000-8000-{number:06d}{index:06d}",
        team.name,
        name,
        f"gpu-node-{(number + index) % 6 + 1}",
        max(period[0], now - (index + 2) * 5 * HOUR),
        ((period[0], rate),),
        attribution=held,
    )


def _seed_report(client: redis.Redis, uid: str, busy_ns: int, now: int) -> None:
    client.hset(keys.report(uid), mapping={"at": str(now - 20 * SECOND), "used": str(busy_ns // 1000)})


def _seed_hours(client: redis.Redis, team: Team, window: tuple[int, int], billed: int, step: int) -> None:
    """Spreads the amount `billed`, in microGPU-seconds, over the hours of a window, with less at night and at weekends.

    Args:
        window: the start and end of the window, in nanoseconds.
        step: the hours between two hours with use.
    """
    chance = random.Random(team.name)
    hours = range(window[0] // HOUR, window[1] // HOUR, step)
    if not hours:
        return
    weights = [_load(hour) * chance.uniform(0.6, 1.4) for hour in hours]
    rows = {}
    for hour, weight in zip(hours, weights, strict=True):
        amount = round(billed * weight / sum(weights))
        core = amount * 95 // 100
        used = "-" if team.utilisation is None else str(round(core * team.utilisation))
        place = [
            team.name,
            f"gpu-node-{hour // 24 % 6 + 1}",
            team.model,
            f"Job/train-{hour // 24 % 3}",
            f"{team.name}@lab",
        ]
        rows[hour, json.dumps(place, separators=(",", ":"))] = f"{amount} {core} {amount * 8 // 10} {used}"
    write_rows(client, team.name, rows)


def _load(hour: int) -> float:
    weekend = (hour // 24 + 4) % 7 in (0, 6)  # the first of January 1970 was a Thursday
    return (0.5 if weekend else 1.0) * (1.0 if 7 <= hour % 24 < 20 else 0.6)


def state_of(team: Team) -> BudgetState:
    """Returns the state that the next pod of a team meets."""
    if team.available is None:
        return BudgetState.UNLIMITED
    return BudgetState.OPEN if team.spent < team.available or team.enforcement == "observe" else team.on_exhausted
