"""Admits a new pod in the mode `account`: another stack schedules and runs it, and FairGPU marks it for its budget.

FairGPU adds the label of GPU pods, annotations with the budget's state and the pod's creator, a finalizer and a
priority class if the settings ask for them, and a scheduling gate while the budget holds new pods.
The pod's resources, scheduler, node and annotations for the other stack stay as they are.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from fairgpu import names
from fairgpu.asks import Asked, read_asked
from fairgpu.charging import GPU_SECOND
from fairgpu.existing import Existing
from fairgpu.faults import Fault, field_path, show
from fairgpu.json_values import mapping, mappings
from fairgpu.pod import PodReading
from fairgpu.pod_faults import out_of_bounds, oversized_pod
from fairgpu.states import BudgetState
from webhook.admission.budget import BudgetRequest, BudgetVerdict, evaluate_budget
from webhook.admission.checks import faults_of_copies
from webhook.admission.cost import ANY_MODEL, deadline_seconds
from webhook.admission.creation import LABELS, audit_of, creator, gate, keep_until_metered, label
from webhook.admission.json_patch import Operation, add, change_map
from webhook.admission.knowledge import DEFAULT_PRICES, BudgetStates, Knowledge
from webhook.admission.priority import FIELD, earned_class, keeps_own, set_class
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict, objects
from webhook.settings import Webhook

_NO_READING: Final = PodReading()
_CONTAINERS: Final = ("containers", "initContainers")


class AccountedRequest(BudgetRequest):
    """The GPU request of a pod whose devices another stack chooses. Admission assumes the most that the pod can cost.

    Attributes:
        asked: the GPUs that the pod asks for.
        classes: whether the pod gets the priority class of its budget's state.
    """

    def __init__(self, asked: Asked, deadline_seconds: int | None, *, classes: bool) -> None:
        super().__init__(_NO_READING, deadline_seconds)
        self.asked: Final = asked
        self.classes: Final = classes

    def highest(self, states: BudgetStates) -> int:
        """Returns the highest cost of the pod, in microGPU-seconds a second.

        Each GPU counts at the highest price, as its model is not known yet.
        """
        prices = [states.prices.get(ANY_MODEL, DEFAULT_PRICES[ANY_MODEL]), *states.prices.values()]
        return self.asked.rate(max(Fraction(str(price)) for price in prices), states.charge)

    def price(self, states: BudgetStates) -> str:
        """Returns the hourly price of the pod for a warning: its highest cost in GPU-hours, as `at most about 2`."""
        return f"at most about {self.highest(states) / GPU_SECOND:.3g}"

    def consequence(self, met: BudgetState) -> str:
        """Returns the effect of a budget's state on the pod, as the end of a sentence that begins with `the pod`.

        Args:
            met: the state of the pod's budget, OVER or HELD.
        """
        if met is BudgetState.OVER and not self.classes:
            return "is admitted all the same, and yields to no other: FairGPU gives no priority classes here"
        return super().consequence(met)


def admit_accounted(subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """Returns the verdict on a new pod in the mode `account`; a pod that asks for no GPU stays as it is.

    A pod that names FairGPU's own resources is refused.

    Args:
        subject: the request of the admission review, with the pod.
        knowledge: budgets, ResourceClaims and priority classes as last observed.
        settings: the webhook's settings.
        now: the present time, in seconds of the monotonic clock.
    """
    pod, existing = subject.item, settings.existing
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    asked = read_asked(pod, existing.names, settings.dialects.reading, _claims(subject, spec, knowledge))
    faults = faults_of_own_requests(spec)
    if asked is None:
        return Verdict(faults=faults) if faults else UNTOUCHED
    states = settings.states
    request = AccountedRequest(asked, deadline_seconds(spec), classes=_gives_class(existing, spec, settings, knowledge))
    budget = evaluate_budget(
        subject.namespace, knowledge.states, request, states.when_unknown, states.stale_after_seconds, now
    )
    faults = (
        *oversized_pod(subject.size, spec),
        *out_of_bounds(metadata, ()),
        *faults_of_copies(spec, ()),
        *faults,
        *(_faults_of_held_pod(spec, existing.gated_schedulers) if budget.held else ()),
        *budget.faults,
    )
    if faults:
        return Verdict(faults=faults)
    operations = _annotate(subject, budget)
    operations += label(pod)
    operations += keep_until_metered(pod, holds=settings.end_proof == "finalizer")
    if request.classes:
        operations += set_class(spec, earned_class(settings.priorities, knowledge, over=budget.over))
    operations += gate(spec, held=budget.held)
    return Verdict(operations=tuple(operations), warnings=budget.warnings, audit=audit_of(budget))


def faults_of_own_requests(spec: dict[str, Any]) -> tuple[Fault, ...]:
    """Returns a fault for each of FairGPU's own resources that a container of the pod limits or requests.

    The mode `account` refuses these resources, since FairGPU's node agent gives no devices to pods in that mode.
    """
    faults = []
    for field in _CONTAINERS:
        for index, container in objects(spec.get(field)):
            resources = mapping(container.get("resources"))
            limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
            for resource in names.CANONICAL_RESOURCES:
                if resource not in limits and resource not in requests:
                    continue
                kind = "limits" if resource in limits else "requests"
                path = field_path("spec", field, index, "resources", kind, resource)
                given = show(limits.get(resource, requests.get(resource)))
                allowed = f"what the stack of the namespace's GPUs offers: its mode is account ({names.NAMESPACE_MODE})"
                instead = "a resource of that stack, such as nvidia.com/gpu, or ask a cluster admin for the mode share"
                faults.append(Fault(path, given, allowed, instead))
    return tuple(faults)


def _faults_of_held_pod(spec: dict[str, Any], gated_schedulers: tuple[str, ...]) -> list[Fault]:
    """Returns the faults by which a pod cannot wait behind a scheduling gate until its budget has money; else none.

    The API allows no gate on a pod that names its node. A scheduler that places pods in spite of a gate would let the
    pod run at once.

    Args:
        spec: the pod's spec, as JSON.
        gated_schedulers: the schedulers that are known not to place a pod with a gate.
    """
    faults = []
    node, scheduler = spec.get("nodeName"), spec.get("schedulerName")
    if isinstance(node, str) and node:
        allowed = "no node while the GPU budget is spent: the pod would wait behind a gate, and has none with a node"
        instead = "spec.nodeSelector with kubernetes.io/hostname, or ask for a GPUGrant"
        faults.append(Fault(field_path("spec", "nodeName"), show(node), allowed, instead))
    if isinstance(scheduler, str) and scheduler and scheduler not in gated_schedulers:
        allowed = (
            f"{' or '.join(gated_schedulers)} while the GPU budget is spent: these leave a pod behind a gate alone"
        )
        instead = "the pod again once there is money, or ask for a GPUGrant"
        faults.append(Fault(field_path("spec", "schedulerName"), show(scheduler), allowed, instead))
    return faults


def _claims(subject: Subject, spec: dict[str, Any], knowledge: Knowledge) -> int:
    """Returns the number of the pod's `spec.resourceClaims` that ask for a GPU.

    A claim that the watches of this process have not shown yet counts as one that asks for a GPU.
    """
    given = spec.get("resourceClaims")
    if not given:
        return 0
    others = knowledge.other_claims
    return sum(
        (subject.namespace, claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")) not in others
        for claim in mappings(given)
    )


def _gives_class(existing: Existing, spec: dict[str, Any], settings: Webhook, knowledge: Knowledge) -> bool:
    """Whether the pod gets the priority class of its budget's state, by the admin's setting `existing.classes`.

    `never`: no pod does. `always`: each pod does. `unnamed`: a pod does unless its author named a class that is neither
    one of FairGPU's nor the cluster's default. Whatever the setting, a pod keeps a class that `priorities.keep` lists,
    unless the class is the cluster's default.
    """
    priorities = settings.priorities
    if existing.classes == "never" or keeps_own(spec, priorities, knowledge):
        return False
    given = spec.get(FIELD)
    unnamed = (None, "", knowledge.default_class, priorities.in_budget_class, priorities.over_budget_class)
    return existing.classes == "always" or given in unnamed


def _annotate(subject: Subject, budget: BudgetVerdict) -> list[Operation]:
    metadata = subject.item.get("metadata")
    wanted = {names.BUDGET_STATE: budget.state, names.CREATED_BY: creator(subject)}
    if not isinstance(metadata, dict):
        return [add("/metadata", {"annotations": wanted, "labels": LABELS})]
    return change_map(metadata, "/metadata", "annotations", wanted, names.NOTICES)
