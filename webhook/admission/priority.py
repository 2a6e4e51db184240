"""The priority of a GPU pod: class, value and preemption policy, which must match.

The API server's priority admission runs before webhooks and again after them, and refuses a pod whose value or policy
is not the one of its class (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#priority).
"""

from __future__ import annotations

from typing import Any, Final

from fairgpu.faults import Fault, field_path, show
from webhook.admission.json_patch import Operation, set_field
from webhook.admission.knowledge import Knowledge, PriorityClass
from webhook.settings import Priorities

FIELD: Final = "priorityClassName"


def earned_class(settings: Priorities, knowledge: Knowledge, *, over: bool) -> PriorityClass:
    """Returns the priority class that a pod earns according to its budget, with its value and preemption policy.

    The value and the policy are those of the cluster's class; if the cluster lacks the class, the settings give them.

    Args:
        settings: the admin's settings of priority classes, with the names of the two classes.
        knowledge: the priority classes of the cluster.
        over: whether the pod is over budget.
    """
    name = settings.over_budget_class if over else settings.in_budget_class
    live = knowledge.classes.get(name)
    if live is not None:
        return live
    value = settings.over_budget_value if over else settings.in_budget_value
    return PriorityClass(name, value, "PreemptLowerPriority" if settings.preemption == "scheduler" else "Never")


def keeps_own(spec: dict[str, Any], settings: Priorities, knowledge: Knowledge) -> bool:
    """Returns whether the pod keeps its author's priority class: the settings list it, and it is not the default class.

    Args:
        spec: the pod's spec, as JSON.
        settings: the admin's settings of priority classes, with the classes to keep.
        knowledge: the name of the cluster's default class, which no pod keeps.
    """
    given = spec.get(FIELD)
    return isinstance(given, str) and given in settings.keep and given != knowledge.default_class


def faults_of_class(
    spec: dict[str, Any], settings: Priorities, knowledge: Knowledge, root: tuple[str | int, ...]
) -> tuple[Fault, ...]:
    """Returns the fault of the priority class that a GPU pod names, if the class is not allowed; else empty.

    Allowed are FairGPU's two classes, the cluster's default class and the classes that the settings keep.

    Args:
        spec: the pod's spec, as JSON.
        settings: the admin's settings of priority classes.
        knowledge: the name of the cluster's default class.
        root: the field path of a pod template in its object; empty for a pod.
    """
    given = spec.get(FIELD)
    if given is None or given == "" or not isinstance(given, str):
        return ()
    ours = (settings.in_budget_class, settings.over_budget_class)
    if given in ours or given == knowledge.default_class or given in settings.keep:
        return ()
    kept = f", or one of {', '.join(settings.keep)}" if settings.keep else ""
    return (
        Fault(
            path=field_path(*root, "spec", FIELD),
            given=show(given),
            allowed=f"none, as the budget decides between {ours[0]} and {ours[1]}{kept}",
            instead="nothing there; what goes first within a namespace is said by fairgpu.io/task-priority",
        ),
    )


def set_class(spec: dict[str, Any], wanted: PriorityClass) -> list[Operation]:
    """Returns the JSON Patch operations that give a pod a priority class, with its value and preemption policy."""
    return [
        *set_field(spec, "/spec", FIELD, wanted.name),
        *set_field(spec, "/spec", "priority", wanted.value),
        *set_field(spec, "/spec", "preemptionPolicy", wanted.preemption_policy),
    ]
