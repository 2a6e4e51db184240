"""Finds the nodes on which a pod may run once there is room, by kube-scheduler's rules.

kube-scheduler drops nodes that are short in aggregate before it asks an extender, so it never names a node full of
victims. Its rules of unschedulable nodes, taints, node selectors and required node affinity are applied here
(https://kubernetes.io/docs/concepts/scheduling-eviction/). Rules that depend on other pods or on volumes are not: a pod
with such rules is planned only on nodes that kube-scheduler has named for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairgpu.json_values import mapping, mappings

Json = Mapping[str, Any]

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
"""The taint of a cordoned node, which a pod may tolerate."""
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Site:
    """A node's properties that kube-scheduler's plugins check, beside its resources.

    Attributes:
        name: the node's name.
        labels: the node's labels.
        taints: the node's taints.
        unschedulable: whether it is cordoned.
        pods: the number of pods that it takes in all.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()
    unschedulable: bool = False
    pods: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of a pod's spec that decides on which nodes it may run.

    Attributes:
        node_selector: labels that a node must have.
        tolerations: the taints that it tolerates.
        node_terms: the terms of which a node must meet one; None where there are none.
        only_where_named: whether other pods or volumes decide where it may run.
    """

    node_selector: Json = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    node_terms: tuple[Json, ...] | None = None
    only_where_named: bool = False


ANYWHERE = Rules()


def rules_of(spec: Json) -> Rules:
    """Parses the rules of a pod's spec."""
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
        or bool(spec.get("hostNetwork")),
    )


def may_run(rules: Rules, site: Site) -> bool:
    """Whether a pod may run on a node, whatever else runs there."""
    taints: Iterable[Json] = (*site.taints, UNSCHEDULABLE) if site.unschedulable else site.taints
    return (
        all(site.labels.get(key) == value for key, value in rules.node_selector.items())
        and all(
            any(_tolerates(toleration, taint) for toleration in rules.tolerations)
            for taint in taints
            if taint.get("effect") in ("NoSchedule", "NoExecute")
        )
        and (rules.node_terms is None or any(_meets_term(term, site) for term in rules.node_terms))
    )


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return not key or bool(key == taint.get("key"))
    same = key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Equal" and same)


def _meets_term(term: Json, site: Site) -> bool:
    """Whether a node meets all of a term; no node meets an empty one."""
    expressions, fields = mappings(term.get("matchExpressions")), mappings(term.get("matchFields"))
    if not expressions and not fields:
        return False
    return all(_meets(one, site.labels.get(str(one.get("key")))) for one in expressions) and all(
        one.get("key") == "metadata.name" and _meets(one, site.name) for one in fields
    )


def _meets(requirement: Json, value: str | None) -> bool:
    values = requirement.get("values") or []
    meets: dict[str, Callable[[], bool]] = {
        "In": lambda: value in values,
        "NotIn": lambda: value not in values,
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: _compares(value, values, 1),
        "Lt": lambda: _compares(value, values, -1),
    }
    meets_operator = meets.get(str(requirement.get("operator")))
    return meets_operator is not None and meets_operator()


def _compares(value: str | None, values: Sequence[str], sign: int) -> bool:
    try:
        return value is not None and len(values) == 1 and sign * int(value) > sign * int(values[0])
    except ValueError:
        return False
