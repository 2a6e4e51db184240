"""Admission in the mode `account`: what is added, what is left, and the few pods that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu import names
from fairgpu.existing import Existing
from fairgpu.states import BudgetState, SafeAdmission
from tests.support.admission import (
    CA,
    KNOWLEDGE,
    NAMESPACE,
    SETTINGS,
    Answer,
    Pod,
    apply,
    ask,
    container,
    gpu_pod,
    knowing,
    pod,
)
from webhook.admission.knowledge import Knowledge
from webhook.settings import Webhook

HELD = knowing(BudgetState.HELD, remaining_hours=0)
OVER = knowing(BudgetState.OVER, remaining_hours=0)
ADDED = {names.BUDGET_STATE, names.CREATED_BY}


def account(item: Any, knowledge: Knowledge = KNOWLEDGE, settings: Webhook = SETTINGS, **fields: Any) -> Answer:
    return ask("account", item, knowledge, settings, **fields)


def stored(item: Any, knowledge: Knowledge = KNOWLEDGE, settings: Webhook = SETTINGS, **fields: Any) -> Any:
    answered = account(item, knowledge, settings, **fields)
    assert answered.allowed, answered.message
    return apply(item, answered.patch)


def with_classes(given: Any) -> Webhook:
    return SETTINGS.beside(Existing(classes=given))


REQUESTS: dict[str, Pod] = {
    "whole GPUs": pod(container(limits={"nvidia.com/gpu": "2"})),
    "shared GPUs": pod(container(limits={"nvidia.com/gpu.shared": "1"})),
    "MIG": pod(container(limits={"nvidia.com/mig-3g.40gb": "1"})),
    "HAMi": pod(container(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144", "nvidia.com/gpucores": "30"})),
    "HAMi, as no dialect reads it": pod(container(limits={"nvidia.com/gpu": "1", "nvidia.com/gpucores": "150"})),
    "Volcano": pod(container(limits={"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"})),
    "KAI": pod(container(), annotations={"gpu-fraction": "0.5"}),
    "KAI, the memory of a container": pod(
        container("main"), annotations={"nvidia.com/container.main.gpu-memory.request": "40Gi"}
    ),
    "KAI, the memory of an init container": pod(
        container(),
        annotations={"nvidia.com/container.load.gpu-memory.request": "40Gi"},
        initContainers=[container("load")],
    ),
    "KAI, a limit alone": pod(container("main"), annotations={"nvidia.com/container.main.gpu-memory.limit": "40Gi"}),
    "Aliyun": pod(container(limits={"aliyun.com/gpu-mem": "3"})),
    "gpu-manager": pod(container(limits={"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"})),
    "AMD": pod(container(limits={"amd.com/gpu": "1"})),
    "Intel": pod(container(limits={"gpu.intel.com/i915": "1"})),
    "Ascend": pod(container(limits={"huawei.com/Ascend910-4c": "1"})),
    "TPU": pod(container(limits={"google.com/tpu": "4"})),
    "Neuron": pod(container(limits={"aws.amazon.com/neuroncore": "2"})),
    "an init container": pod(container(), initContainers=[container("load", {"amd.com/gpu": "1"})]),
    "the resource of a DeviceClass": pod(container(limits={"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"})),
    "a claim": pod(container(), resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]),
}
by_name = pytest.mark.parametrize("item", REQUESTS.values(), ids=REQUESTS.keys())


@by_name
def test_the_pod_of_each_stack_gets_the_label_and_stays_what_it_is(item: Pod) -> None:
    item = {**item, "spec": {**item["spec"], "schedulerName": "kai-scheduler", "priorityClassName": "urgent"}}
    result = stored(item)

    assert result["spec"] == item["spec"]
    assert result["metadata"]["labels"] == {"fairgpu.io/pod": "gpu"}
    given = item["metadata"].get("annotations", {})
    assert {key: value for key, value in result["metadata"]["annotations"].items() if key not in ADDED} == given
    assert result["metadata"]["annotations"]["fairgpu.io/created-by"] == "ann@example.com"


@by_name
def test_the_pod_of_each_stack_waits_behind_the_gate_of_a_held_budget(item: Pod) -> None:
    result = stored(item, HELD)

    assert result["spec"].pop("schedulingGates") == [{"name": "fairgpu.io/budget"}]
    assert result["spec"] == item["spec"]
    assert result["metadata"]["annotations"]["fairgpu.io/budget-state"] == "held"


@by_name
def test_an_admitted_pod_is_admitted_again_without_a_change(item: Pod) -> None:
    for knowledge in (KNOWLEDGE, HELD, OVER):
        once = stored(item, knowledge, with_classes("always"))
        assert account(once, knowledge, with_classes("always")).patch == []


@pytest.mark.parametrize(
    "item",
    [
        pod(container(limits={"cpu": "1"})),
        pod(container(limits={"example.com/nic": "1"})),
        pod(container(limits={"gpu.intel.com/i915_monitoring": "1"})),
        pod(container(), annotations={"example.com/gpu-fraction": "0.5"}),
        pod(container(), annotations={"nvidia.com/container.strange.gpu-memory.request": "40Gi"}),
        {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": None},
        {},
        None,
    ],
)
def test_a_pod_that_asks_for_no_gpu_stays_as_it_is_whatever_its_budget(item: Any) -> None:
    answered = account(item, HELD)

    assert answered.allowed
    assert (answered.patch, answered.warnings) == ([], [])


def test_a_claim_that_is_known_to_be_for_something_else_is_no_gpu() -> None:
    nic = {"name": "nic", "resourceClaimTemplateName": "one-nic"}
    bound = {"name": "bound", "resourceClaimName": "mine"}
    others = frozenset({(NAMESPACE, None, "one-nic"), (NAMESPACE, "mine", None)})
    knowledge = knowing(BudgetState.HELD, remaining_hours=0, other_claims=others)

    assert account(pod(container(), resourceClaims=[nic, bound]), knowledge).patch == []
    gpu = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    assert stored(pod(container(), resourceClaims=[nic, gpu]), knowledge)["spec"]["schedulingGates"]


def test_a_namespace_of_the_same_name_elsewhere_is_unknown() -> None:
    knowledge = Knowledge(timekeeper_ca=CA, other_claims=frozenset({("team-b", None, "one-nic")}))
    nic = {"name": "nic", "resourceClaimTemplateName": "one-nic"}

    assert account(pod(container(), resourceClaims=[nic]), knowledge).patch != []


def test_a_pod_with_a_node_is_refused_while_its_budget_is_held_and_told_what_to_do() -> None:
    item = pod(container(limits={"nvidia.com/gpu": "1"}), nodeName="gpu-7")
    answered = account(item, HELD)

    assert not answered.allowed
    assert 'spec.nodeName: given "gpu-7"' in answered.message
    assert "nodeSelector" in answered.message
    assert "GPUGrant" in answered.message
    assert stored(item, OVER)["spec"]["nodeName"] == "gpu-7"


def test_a_pod_of_a_scheduler_that_was_not_tried_with_gates_is_refused_instead_of_held() -> None:
    item = pod(container(limits={"nvidia.com/gpu": "1"}), schedulerName="own-scheduler")
    answered = account(item, HELD)

    assert not answered.allowed
    assert 'spec.schedulerName: given "own-scheduler"' in answered.message
    tried = SETTINGS.beside(Existing(gated_schedulers=("own-scheduler",)))
    assert stored(item, HELD, tried)["spec"]["schedulingGates"]
    assert stored(item, OVER)["spec"] == item["spec"]


@pytest.mark.parametrize("scheduler", ["hami-scheduler", "kai-scheduler", "volcano"])
def test_a_pod_of_a_scheduler_that_leaves_gated_pods_alone_is_held(scheduler: str) -> None:
    item = pod(container(limits={"nvidia.com/gpu": "1"}), schedulerName=scheduler)

    assert stored(item, HELD)["spec"]["schedulingGates"] == [{"name": "fairgpu.io/budget"}]


def test_a_request_for_fairgpus_own_resources_is_refused() -> None:
    answered = account(gpu_pod())

    assert not answered.allowed
    assert "spec.containers[0].resources.limits[fairgpu.io/gpu-core]" in answered.message
    assert "fairgpu.io/mode" in answered.message


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"annotations": {f"a{n}": "" for n in range(1001)}}, "metadata.annotations"),
        ({"labels": {f"a{n}": "" for n in range(257)}}, "metadata.labels"),
    ],
)
def test_metadata_that_no_guard_could_look_through_is_refused(metadata: Any, field: str) -> None:
    answered = account(pod(container(limits={"nvidia.com/gpu": "1"}), metadata=metadata))

    assert not answered.allowed
    assert field in answered.message


def test_the_warning_says_what_is_left_and_what_the_pod_costs_at_most() -> None:
    (line,) = account(REQUESTS["whole GPUs"], knowing(BudgetState.HELD, 0, prices={"*": 1.0, "H100": 2.5})).warnings

    assert line == (
        'GPU budget "research": spent; the pod waits behind the gate fairgpu.io/budget until there is money. '
        "0 of 100 GPU-hours are left; this pod costs at most about 5 GPU-hours an hour."
    )


def test_a_request_that_says_how_much_of_a_gpu_it_is_costs_no_whole_one() -> None:
    def price(item: Pod) -> str:
        (line,) = account(item, HELD).warnings
        return line.partition("costs at most about ")[2].partition(" ")[0]

    assert price(REQUESTS["KAI"]) == "0.5"
    assert price(REQUESTS["gpu-manager"]) == "0.3"
    assert price(REQUESTS["HAMi, as no dialect reads it"]) == "1"
    assert price(REQUESTS["MIG"]) == "1"
    assert price(REQUESTS["TPU"]) == "4"
    assert price(REQUESTS["a claim"]) == "1"


def test_a_spent_budget_that_gives_no_classes_says_that_nothing_yields() -> None:
    answered = account(REQUESTS["whole GPUs"], OVER)

    assert "yields to no other" in answered.warnings[0]
    assert all("priority" not in operation["path"] for operation in answered.patch)


@pytest.mark.parametrize(
    ("classes", "given", "expected"),
    [
        ("never", None, None),
        ("never", "urgent", "urgent"),
        ("unnamed", None, "gpu-over-budget"),
        ("unnamed", "urgent", "urgent"),
        ("unnamed", "everyday", "gpu-over-budget"),
        ("always", None, "gpu-over-budget"),
        ("always", "urgent", "gpu-over-budget"),
    ],
)
def test_classes_are_given_to_the_pods_that_the_settings_say(
    classes: str, given: str | None, expected: str | None
) -> None:
    spec = {} if given is None else {"priorityClassName": given}
    knowledge = knowing(BudgetState.OVER, 0, default_class="everyday")
    result = stored(pod(container(limits={"nvidia.com/gpu": "1"}), **spec), knowledge, with_classes(classes))

    assert result["spec"].get("priorityClassName") == expected
    assert ("priority" in result["spec"]) == (expected == "gpu-over-budget")


def test_safe_admission_holds_a_pod_whose_run_is_not_paid_for() -> None:
    safe = SafeAdmission(committed=0, default_commit_seconds=3600, hold=True)
    result = stored(
        pod(container(limits={"nvidia.com/gpu": "2"})), knowing(BudgetState.OPEN, 1, changes={"safe": safe})
    )

    assert result["spec"]["schedulingGates"]


def test_the_finalizer_comes_with_the_end_proof_that_needs_it() -> None:
    settings = Webhook(end_proof="finalizer")

    assert stored(REQUESTS["AMD"], KNOWLEDGE, settings)["metadata"]["finalizers"] == ["fairgpu.io/meter"]


def test_notices_of_another_pod_do_not_come_with_a_copy() -> None:
    item = pod(container(limits={"amd.com/gpu": "1"}), annotations={"fairgpu.io/eviction-at": "2026-01-01T00:00:00Z"})

    assert "fairgpu.io/eviction-at" not in stored(item)["metadata"]["annotations"]


def test_only_new_pods_are_changed() -> None:
    item = REQUESTS["AMD"]
    for fields in ({"operation": "UPDATE"}, {"subResource": "resize"}, {"kind": {"kind": "Deployment"}}):
        assert account(item, HELD, **fields).patch == []
