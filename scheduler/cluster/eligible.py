"""Finds the nodes on which a pod may run once there is room, according to kube-scheduler's rules.

kube-scheduler asks an extender only about nodes with enough free in sum. So it does not name a full node, even if
evictions would make room there. This module applies kube-scheduler's rules of unschedulable nodes, taints, node
selectors and required node affinity (https://kubernetes.io/docs/concepts/scheduling-eviction/). It also compares other
resources, such as `rdma/hca`: all but GPUs, processor time, memory and pods. Of each, a node must offer as much in all
as the pod requests. The plan of evictions later subtracts the amounts that other pods hold. Rules that depend on other
pods or on volumes are not applied: a pod with such rules is planned only on nodes that kube-scheduler has named for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from fairgpu import names
from fairgpu.demand import is_native_sidecar, peak
from fairgpu.json_values import mapping, mappings
from fairgpu.quantity import QuantityError, parse_quantity
from scheduler.placement.fleet import Flags, Ints

Json = Mapping[str, Any]

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""The taint of a cordoned node, which a pod may tolerate."""
COUNTED_ELSEWHERE = frozenset({"cpu", "memory", "pods", *names.CANONICAL_RESOURCES})
"""The resources that the fleet itself counts; a node's other resources do not include them."""
MOST = 1 << 62
"""The most of another resource that is counted, so that any amount fits into 64 bits."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Site:
    """A node's properties, besides its GPUs, processor time and memory, by which kube-scheduler decides on pods.

    Attributes:
        name: the node's name.
        labels: the node's labels.
        taints: the node's taints, as in its spec.
        unschedulable: whether the node is cordoned.
        pods: the largest number of pods that the node takes.
        others: the amounts that the node offers of other resources, keyed by resource, as `others_of` returns them.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()
    unschedulable: bool = False
    pods: int = 0
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a pod's spec that decides on which nodes it may run.

    Attributes:
        node_selector: the labels that a node must have.
        tolerations: the pod's tolerations of taints, as in its spec.
        node_terms: the terms of the required node affinity, of which a node must meet one; None if the pod has none.
        only_where_named: whether the pod is planned only on nodes that kube-scheduler has named for it. It is true if
            other pods, volumes, resource claims or the node's network also decide.
        others: pairs of another resource, such as `rdma/hca`, and the amount of it that the pod requests, ordered by
            name.
    """

    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    node_terms: tuple[Json, ...] | None = None
    only_where_named: bool = False
    others: tuple[tuple[str, int], ...] = ()


ANYWHERE = Rules()


def rules_of(spec: Json) -> Rules:
    """Returns the rules in a pod's spec that decide on which nodes the pod may run."""
    affinity = mapping(spec.get("affinity"))
    required = mapping(affinity.get("nodeAffinity")).get(REQUIRED)
    return Rules(
        mapping(spec.get("nodeSelector")),
        tuple(mappings(spec.get("tolerations"))),
        None if required is None else tuple(mappings(mapping(required).get("nodeSelectorTerms"))),
        any(mapping(affinity.get(kind)).get(REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))
        or any(
            one.get("whenUnsatisfiable") != "ScheduleAnyway" for one in mappings(spec.get("topologySpreadConstraints"))
        )
        or any("persistentVolumeClaim" in one or "ephemeral" in one for one in mappings(spec.get("volumes")))
        or bool(spec.get("resourceClaims"))
        or bool(spec.get("hostNetwork"))
        or any("hostPort" in port for container in _containers(spec) for port in mappings(container.get("ports"))),
        others_asked(spec),
    )


def others_of(amounts: Json) -> dict[str, int]:
    """Returns the positive amounts of other resources, keyed by resource; each is rounded up, and at most MOST.

    FairGPU's own resources, cpu, memory and pods are left out, and so are amounts that cannot be read.

    Args:
        amounts: quantities keyed by resource, as in a node's status or a container's requests.
    """
    others = amounts.keys() - COUNTED_ELSEWHERE
    return {str(name): amount for name in others if (amount := _amount(amounts[name]))} if others else {}


