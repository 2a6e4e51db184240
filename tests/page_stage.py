"""A cluster's worth of figures for the page, put into a Redis as the timekeeper's leader would."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from fairgpu.states import BudgetState
from timekeeper.metering.sessions import Session
from timekeeper.store import book, ledger
from timekeeper.store.records import encode_session
from timekeeper.store.summaries import Summary, encode_summary

EPOCH = 1
SECOND = 1_000_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
GPU_HOUR = 3_600_000_000
GPU = 1_000_000


@dataclass(frozen=True, slots=True)
class Team:
    """A budget of one namespace, in GPU-hours and GPUs."""

    name: str
    available: float | None
    spent: float
    gpus: float
    enforcement: str = "enforce"
    on_exhausted: BudgetState = BudgetState.OVER
    pods: tuple[str, ...] = ()


TEAMS = (
    Team("vision-research", 6000, 3120, 9.5, pods=("resnet-sweep-0", "resnet-sweep-1", "dino-pretrain-0")),
    Team("language-models", 12000, 9650, 24, pods=("llm-pretrain-0", "llm-pretrain-1", "llm-eval-7")),
    Team("speech", 2400, 2431, 3, pods=("whisper-finetune-0",)),
    Team("robotics", 1800, 640, 2.5, pods=("sim-rollout-3", "policy-train-0")),
    Team("drug-discovery", 4000, 1480, 6, pods=("docking-12", "alphafold-batch-4")),
    Team("recommendations", 3000, 2810, 5.5, pods=("two-tower-2",)),
    Team("students", 200, 200, 0, on_exhausted=BudgetState.HELD),
    Team("fraud", 900, 260, 0.6, pods=("gnn-nightly-1",)),
    Team("platform", None, 85, 0.4, pods=("dcgm-bench-0",)),
    Team("weather", 1500, 410, 1.2, enforcement="observe", pods=("graphcast-0",)),
)


def month_of(now: int) -> tuple[int, int]:
    """Start and end of the UTC month of an instant; all in nanoseconds."""
    today = time.gmtime(now // SECOND)
    start = now - (((today.tm_mday - 1) * 24 + today.tm_hour) * 60 + today.tm_min) * 60 * SECOND - today.tm_sec * SECOND
    start -= start % SECOND
    following = time.gmtime(start // SECOND + 32 * 86_400)
    return start, start + 32 * DAY - (following.tm_mday - 1) * DAY


def seed(client: redis.Redis, teams: Iterable[Team] = TEAMS) -> None:
    """Budgets with their pods, in the present month."""
    now = time.time_ns()
    start, end = month_of(now)
    for number, team in enumerate(teams):
        _seed_team(client, team, number, (start, end), now)


def many(count: int) -> list[Team]:
    """Budgets of every kind."""
    chance = random.Random(7)
    teams = []
    for number in range(count):
        available = round(200 * math.exp(chance.gauss(1, 1)))
        spent = available * min(1.1, chance.betavariate(3, 3))
        teams.append(Team(f"team-{number:03d}", available, spent, round(chance.expovariate(0.5), 1), pods=("train-0",)))
    return teams


def _seed_team(client: redis.Redis, team: Team, number: int, period: tuple[int, int], now: int) -> None:
    start, end = period
    pods = [
        Session(
            f"0b1c2d3e-0000-4000-8000-{number:06d}{index:06d}",
            team.name,
            pod,
            f"gpu-node-{(number + index) % 6 + 1}",
            max(start, now - (index + 2) * 9 * HOUR),
            ((start, round(team.gpus * GPU / len(team.pods))),),
        )
        for index, pod in enumerate(team.pods)
    ]
    amounts = [(now - pod.start) // SECOND * pod.tariff[0][1] for pod in pods]
    spent = round(team.spent * GPU_HOUR)
    ledger.open_periods(client, EPOCH, now, [ledger.Opening(team.name, start, end, max(0, spent - sum(amounts)))])
    items = [
        ledger.Item(
            pod.uid, amount, ledger.Action.OPEN, namespace=pod.namespace, pod=pod.pod, record=encode_session(pod)
        )
        for pod, amount in zip(pods, amounts, strict=True)
    ]
    if items:
        ledger.settle(client, ledger.Revision(EPOCH, 1), now, [ledger.Settlement(team.name, start, items)])
        book.index_sessions(client, [(pod.uid, team.name) for pod in pods], [])
    book.write_assignments(client, {team.name: ((0, team.name),)})
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
    ledger.publish_accounts(client, EPOCH, [ledger.Publication(team.name, start, None, encode_summary(summary))])


def state_of(team: Team) -> BudgetState:
    """What the next pod of a team meets."""
    if team.available is None:
        return BudgetState.UNLIMITED
    return BudgetState.OPEN if team.spent < team.available or team.enforcement == "observe" else team.on_exhausted
