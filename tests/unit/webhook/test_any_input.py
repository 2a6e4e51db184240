"""Whatever comes in: an answer that the API server accepts, or word that it is no review. Never anything else.

FAIRGPU_EXAMPLES sets how many examples there are in all: 50,000 where CI=true, few otherwise, a million on demand.
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fairgpu.permissions import Permission
from fairgpu.states import BudgetState
from tests.support.admission import (
    CA,
    KNOWLEDGE,
    NAMESPACE,
    SETTINGS,
    apply,
    container,
    gpu_container,
    knowing,
    pod,
    read_answer,
    review,
)
from webhook.admission.knowledge import Knowledge
from webhook.admission.review import ROUTES as ALL_ROUTES
from webhook.admission.review import ReviewError, answer, encode, judge, read

pytestmark = pytest.mark.timeout(3600)

EXAMPLES = int(os.environ.get("FAIRGPU_EXAMPLES") or (50_000 if os.environ.get("CI") == "true" else 600))
KINDS = ["Pod", "Deployment", "Job", "CronJob", "Service", "", None, 7]
OPERATIONS = ["CREATE", "UPDATE", "DELETE", "CONNECT", "", None, 1]
SUB_RESOURCES = ["", "ephemeralcontainers", "resize", "status", None, []]
ROUTES = st.sampled_from(ALL_ROUTES)


def share(part: float) -> Any:
    """A share of all examples; each property says what it is worth."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=max(1, int(EXAMPLES * part)), deadline=None, suppress_health_check=checks)