def others_asked(spec: Json) -> tuple[tuple[str, int], ...]:
    """Returns pairs of another resource and how much of it a pod asks for, sorted by resource.

    The amounts are those that kube-scheduler counts, at most MOST of each resource.

    Requests of the pod as a whole (`spec.resources`) replace the requests of its containers. Of the resources that are
    counted here, Kubernetes allows such requests for huge pages alone
    (https://github.com/kubernetes/kubernetes/blob/v1.34.2/staging/src/k8s.io/component-helpers/resource/helpers.go).
    """
    main = [_others_requested(container) for container in mappings(spec.get("containers"))]
    init = [(_others_requested(one), is_native_sidecar(one)) for one in mappings(spec.get("initContainers"))]
    overhead, whole = others_of(mapping(spec.get("overhead"))), _others_requested(spec)
    if not (overhead or whole or any(main) or any(one for one, _ in init)):
        return ()
    asked = {*overhead, *whole, *chain.from_iterable(main), *chain.from_iterable(one for one, _ in init)}
    amounts = {
        name: whole.get(name)
        or peak([one.get(name, 0) for one in main], [(one.get(name, 0), keeps) for one, keeps in init])
        for name in sorted(asked)
    }
    return tuple((name, min(amount + overhead.get(name, 0), MOST)) for name, amount in amounts.items())


def _others_requested(item: Json) -> dict[str, int]:
    """Returns the amounts of other resources in the requests of a container or of a whole pod, keyed by resource.

    Args:
        item: the container or the pod's spec, as JSON.
    """
    return others_of(mapping(mapping(item.get("resources")).get("requests")))


def _containers(spec: Json) -> Iterable[Json]:
    return chain(mappings(spec.get("containers")), mappings(spec.get("initContainers")))


def _amount(value: Any) -> int:
    return _amount_of(value if isinstance(value, str) else repr(value))


@lru_cache(maxsize=4096)
def _amount_of(text: str) -> int:
    try:
        return min(max(math.ceil(parse_quantity(text)), 0), MOST)
    except QuantityError:
        return 0


class Sites:
    """Finds the nodes that a pod's rules allow, by their taints, labels, names and other resources.

    A search takes a few operations for each rule. A pod's author decides how many rules it has: a pod of 1.5 MiB, the
    largest that etcd takes, has some 15,000 terms of node affinity. So each rule is looked up for all nodes at once.
    """

    def __init__(self, sites: Sequence[Site]) -> None:
        """Stores the nodes. `open_to` returns one flag for each node, in the order of `sites`."""
        count = len(sites)
        self._open = np.ones(count, np.bool_)
        keys = frozenset[str]().union(*(site.labels for site in sites))
        self._labels = _Values(count, keys, lambda at, key: sites[at].labels.get(key))
        self._fields = _Values(count, frozenset({"metadata.name"}), lambda at, _: sites[at].name)
        self._others: dict[str, Ints] = {}
        for at, site in enumerate(sites):
            for name, amount in site.others.items():
                if name not in self._others:
                    self._others[name] = np.zeros(count, np.int64)
                self._others[name][at] = amount
        self._tainted: dict[tuple[str, str, str], tuple[Json, list[int]]] = {}
        for at, site in enumerate(sites):
            for taint in (*site.taints, UNSCHEDULABLE) if site.unschedulable else site.taints:
                if taint.get("effect") in ("NoSchedule", "NoExecute"):
                    key = str(taint.get("key")), str(taint.get("value") or ""), str(taint["effect"])
                    self._tainted.setdefault(key, (taint, []))[1].append(at)

    def open_to(self, rules: Rules) -> Flags:
        """Returns, for each node in the order given to `Sites`, whether a pod with these rules may run on it.

        The pods that already run on a node are not considered.
        """
        flags = self._open.copy()
        for taint, places in self._tainted.values():
            if not any(_tolerates(toleration, taint) for toleration in rules.tolerations):
                flags[places] = False
        for name, amount in rules.others:
            offered = self._others.get(name)
            if offered is None:
                return np.zeros(len(flags), np.bool_)
            flags &= offered >= amount
        for key, value in rules.node_selector.items():
            flags &= self._labels.among(str(key), [value])
            if not flags.any():
                return flags
        if rules.node_terms is not None:
            met = np.zeros(len(flags), np.bool_)
            for term in rules.node_terms:
                self._add_term(term, met)
            flags &= met
        return flags

    def _add_term(self, term: Json, met: Flags) -> None:
        """Sets the flag in `met` of each node that meets all requirements of a term of the affinity.

        No node meets a term without requirements.
        """
        looks = [(self._labels, one) for one in mappings(term.get("matchExpressions"))]
        looks += [(self._fields, one) for one in mappings(term.get("matchFields"))]
        own = self._open
        for values, requirement in looks:
            own = own & values.meeting(requirement)
            if not own.any():
                return
        if looks:
            met |= own


