"""The decoder of pods and nodes keeps every field that the scheduler reads, whatever else there is."""

from __future__ import annotations

import copy
import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairgpu.cluster.api import Json
from fairgpu.cluster.reflector import Collection
from scheduler.cluster.acting import mark_of
from scheduler.cluster.objects import PodError, read_note, read_waiting
from scheduler.cluster.watches import NODES, PODS
from tests.unit.scheduler.extended import ApiServer, api_node, bind_pod, pod, state_of

JUNK = {"managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}], "ownerReferences": [{"kind": "Job"}]}
WAITS = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"},
        {"type": "fairgpu.io/Placeable", "status": "False", "message": "gpu-core: 50 percent"},
        {"type": "fairgpu.io/Leads", "status": "True", "message": "a mark"},
    ],
    "phase": "Pending",
}
INIT = {"name": "first", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
PREFERENCE = [{"weight": 1, "preference": {"matchExpressions": []}}]
SOFT = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERENCE}}


def waiting(**spec: Any) -> Json:
    item = pod("a", schedulerName="fairgpu-scheduler", **spec)
    item["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "x", "fairgpu.io/pod": "gpu"}}
    item["status"] = copy.deepcopy(WAITS)
    return item


def annotated(**annotations: str) -> Json:
    item = waiting()
    item["metadata"]["annotations"] = {
        f"fairgpu.io/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return item


def bound() -> Json:
    item = pod("bound", core=50, initContainers=[INIT], overhead={"cpu": "100m"})
    bind_pod(state_of("n0"), ApiServer(item), item, "n0")
    return item


def leaving() -> Json:
    item = bound()
    item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    item["metadata"]["annotations"] |= {
        "fairgpu.io/reclaim-at": "2026-01-01T00:00:00Z",
        "fairgpu.io/task-priority": "0",
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    item["status"] = {"conditions": [scheduled]}
    return item


POD_KINDS = {
    "a pod that waits": waiting(),
    "one with a native sidecar": waiting(initContainers=[INIT]),
    "one with a soft preference": waiting(affinity=SOFT),
    "one with a spread": waiting(topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]),
    "one with a priority": waiting(priority=1000),
    "one behind a gate": waiting(schedulingGates=[{"name": "fairgpu.io/budget"}]),
    "one that chooses": annotated(use_gpu_model="A100", placement="topology"),
    "one of a gang": annotated(gang="train/4"),
    "one with an earmark": annotated(earmark="{}"),
    "one with rules of its own": waiting(
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        volumes=[{"name": "token", "projected": {}}],
    ),
    "one with a volume": waiting(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
    "one on the host's network": waiting(hostNetwork=True),
    "one on a port of the host": waiting(initContainers=[{"name": "x", "ports": [{"hostPort": 80}]}]),
    "one with another resource": waiting(initContainers=[{"name": "x", "resources": {"requests": {"rdma/hca": "1"}}}]),
    "one that is to go": leaving(),
    "one that is bound": bound(),
    "one with a forged allocation": annotated(allocation="{}") | {"spec": {"nodeName": "n0", "containers": []}},
    "one that ended": pod("ended", nodeName="n0") | {"status": {"phase": "Succeeded"}},
    "one without a GPU": {"metadata": {"uid": "u", "name": "web"}, "spec": {"nodeName": "n1", "containers": [INIT]}},
    "one with a mark": {"metadata": {"uid": "u", "name": "own"}, "spec": {}, "status": WAITS},
    "one with fields of other types": {
        "metadata": {"uid": 7, "name": "odd"},
        "spec": {"containers": "none"},
        "status": [],
    },
}


def through(collection: Collection, item: Json) -> tuple[Json, Json]:
    """An object out of a page, and the same out of an event."""
    item = copy.deepcopy(item)
    item["metadata"] |= JUNK
    page = collection.decode_page(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [item]}).encode())
    event = collection.decode_event(json.dumps({"type": "ADDED", "object": item}).encode())
    return page["items"][0], event["object"]


@pytest.mark.parametrize("item", POD_KINDS.values(), ids=POD_KINDS)
def test_a_pod_means_the_same_whether_all_of_it_is_decoded_or_an_excerpt(item: Json) -> None:
    for decoded in through(PODS, item):
        assert read_note(decoded) == read_note(item)
        assert asked(decoded) == asked(item)
        assert marked(decoded) == marked(item)


def marked(item: Json) -> str:
    return mark_of(item) if isinstance(item.get("status", {}), dict) else ""


def asked(item: Json) -> object:
    try:
        return read_waiting(item)
    except PodError as error:
        return str(error)


def test_a_node_means_the_same() -> None:
    item = api_node("n0")
    item["metadata"] |= {"uid": "u0", "resourceVersion": "5", "labels": {"zone": "a"}}
    item["status"]["allocatable"] |= {"pods": "110", "rdma/hca": "1"}
    item["spec"] = {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": True, "podCIDR": "10.0.0.0/24"}
    for decoded in through(NODES, item):
        assert NODES.read(decoded) == NODES.read(item)


def test_a_field_that_no_code_reads_is_not_decoded() -> None:
    for decoded in through(PODS, waiting()):
        assert not JUNK.keys() & decoded["metadata"].keys()


@pytest.mark.parametrize("collection", [PODS, NODES])
def test_the_end_of_a_watch_says_why(collection: Collection) -> None:
    status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
    event = collection.decode_event(json.dumps({"type": "ERROR", "object": status}).encode())
    assert {"code": 410, "reason": "Expired", "message": "too old"}.items() <= event["object"].items()


def test_a_body_that_is_no_json_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        PODS.decode_page(b"<html>")


def test_lists_that_are_decoded_at_once_leave_garbage_collections_on() -> None:
    page = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def decode_many() -> None:
        for _ in range(50_000):
            PODS.decode_page(page)

    try:
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(decode_many) for _ in range(3)]:
                done.result()
    finally:
        sys.setswitchinterval(before)
        collects = gc.isenabled()
        gc.enable()
    assert collects
