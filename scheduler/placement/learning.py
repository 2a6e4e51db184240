"""Estimates the percent of a shared GPU that no later request will fit into, for each percent that is free now.

A small simulation fills empty GPUs with requests drawn from the mix, more than they can hold. Each request goes to the
GPU whose worth falls least by the last estimate. The estimate for a free percent is the mean percent that stays free at
the end on the GPUs that had that much free at some time. The simulation runs several rounds, since the estimate changes
where requests go; each round's estimate is averaged with the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

GPUS = 1000
LOAD_PERCENT = 130
ROUNDS = 5
DRAWN_AT_ONCE = 256
"""The requests that are drawn and placed between two pauses: about a millisecond of processor time."""
WASTE_WEIGHT = 8.0
"""The cost of a percent that no request will ever use, against the value of a percent that some request can use."""


def usable_share(percents: npt.NDArray[np.int64], shares: Floats) -> Floats:
    """Returns, for each percent from 0 to 100 that may be free on a GPU, the share of requests that would fit there.

    Args:
        percents: the percent of a GPU that each kind of request needs.
        shares: how frequent each kind of request is; a figure of the answer is the sum of these over the kinds that
            fit.
    """
    table = np.zeros(101)
    np.add.at(table, percents, shares)
    return np.cumsum(table)


def learn_waste(
    demands: list[tuple[int, float]],
    random: np.random.Generator,
    pause: Callable[[], object] = lambda: None,
    gpus: int = GPUS,
) -> Floats:
    """Returns, for each percent that may be free on a GPU, the percent that later requests are expected never to use.

    Args:
        demands: pairs of a percent of a GPU that requests need, and its weight: how frequent it is beside the others.
        random: draws the requests of the simulation.
        pause: called before every DRAWN_AT_ONCE requests, so that other threads can have the processor.
        gpus: the number of GPUs that the simulation fills.

    Returns:
        101 figures, for 0 to 100 percent that are free. The last one, for an empty GPU, is 0.
    """
    waste = np.zeros(101)
    if not demands:
        return waste
    percents = np.array([percent for percent, _ in demands])
    shares = np.array([share for _, share in demands])
    levels = np.arange(101)
    usable = levels * usable_share(percents, shares)
    for number in range(ROUNDS):
        found = _simulate(demands, usable - WASTE_WEIGHT * waste, random, pause, gpus)
        waste = found if number == 0 else (waste + found) / 2
        waste[100] = 0.0
    return waste


def _simulate(
    demands: list[tuple[int, float]],
    value: Floats,
    random: np.random.Generator,
    pause: Callable[[], object],
    gpus: int,
) -> Floats:
    """Runs the simulation once; returns the mean percent that stayed free, for each level from 0 to 100 percent free.

    A level's mean is over the GPUs that had that much free at some time. A level that no GPU had gets a mean on the
    line between those of the nearest levels that some had, or that of the lowest such level if it lies below. No mean
    is above its level.

    Args:
        demands: pairs of a percent of a GPU that requests need, and its weight: how frequent it is beside the others.
        value: the worth of a GPU of which 0 to 100 percent are free; a request goes to the GPU whose worth falls least.
        random: draws the requests.
        pause: called before every DRAWN_AT_ONCE requests.
        gpus: the number of GPUs to fill.
    """
    percents = np.array([percent for percent, _ in demands])
    weights = np.array([share for _, share in demands])
    gain = {percent: value[: 101 - percent] - value[percent:] for percent in percents.tolist()}
    # The levels that each GPU passed, by the level that it is at.
    at_level: list[list[list[int]]] = [[] for _ in range(101)]
    at_level[100] = [[100] for _ in range(gpus)]
    # Added to the gain of each level: 0 where a GPU is at it, else minus infinity, so that it is never chosen.
    closed = np.full(101, -np.inf)
    closed[100] = 0.0
    missing = gpus * LOAD_PERCENT
    while missing > 0:
        pause()
        for percent in random.choice(percents, DRAWN_AT_ONCE, p=weights / weights.sum()).tolist():
            missing -= percent
            gains = gain[percent] + closed[percent:]
            best = int(gains.argmax())
            level = best + percent
            if not at_level[level]:
                continue
            passed = at_level[level].pop()
            passed.append(best)
            at_level[best].append(passed)
            closed[best] = 0.0
            if not at_level[level]:
                closed[level] = -np.inf
    total, passes = np.zeros(101), np.zeros(101)
    for level, gpus_at in enumerate(at_level):
        for passed in gpus_at:
            total[passed] += level
            passes[passed] += 1
    # A level that no GPU passed lies between those that some did, or below them all.
    known = np.flatnonzero(passes)
    return np.minimum(np.interp(np.arange(101), known, total[known] / passes[known]), np.arange(101))