class _Values:
    """Finds the nodes whose values meet a requirement of a node affinity.

    The values of a node are its labels in one instance, and its fields, such as `metadata.name`, in another. The nodes
    are found by the values of a key once a requirement names the key. Most labels are in no requirement.
    """

    def __init__(self, count: int, keys: AbstractSet[str], value_of: Callable[[int, str], str | None]) -> None:
        """Stores the number of nodes, their keys, and the function that returns a node's value of a key.

        The function takes the node's index and the key, and returns None for a node without the key.
        """
        self._none = np.zeros(count, np.bool_)
        self._keys = keys
        self._value_of = value_of
        self._places: dict[str, dict[str, list[int]]] = {}
        self._numbers: dict[str, tuple[Ints, Ints]] = {}

    def meeting(self, requirement: Json) -> Flags:
        """Returns, for each node, whether it meets a requirement (key, operator, values) of a node affinity."""
        key, operator = str(requirement.get("key")), requirement.get("operator")
        values = requirement.get("values") or []
        if operator == "In":
            return self.among(key, values)
        if operator == "NotIn":
            return ~self.among(key, values)
        if operator == "Exists":
            return self._having(key)
        if operator == "DoesNotExist":
            return ~self._having(key)
        if operator in ("Gt", "Lt") and len(values) == 1:
            return self._compared(key, _number(values[0]), 1 if operator == "Gt" else -1)
        return self._none

    def among(self, key: str, values: Iterable[Any]) -> Flags:
        """Returns, for each node, whether its value of a key is one of the given values; False without the key."""
        places = self._places_of(key)
        if not places:
            return self._none
        flags = self._none.copy()
        for value in values:
            if isinstance(value, str) and value in places:
                flags[places[value]] = True
        return flags

    def _having(self, key: str) -> Flags:
        places, _ = self._of(key)
        flags = self._none.copy()
        flags[places] = True
        return flags

    def _compared(self, key: str, limit: int | None, sign: int) -> Flags:
        _, numbers = self._of(key)
        flags = self._none.copy()
        if limit is not None and len(numbers):
            above = sign * numbers[:, 1] > sign * limit
            flags[numbers[above, 0]] = True
        return flags

    def _of(self, key: str) -> tuple[Ints, Ints]:
        """Returns the nodes that have a key, and the nodes whose value of the key is a whole number.

        The first array has the nodes' indexes. The second has a row of two for each node: the node's index and the
        number.
        """
        of_key = self._places_of(key)
        if not of_key:
            return _NOWHERE
        if key not in self._numbers:
            numbers = [(at, number) for text in of_key if (number := _number(text)) is not None for at in of_key[text]]
            having = np.array(list(chain.from_iterable(of_key.values())), np.int64)
            self._numbers[key] = having, np.array(numbers, np.int64).reshape(-1, 2)
        return self._numbers[key]

    def _places_of(self, key: str) -> dict[str, list[int]]:
        """Returns the indexes of the nodes that have a key, by its value; empty if no node has it."""
        if key in self._keys and key not in self._places:
            places: dict[str, list[int]] = {}
            for at in range(len(self._none)):
                value = self._value_of(at, key)
                if value is not None:
                    places.setdefault(value, []).append(at)
            self._places[key] = places
        return self._places.get(key, {})


_NOWHERE: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros((0, 2), np.int64))


def _number(text: Any) -> int | None:
    """Returns a text of digits, perhaps with a sign, as a whole number; None for any other text, such as `1_000`.

    The text is a label's value, or the value of a requirement. kube-scheduler takes the same texts for numbers. It also
    takes absolute values of 2^62 and more, for which the result is None
    (https://github.com/kubernetes/kubernetes/blob/v1.34.2/staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go).
    """
    if not isinstance(text, str) or _WHOLE.fullmatch(text) is None:
        return None
    number = int(text)
    return number if abs(number) < 1 << 62 else None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return not key or bool(key == taint.get("key"))
    same = key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Equal" and same)
