"""A manifest in any dialect, applied again as kubectl merges it into the stored pod, changes nothing."""

from __future__ import annotations

import copy
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from fairgpu.permissions import Permission
from fairgpu.pod import read_pod
from fairgpu.states import BudgetState
from tests.support.admission import (
    KNOWLEDGE,
    NAMESPACE,
    Pod,
    apply,
    container,
    knowing,
    mutate,
    pod,
    validate,
)
from webhook.admission.knowledge import Knowledge
from webhook.settings import Webhook

AMOUNTS: Final[list[dict[str, Any]]] = [
    {"cpu": "1"},
    {"fairgpu.io/gpu-core": "30"},
    {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "60", "fairgpu.io/gpu-memory": "4096"},
    {"nvidia.com/gpu": "1", "cpu": "1"},
    {"nvidia.com/gpu": "0"},
    {"nvidia.com/gpu": 2, "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": 30, "nvidia.com/priority": "0"},
    {"nvidia.com/gpumem-percentage": "50"},
    {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"},
    {"tencent.com/vcuda-core": "200"},
    {"aliyun.com/gpu-mem": "8"},
    {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2"},
    {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "30"},
    {"volcano.sh/gpu-number": "2"},
]
ANNOTATIONS: Final = {
    "gpu-fraction": "0.5",
    "gpu-memory": "2000",
    "gpu-fraction-container-name": "first",
    "nvidia.com/container.main.gpu-memory.request": "4Gi",
    "nvidia-gpu-scheduler/gpu.model": "A100",
    "nvidia.com/use-gputype": "V100",
    "hami.io/gpu-scheduler-policy": "binpack",
    "tencent.com/vcuda-core-limit": "100",
    "volcano.sh/vgpu-mode": "hami-core",
    "fairgpu.io/task-priority": "1",
    "fairgpu.io/gang": "train/2",
    "note": "mine",
}
ANY_GPU: Final = {"key": "nvidia.com/gpu", "operator": "Exists"}
FIELDS: Final[dict[str, Any]] = {
    "tolerations": [{**ANY_GPU, "effect": "NoSchedule"}, {"key": "spot", "operator": "Exists"}],
    "volumes": [{"name": "data", "emptyDir": {}}],
    "schedulingGates": [{"name": "example.com/quota"}],
    "schedulerName": "volcano",
    "priorityClassName": "gpu-in-budget",
    "resources": {"limits": {"cpu": "8"}},
}
BY_NAME: Final = ("containers", "initContainers", "volumes", "schedulingGates")
KNOWN: Final = [
    KNOWLEDGE,
    knowing(BudgetState.HELD, remaining_hours=-1),
    knowing(permissions={NAMESPACE: frozenset(Permission)}),
]
some_keys = st.sets(st.sampled_from(sorted(ANNOTATIONS)), max_size=3)


@st.composite
def manifests(draw: st.DrawFn) -> Pod:
    """Pods of one to three containers, each in a dialect of its own, with some annotations and fields of a pod."""
    amounts = st.sampled_from(AMOUNTS)
    containers = [container(name, dict(draw(amounts))) for name in ("main", "second")[: draw(st.integers(1, 2))]]
    fields = {key: FIELDS[key] for key in draw(st.sets(st.sampled_from(sorted(FIELDS))))}
    if draw(st.booleans()):
        fields["initContainers"] = [container("first", dict(draw(amounts)))]
    labels = {"labels": {"aliyun.com/gpu-count": "2"}} if draw(st.booleans()) else {}
    annotations = {key: ANNOTATIONS[key] for key in draw(some_keys)}
    return copy.deepcopy(pod(*containers, annotations=annotations or None, metadata=labels, **fields))


def merged(stored: Any, manifest: Any) -> Any:
    """Returns the stored value with the manifest's in it: maps are merged, some lists by name, others are replaced."""
    if not isinstance(manifest, dict) or not isinstance(stored, dict):
        return copy.deepcopy(manifest)
    result = copy.deepcopy(stored)
    for key, value in manifest.items():
        if key in BY_NAME:
            named = {item["name"]: item for item in value}
            result[key] = [merged(item, named.get(item["name"], {})) for item in stored[key]]
        else:
            result[key] = merged(stored.get(key), value)
    return result


def without_amounts(item: Pod) -> Pod:
    """Returns a pod without the amounts of FairGPU's resources, which an author may write in several ways."""
    item = copy.deepcopy(item)
    for field in ("containers", "initContainers"):
        for each in item["spec"].get(field, []):
            for amounts in each.get("resources", {}).values():
                amounts.update({name: "" for name in amounts if name.startswith("fairgpu.io/")})
    return item


def requests(item: Pod) -> dict[str, Any]:
    read = read_pod(item, Webhook().dialects.reading)
    return {each.name: each.request for each in read.all_containers if each.request is not None}


@settings(max_examples=300, deadline=None)
@given(manifest=manifests(), knowledge=st.sampled_from(KNOWN), end_proof=st.sampled_from(["finalizer", "observe"]))
def test_a_manifest_that_is_applied_again_leaves_the_stored_pod_as_it_is(
    manifest: Pod, knowledge: Knowledge, end_proof: str
) -> None:
    chosen = Webhook.model_validate({"end_proof": end_proof})
    created = mutate(manifest, knowledge, chosen)
    stored = apply(manifest, created.patch)
    if not created.allowed or not requests(stored):
        return
    assert requests(stored) == requests(manifest)
    again = merged(stored, manifest)
    updated = mutate(again, knowledge, chosen, operation="UPDATE", oldObject=stored)
    assert updated.allowed, updated.message
    result = apply(again, updated.patch)
    assert without_amounts(result) == without_amounts(stored)
    assert requests(result) == requests(stored)
    assert validate(result, knowledge, chosen, operation="UPDATE", oldObject=stored).allowed
