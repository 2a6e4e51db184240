"""Computes the worth of a node's free parts: the larger it is, the more of the coming requests they can take.

The worth is V = U - 8 W - 0.2 S + 0.1 R, in percent of a GPU. U is the free part that a kind of requests can use; it is
summed over the kinds, each weighted by its share of all requests. W is the part of shared GPUs that is expected to stay
free for good. S is the free part for which the node has no processor time left. R is the free part of models that
requests ask for by name. The weights were found on the trace of Alibaba's GPU cluster of 2023
(https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scheduler.placement.fleet import NO_CLASS, DeviceClass, Ints
from scheduler.placement.learning import WASTE_WEIGHT, Floats, learn_waste
from scheduler.placement.mix import NEVER, Kind, Mix

STRANDED_WEIGHT = 0.2
NAMED_WEIGHT = 0.1
MAX_NAMED_SHARE = 3.0
STEP_PERCENT = 2 / 3
"""The step, in percent of a GPU, to which gains are rounded down, so that nodes of nearly equal gain are taken in
order."""
MAX_HOST_LEVELS = 40
MAX_SEVERAL = 8
"""The most entries of `Worth.several`: of the requests for several GPUs, only the most frequent kinds count."""
KINDS_AT_ONCE = 16
"""The kinds that are read between two pauses of learning: about a millisecond of processor time."""


@dataclass(frozen=True, slots=True)
class Several:
    """The kinds of requests for several GPUs that need the same number of GPUs and the same share of each.

    Attributes:
        gpus: the number of GPUs.
        percent: the percent of each GPU that they need, indexed by the device's class.
        share: a fraction of all pods, from 0 to 1, for each level of a node (`Worth.host_level`): the pods of these
            kinds for which the free processor time and memory of a node of this level suffice.
    """

    gpus: int
    percent: Ints
    share: Floats


@dataclass(frozen=True, slots=True)
class Worth:
    """The figures by which the worth of a node's free parts is computed, learned from a mix of requests.

    Attributes:
        cpu_levels, host_levels: the amounts of processor time (thousandths of a core) and memory (MiB) that kinds of
            requests need of the node, in increasing order.
        classes: the number of device classes.
        device: the part of a node's worth that one device accounts for, in percent of a GPU: a flat array over the
            node's level, the device's class and its free percent, in this order.
        several: the kinds of requests that need several GPUs.
        cpu_per_percent: the processor time (thousandths of a core) that requests ask for with each percent of a GPU; 0
            if that is not known.
    """

    cpu_levels: Ints
    host_levels: Ints
    classes: int
    device: Floats
    several: tuple[Several, ...]
    cpu_per_percent: float

    def host_level(self, cpu: Ints, host: Ints) -> Ints:
        """Returns each node's level: a number that says for which requests its processor time and memory suffice.

        The first index of `device`, and the index of `Several.share`, is such a level.

        Args:
            cpu: the free processor time of each node, in thousandths of a core.
            host: the free memory of each node, in MiB.
        """
        place = np.searchsorted(self.cpu_levels, cpu, "right") * (len(self.host_levels) + 1)
        return np.asarray(place + np.searchsorted(self.host_levels, host, "right"), np.int64)


def learn(
    mix: Mix,
    classes: Sequence[DeviceClass],
    capacity: Mapping[int, int],
    random: np.random.Generator,
    pause: Callable[[], object] = lambda: None,
) -> Worth:
    """Learns from the requests so far how to compute the worth of a node's free parts.

    It takes about a tenth of a second of a processor, and more where the requests are for small parts of a GPU.

    Args:
        mix: the requests so far, counted by kind.
        classes: the device classes, in the order of their indexes.
        capacity: the number of devices of each class, keyed by the class's index.
        random: draws the requests of the simulation.
        pause: called about once in a millisecond of processor time, so that other threads can have the processor.
    """
    pods = max(mix.pods, 1)
    kinds = [(kind, count / pods) for kind, count in mix.kinds]
    cpu_levels = _levels([kind.cpu_milli for kind, _ in kinds])
    host_levels = _levels([kind.host_mib for kind, _ in kinds])
    places = (len(cpu_levels) + 1, len(host_levels) + 1)
    single = np.zeros((*places, len(classes), 101), np.float32)
    several: dict[tuple[int, tuple[int, ...]], Floats] = {}
    common = max(capacity, key=lambda number: capacity[number], default=0)
    demands: dict[int, float] = {}
    demanded = 0.0
    for number, (kind, share) in enumerate(kinds):
        if number % KINDS_AT_ONCE == 0:
            pause()
        percents = tuple(kind.percent_of(device) for device in classes)
        cpu_from = int(np.searchsorted(cpu_levels, kind.cpu_milli)) + 1
        host_from = int(np.searchsorted(host_levels, kind.host_mib)) + 1
        if kind.gpus == 1:
            for cls, percent in enumerate(percents):
                single[cpu_from:, host_from:, cls, percent:] += share
        else:
            weights = several.setdefault((kind.gpus, percents), np.zeros(places))
            weights[cpu_from:, host_from:] += share
        usual = _usual(percents, common)
        demands[usual] = demands.get(usual, 0.0) + share * kind.gpus
        demanded += share * kind.gpus * usual
    levels, named = np.arange(101), _named(kinds, classes, capacity, demanded)
    waste = learn_waste(sorted(demands.items()), random, pause)
    most = sorted(several.items(), key=lambda item: float(item[1].max()), reverse=True)[:MAX_SEVERAL]
    return Worth(
        cpu_levels=cpu_levels,
        host_levels=host_levels,
        classes=len(classes),
        device=(levels * single + (NAMED_WEIGHT * named[:, None] * levels - WASTE_WEIGHT * waste)).ravel(),
        several=tuple(Several(gpus, np.array(percents, np.int32), share.ravel()) for (gpus, percents), share in most),
        cpu_per_percent=mix.cpu_milli / pods / demanded if demanded else 0.0,
    )


class Left(NamedTuple):
    """The free parts of nodes as arrays: a row is a node.

    Attributes:
        cls: the class of each device of the node, as an index.
        idle: the free percent of each device of the node.
        cpu: the free processor time of the node, in thousandths of a core.
        host: the free memory of the node, in MiB.
    """

    cls: Ints
    idle: Ints
    cpu: Ints
    host: Ints


def values(worth: Worth, left: Left) -> Floats:
    """Returns the worth of each node's free parts, in percent of a GPU: the more later requests fit, the larger.

    Args:
        worth: the learned figures.
        left: the free parts of the nodes.
    """
    left = _in_learned_classes(worth, left)
    place = worth.host_level(left.cpu, left.host)
    return np.asarray(
        _of_device(worth, left.cls, left.idle, place).sum(axis=1)
        + _used_by_several(worth, left.cls, left.idle, place)
        - _stranded(worth, left.idle.sum(axis=1), left.cpu)
    )


def single_gains(worth: Worth, left: Left, now: Floats, after: Left) -> Floats:
    """Returns, for each device of each node, the change in the node's worth if a request takes its part of that device.

    Args:
        left: the free parts now.
        now: the worth of the nodes now, as `values` returns it.
        after: the free parts of the node, and of each device, once the request has taken that device.
    """
    left = _in_learned_classes(worth, left)
    cls, idle, then = left.cls, left.idle, after.idle
    place = worth.host_level(after.cpu, after.host)
    kept, changed = _of_device(worth, cls, idle, place), _of_device(worth, cls, then, place)
    gains = kept.sum(axis=1)[:, None] - kept + changed
    gains += _used_by_several_but_one(worth, left, then, place)
    gains -= _stranded(worth, idle.sum(axis=1)[:, None] - idle + then, after.cpu[:, None])
    return np.asarray(gains - now[:, None])


def device_gains(worth: Worth, left: Left, then: Ints) -> Floats:
    """Returns, for each device of each node, the change in the node's worth if less is free of that device alone.

    Args:
        left: the free parts now.
        then: the percent that would be free of each device, at most the percent that is free now.
    """
    left = _in_learned_classes(worth, left)
    place, total = worth.host_level(left.cpu, left.host), left.idle.sum(axis=1)
    at = (place[:, None] * worth.classes + left.cls) * 101
    gains = worth.device.take(at + then)
    gains -= worth.device.take(at + left.idle)
    if worth.several:
        gains += _used_by_several_but_one(worth, left, then, place)
        gains -= _used_by_several(worth, left.cls, left.idle, place)[:, None]
    stranded = _stranded(worth, total, left.cpu)
    # A node on which nothing is stranded now has nothing stranded with less left, either.
    if stranded.any():
        gains -= _stranded(worth, total[:, None] - left.idle + then, left.cpu[:, None]) - stranded[:, None]
    return np.asarray(gains)


def host_parts(worth: Worth, left: Left) -> tuple[Ints, Ints]:
    """Returns two numbers for each node by which its processor time and memory affect gains.

    The first is the node's level (`Worth.host_level`). The second is its free processor time, in thousandths of a core,
    if that is too little for its free GPUs, and else -1. Nodes that agree in both numbers, in their devices and in the
    free parts of these have the same gains.

    Args:
        left: the free parts of the nodes.
    """
    place = worth.host_level(left.cpu, left.host)
    # Where nothing is stranded now, nothing is with less left, however much processor time there is.
    return place, np.where(_stranded(worth, left.idle.sum(axis=1), left.cpu) > 0, left.cpu, -1)


def numbered(*parts: Ints) -> Ints:
    """Returns a number for each index of some arrays of the same length, equal where all arrays have equal values.

    It serves to group nodes that agree in several properties, each of which is an array with an item for each node. The
    numbers are at least 0, and less than the length of the arrays.
    """
    number = np.zeros(len(parts[0]), np.int64)
    for part in parts:
        found, own = np.unique(part, return_inverse=True)
        if len(found) > 1:
            number = np.unique(number * len(found) + own, return_inverse=True)[1]
    return number


def rounded(gains: Floats) -> Floats:
    """Returns gains, which are in percent of a GPU, as whole numbers of steps of STEP_PERCENT, rounded down.

    So nodes with nearly equal gains count as equal.
    """
    return np.asarray(np.floor(gains / STEP_PERCENT + 1e-9))


def _in_learned_classes(worth: Worth, left: Left) -> Left:
    """Returns the free parts of nodes (`left`), with NO_CLASS for devices of classes that came after the learning.

    Such devices have no worth yet, since no request is known to use them.
    """
    unknown = left.cls >= worth.classes
    return left._replace(cls=np.where(unknown, NO_CLASS, left.cls)) if unknown.any() else left


def _of_device(worth: Worth, cls: Ints, idle: Ints, place: Ints) -> Floats:
    """Returns the part of the node's worth that each device accounts for by itself.

    Args:
        cls: the class of each device.
        idle: the free percent of each device.
        place: the level of each node (`Worth.host_level`).
    """
    return np.asarray(worth.device.take((place[:, None] * worth.classes + cls) * 101 + idle))


def _used_by_several(worth: Worth, cls: Ints, idle: Ints, place: Ints) -> Floats:
    used = np.zeros(len(idle))
    for kinds in worth.several:
        fits = idle >= kinds.percent[cls]
        used += kinds.share[place] * (fits.sum(axis=1) >= kinds.gpus) * (idle * fits).sum(axis=1)
    return used


def _used_by_several_but_one(worth: Worth, left: Left, then: Ints, place: Ints) -> Floats:
    """Returns, for each device, the worth that its node has for requests of several GPUs once that device has changed.

    The other devices of the node stay as they are.

    Args:
        worth: the learned figures.
        left: the free parts before the change.
        then: the free percent of each device after the change.
        place: the level of each node (`Worth.host_level`).
    """
    used = np.zeros(then.shape)
    for kinds in worth.several:
        percent = kinds.percent[left.cls]
        fits, fits_then = left.idle >= percent, then >= percent
        count = fits.sum(axis=1, dtype=np.int32)[:, None] - (fits ^ fits_then)
        now = np.where(fits, left.idle, 0)
        amount = now.sum(axis=1)[:, None] - now + np.where(fits_then, then, 0)
        used += np.where(count >= kinds.gpus, kinds.share[place][:, None] * amount, 0.0)
    return used


def _stranded(worth: Worth, total: Ints, cpu: Ints) -> Floats:
    if not worth.cpu_per_percent:
        return np.zeros(np.broadcast_shapes(total.shape, cpu.shape))
    return np.asarray(STRANDED_WEIGHT * np.maximum(0.0, total - cpu / worth.cpu_per_percent))


def _levels(amounts: Sequence[int]) -> Ints:
    """Returns the distinct amounts in increasing order, as the bounds of levels (`Worth.host_level`).

    If there are more than MAX_HOST_LEVELS of them, it returns at most MAX_HOST_LEVELS quantiles of the amounts.
    """
    found = sorted(set(amounts))
    if len(found) > MAX_HOST_LEVELS:
        ranked = sorted(amounts)
        found = sorted({ranked[(len(ranked) - 1) * at // (MAX_HOST_LEVELS - 1)] for at in range(MAX_HOST_LEVELS)})
    return np.array(found, np.int64)


def _usual(percents: tuple[int, ...], common: int) -> int:
    """Returns the percent of a GPU that a kind of requests takes on the most common class of device.

    If the kind cannot use that class, it is the percent on the first class that the kind can use; 100 without such a
    class.

    Args:
        percents: the percent on each class; NEVER on one that the kind cannot use.
        common: the index of the class of which there are the most devices.
    """
    if common < len(percents) and percents[common] < NEVER:
        return percents[common]
    return next((percent for percent in percents if percent < NEVER), 100)


def _named(
    kinds: Sequence[tuple[Kind, float]], classes: Sequence[DeviceClass], capacity: Mapping[int, int], demanded: float
) -> Floats:
    """Returns, for each device class, the fraction of its devices that requests by model take in a full cluster.

    A request by model allows or excludes models of GPUs by their names. The fraction is above 1 if such requests ask
    for more devices than the class has. It is at most MAX_NAMED_SHARE.

    Args:
        kinds: each kind of requests with its fraction of all pods.
        classes: the device classes, in the order of their indexes.
        capacity: the number of devices of each class, keyed by the class's index.
        demanded: the percent of a GPU that a pod asks for on average, summed over its GPUs.
    """
    named = np.zeros(len(classes))
    devices = sum(capacity.values())
    for kind, share in kinds:
        if not kind.use_models and not kind.avoid_models:
            continue
        fitting = {n: count for n, count in capacity.items() if kind.percent_of(classes[n]) < NEVER}
        room = sum(fitting.values())
        for number in fitting:
            # The requests are taken to use the same part of each device of these classes.
            named[number] += share * kind.gpus * kind.percent_of(classes[number]) / demanded * devices / room
    return np.minimum(named, MAX_NAMED_SHARE)