def checked_answer(route: str, body: bytes, knowledge: Knowledge = KNOWLEDGE) -> Any:
    """The answer's response, held to what the API server asks of one.

    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response
    """
    document = orjson.loads(answer(route, body, knowledge, SETTINGS, 1000.0).body)
    assert document["apiVersion"] == "admission.k8s.io/v1"
    assert document["kind"] == "AdmissionReview"
    response = document["response"]
    assert response["uid"] == orjson.loads(body)["request"]["uid"]
    assert isinstance(response["allowed"], bool)
    assert ("patch" in response) == ("patchType" in response)
    if not response["allowed"]:
        assert "patch" not in response
        assert response["status"]["message"]
        assert response["status"]["code"] >= 400
    assert all(isinstance(warning, str) for warning in response.get("warnings", []))
    return response


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
field_names = st.sampled_from(
    [
        "metadata", "annotations", "spec", "containers", "initContainers", "ephemeralContainers", "resources",
        "limits", "requests", "name", "volumeMounts", "volumes", "schedulingGates", "tolerations", "priorityClassName",
        "nodeName", "template", "jobTemplate", "os", "nodeSelector", "labels", "ownerReferences", "fairgpu.io/gpu",
        "fairgpu.io/gpu-core", "fairgpu.io/gpu-memory", "nvidia.com/gpu", "nvidia.com/gpumem", "gpu-fraction",
        "tencent.com/vcuda-core", "aliyun.com/gpu-mem", "volcano.sh/vgpu-number", "a~b/c",
    ]
)  # fmt: skip
any_json = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(field_names | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@share(0.1)
@given(route=ROUTES, body=st.binary(max_size=200))
def test_bytes_are_answered_to_be_no_review(route: str, body: bytes) -> None:
    with pytest.raises(ReviewError):
        answer(route, body, KNOWLEDGE, SETTINGS, 0.0)


@share(0.1)
@given(route=ROUTES, document=any_json, wrapped=st.booleans())
def test_json_that_is_no_review_is_answered_to_be_none(route: str, document: Any, wrapped: bool) -> None:  # noqa: FBT001
    if wrapped:
        # One in a million is a review: a request is one that has a uid.
        assume(not (isinstance(document, dict) and isinstance(document.get("uid"), str) and document["uid"]))
        document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": document}
    with pytest.raises(ReviewError):
        answer(route, json.dumps(document).encode(), KNOWLEDGE, SETTINGS, 0.0)


@share(0.2)
@given(
    route=ROUTES,
    item=any_json,
    old_item=any_json,
    kind=st.sampled_from(KINDS),
    operation=st.sampled_from(OPERATIONS),
    sub_resource=st.sampled_from(SUB_RESOURCES),
    user=any_json,
)
def test_a_review_of_anything_is_answered(  # noqa: PLR0917
    route: str, item: Any, old_item: Any, kind: Any, operation: Any, sub_resource: Any, user: Any
) -> None:
    fields = {"operation": operation, "subResource": sub_resource, "userInfo": user, "oldObject": old_item}
    checked_answer(route, review(item, kind={"kind": kind}, **fields))


PODS = [
    pod(gpu_container()),
    pod(gpu_container(), container("other"), initContainers=[gpu_container("first"), container("proxy")]),
    pod(container(limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"})),
    pod(container(limits={"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"})),
    pod(container(limits={"aliyun.com/gpu-mem": "4"}), metadata={"labels": {"a": "b"}}),
    pod(container(), annotations={"gpu-fraction": "0.5", "fairgpu.io/placement": "spread"}),
    pod(container(limits={"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"})),
    pod(
        container(limits={"nvidia.com/gpu": "1"}, volumeMounts=[{"name": "data", "mountPath": "/data"}]),
        annotations={"nvidia-gpu-scheduler/gpu.model": "A100"},
        volumes=[{"name": "data", "emptyDir": {}}],
        schedulerName="default-scheduler",
        priority=0,
        preemptionPolicy="PreemptLowerPriority",
        schedulingGates=[{"name": "example.com/quota"}, {"name": "fairgpu.io/budget"}],
    ),
]
WEIRD = [
    None, True, False, 0, 1, -1, 30, 10**18, 0.5, 1e300, "", "0", "1", "-1", "0.5", "1e3", "2Gi", "100m", "150", "30",
    "9" * 70, "1e9999", " 30", "٣", "NaN", "fairgpu-sidecar", "fairgpu-usage", "fairgpu-token", "fairgpu.io/budget",
    "elastic", "windows", "Always", "/run/fairgpu/", "a~b/c", [], {}, [None], [{}], {"": ""}, {"name": None},
    [{"name": "fairgpu-usage", "mountPath": "/run/fairgpu"}], {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-memory": "7"},
    {"nvidia.com/gpu": "1"}, {"fairgpu.io/allocation": "{}", "fairgpu.io/source-dialect": "kai"},
]  # fmt: skip
EXTRA_KEYS = [
    "fairgpu.io/gpu", "fairgpu.io/gpu-core", "fairgpu.io/gpu-memory", "fairgpu.io/gpu-memory-percentage",
    "nvidia.com/gpu", "nvidia.com/gpucores", "gpu-fraction", "gpu-memory", "tencent.com/vcuda-core-limit",
    "fairgpu.io/allocation", "fairgpu.io/core-policy", "fairgpu.io/task-priority", "unknown", "resources", "limits",
    "requests", "volumeMounts", "volumes", "initContainers", "annotations", "priorityClassName", "os", "restartPolicy",
]  # fmt: skip
KNOWLEDGES = [
    KNOWLEDGE,
    *(knowing(state, remaining_hours=-1) for state in BudgetState),
    knowing(permissions={NAMESPACE: frozenset(Permission)}, default_class="everyday"),
    Knowledge(timekeeper_ca=CA),
]
changes = st.lists(
    st.tuples(
        st.integers(0, 2**16),
        st.sampled_from(["set", "delete", "add", "double"]),
        st.sampled_from(EXTRA_KEYS),
        st.sampled_from(WEIRD),
    ),
    max_size=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every key and index in a document, each with what holds it."""
    if isinstance(value, dict):
        return [place for key in value for place in [(value, key), *places(value[key])]]
    if isinstance(value, list):
        return [place for index in range(len(value)) for place in [(value, index), *places(value[index])]]
    return []


def changed(base: Any, edits: list[tuple[int, str, str, Any]]) -> Any:
    """A real pod after some edits in places chosen by number."""
    item = copy.deepcopy(base)
    for number, edit, key, value in edits:
        found = places(item)
        if not found:
            break
        holder, position = found[number % len(found)]
        if edit == "set":
            holder[position] = copy.deepcopy(value)
        elif edit == "delete":
            del holder[position]
        elif edit == "add" and isinstance(holder[position], dict):
            holder[position][key] = copy.deepcopy(value)
        elif edit == "double" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[position]))
    return item


GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists"}
"""The toleration that GPU pods get by default."""

drawn_pods = st.builds(changed, st.sampled_from(PODS), changes)


def without_what_changes(value: Any) -> Any:
    """A document with all that mutation may touch cut out, so that what it must not touch can be compared."""
    item = copy.deepcopy(value)
    metadata = item.get("metadata") if isinstance(item.get("metadata"), dict) else {}
    spec = item.get("spec") if isinstance(item.get("spec"), dict) else {}
    metadata.pop("annotations", None)
    metadata.pop("finalizers", None)
    labels = metadata.pop("labels", None)
    kept = {key: each for key, each in labels.items() if key != "fairgpu.io/pod"} if isinstance(labels, dict) else {}
    if kept:
        metadata["labels"] = kept
    if not metadata:
        item.pop("metadata", None)
    for key in ("schedulerName", "priorityClassName", "priority", "preemptionPolicy", "schedulingGates", "volumes"):
        spec.pop(key, None)
    tolerations = spec.pop("tolerations", None)
    if isinstance(tolerations, list):
        spec["tolerations"] = [each for each in tolerations if each != GPU_TAINT]
    if not spec.get("tolerations"):
        spec.pop("tolerations", None)
    for field in ("containers", "initContainers"):
        given = spec.get(field) if isinstance(spec.get(field), list) else []
        spec[field] = [one for one in given if not (isinstance(one, dict) and one.get("name") == "fairgpu-sidecar")]
        for one in spec[field]:
            if isinstance(one, dict):
                one.pop("volumeMounts", None)
                one.pop("resources", None)
    return item


@share(0.3)
@given(item=drawn_pods, knowledge=st.sampled_from(KNOWLEDGES))
def test_mutation_is_idempotent_and_loses_nothing_it_does_not_know(item: Any, knowledge: Knowledge) -> None:
    first = read_answer(answer("mutate", review(item), knowledge, SETTINGS, 0.0).body)
    checked_answer("validate", review(item), knowledge)
    if not first.allowed:
        return
    stored = apply(item, first.patch)
    if first.patch:
        assert without_what_changes(stored) == without_what_changes(item)
    second = read_answer(answer("mutate", review(stored), knowledge, SETTINGS, 0.0).body)
    assert second.allowed, second.message
    assert apply(stored, second.patch) == stored
    assert second.patch == []


def without_gates(item: Any) -> Any:
    """A pod's spec without its gates."""
    return {key: value for key, value in item["spec"].items() if key != "schedulingGates"}


@share(0.2)
@given(item=drawn_pods, knowledge=st.sampled_from(KNOWLEDGES))
def test_in_the_mode_account_the_containers_stay_and_a_second_pass_changes_nothing(
    item: Any, knowledge: Knowledge
) -> None:
    first = read_answer(answer("account", review(item), knowledge, SETTINGS, 0.0).body)
    if not first.allowed:
        return
    stored = apply(item, first.patch)
    if first.patch:
        assert without_gates(stored) == without_gates(item)
    assert read_answer(answer("account", review(stored), knowledge, SETTINGS, 0.0).body).patch == []


@share(0.1)
@given(item=drawn_pods, knowledge=st.sampled_from(KNOWLEDGES))
def test_a_pod_that_mutation_admits_is_admitted_by_validation(item: Any, knowledge: Knowledge) -> None:
    first = read_answer(answer("mutate", review(item), knowledge, SETTINGS, 0.0).body)
    if first.allowed:
        stored = apply(item, first.patch)
        response = checked_answer("validate", review(stored), knowledge)
        assert response["allowed"], response["status"]["message"]


@share(0.1)
@given(
    base=st.sampled_from(PODS),
    edits=changes,
    old_edits=changes,
    route=ROUTES,
    sub_resource=st.sampled_from(["", "", "", "resize", "ephemeralcontainers"]),
)
def test_an_update_between_any_two_pods_is_answered(
    base: Any, edits: Any, old_edits: Any, route: str, sub_resource: str
) -> None:
    stored = apply(base, read_answer(answer("mutate", review(base), KNOWLEDGE, SETTINGS, 0.0).body).patch)
    fields = {"operation": "UPDATE", "oldObject": changed(stored, old_edits), "subResource": sub_resource}
    body = review(changed(stored, edits), **fields)
    checked_answer(route, body)


UNREAD = {"managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {}}}}], "uid": "0", "a": [1]}
"""Fields of objects that admission does not read."""


def with_unread(value: Any) -> Any:
    """A document with more in every object."""
    if isinstance(value, list):
        return [with_unread(one) for one in value]
    if isinstance(value, dict):
        return {**{key: with_unread(one) for key, one in value.items()}, **UNREAD}
    return value


def answer_to_all(route: str, body: bytes, knowledge: Knowledge) -> bytes:
    """The answer of who reads every field of a review."""
    subject = read(orjson.loads(body))
    return encode(subject.uid, judge(route, subject, knowledge, SETTINGS, 0.0))


@share(0.1)
@given(
    route=ROUTES,
    base=st.sampled_from(PODS),
    edits=changes,
    old_edits=changes,
    kind=st.sampled_from(["Pod", "Pod", "Deployment", "CronJob", "PodTemplate"]),
    operation=st.sampled_from(["CREATE", "UPDATE"]),
    knowledge=st.sampled_from(KNOWLEDGES),
    noisy=st.booleans(),
)
def test_a_field_that_is_left_unread_changes_no_answer(  # noqa: PLR0917
    route: str, base: Any, edits: Any, old_edits: Any, kind: str, operation: str, knowledge: Knowledge,
    noisy: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    stored = apply(base, read_answer(answer("mutate", review(base), KNOWLEDGE, SETTINGS, 0.0).body).patch)
    item, old_item = changed(base, edits), changed(stored, old_edits)
    if kind == "Deployment":
        item = {"metadata": {"name": "x"}, "spec": {"replicas": 2, "template": item}}
    elif kind == "CronJob":
        item = {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"backoffLimit": 1, "template": item}}}}
    elif kind == "PodTemplate":
        item = {"template": item}
    if noisy:
        item = with_unread(item)
    body = review(item, kind={"kind": kind}, operation=operation, oldObject=old_item)
    assert answer(route, body, knowledge, SETTINGS, 0.0).body == answer_to_all(route, body, knowledge)


@pytest.mark.parametrize("route", ALL_ROUTES)
@pytest.mark.parametrize(
    "text",
    [
        b"1" + b"0" * 30,
        b"1" + b"0" * 5000,
        b"-9223372036854775809",
        b"1e999",
        b'"\\ud800"',
        b'"\xff"',
        b"[" * 5000 + b"]" * 5000,
        b'{"a": ' * 1500 + b"1" + b"}" * 1500,
        b"tru",
    ],
    ids=["10^30", "long", "below int64", "infinite", "half a surrogate", "no UTF-8", "deep", "deep maps", "cut"],
)
@pytest.mark.parametrize("field", [b"priority", b"managed", b"activeDeadlineSeconds", b"volumes", b"containers"])
def test_a_body_that_other_readers_stumble_over_is_answered_or_answered_to_be_no_review(
    route: str, text: bytes, field: bytes
) -> None:
    for operation in ("CREATE", "UPDATE"):
        stored = pod(gpu_container(), marked=1)
        body = review(pod(gpu_container(), marked="here"), operation=operation, oldObject=stored)
        odd = body.replace(b'"marked":"here"', b'"%b":%b' % (field, text)).replace(
            b'"marked":1', b'"schedulerName":"fairgpu-scheduler","%b":%b' % (field, text)
        )
        try:
            document = orjson.loads(answer(route, odd, KNOWLEDGE, SETTINGS, 0.0).body)
        except ReviewError:
            continue
        assert isinstance(document["response"]["allowed"], bool)
