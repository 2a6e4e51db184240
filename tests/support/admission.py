"""Pods, admission reviews of them, and a webhook's answers, for the tests of admission."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, replace
from typing import Any

import jsonpatch
import orjson

from fairgpu.states import BudgetState, NamespaceState
from webhook.admission.knowledge import DEFAULT_PRICES, BudgetStates, Knowledge
from webhook.admission.review import answer
from webhook.settings import Webhook

Pod = dict[str, Any]

NAMESPACE = "team-a"
GPU_HOUR = 3_600_000_000
CA = "-----BEGIN CERTIFICATE-----\ntimekeeper\n-----END CERTIFICATE-----\n"
KNOWLEDGE = Knowledge(timekeeper_ca=CA)
SETTINGS = Webhook()


def container(name: str = "main", limits: Any = None, **fields: Any) -> Pod:
    resources = {"resources": {"limits": limits}} if limits is not None else {}
    return {"name": name, "image": "example/train:1", **resources, **fields}


def gpu_container(name: str = "main", core: Any = "30", **fields: Any) -> Pod:
    return container(name, {"fairgpu.io/gpu-core": core}, **fields)


def pod(*containers: Pod, annotations: Any = None, metadata: Any = None, **spec: Any) -> Pod:
    meta = {"name": "train", "namespace": NAMESPACE, **(metadata or {})}
    if annotations is not None:
        meta["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def gpu_pod(**spec: Any) -> Pod:
    return pod(gpu_container(), **spec)


def request(item: Any, **fields: Any) -> dict[str, Any]:
    return {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "userInfo": {"username": "ann@example.com", "groups": ["system:authenticated"]},
        "object": item,
        "oldObject": None,
        "dryRun": False,
        **fields,
    }


def review(item: Any, **fields: Any) -> bytes:
    document = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": request(item, **fields),
    }
    return orjson.dumps(document)


@dataclass(frozen=True)
class Answer:
    allowed: bool
    message: str
    patch: list[dict[str, Any]]
    warnings: list[str]
    audit: dict[str, str]


def read_answer(body: bytes) -> Answer:
    response = orjson.loads(body)["response"]
    patch = orjson.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return Answer(
        allowed=response["allowed"],
        message=response.get("status", {}).get("message", ""),
        patch=patch,
        warnings=response.get("warnings", []),
        audit=response.get("auditAnnotations", {}),
    )


def ask(
    route: str,
    item: Any,
    knowledge: Knowledge = KNOWLEDGE,
    settings: Webhook = SETTINGS,
    now: float = 0.0,
    **fields: Any,
) -> Answer:
    return read_answer(answer(route, review(item, **fields), knowledge, settings, now).body)


def mutate(item: Any, knowledge: Knowledge = KNOWLEDGE, settings: Webhook = SETTINGS, **fields: Any) -> Answer:
    return ask("mutate", item, knowledge, settings, **fields)


def validate(item: Any, knowledge: Knowledge = KNOWLEDGE, settings: Webhook = SETTINGS, **fields: Any) -> Answer:
    return ask("validate", item, knowledge, settings, **fields)


def apply(item: Any, patch: list[dict[str, Any]]) -> Any:
    return jsonpatch.apply_patch(copy.deepcopy(item), patch)


def admitted(item: Any, knowledge: Knowledge = KNOWLEDGE, settings: Webhook = SETTINGS, **fields: Any) -> Any:
    """Returns the pod as it would be stored; fails the test if the mutating webhook refuses it."""
    answered = mutate(item, knowledge, settings, **fields)
    assert answered.allowed, answered.message
    return apply(item, answered.patch)


def knowing(
    state: BudgetState = BudgetState.OPEN,
    remaining_hours: float = 60,
    rate: int = 0,
    prices: Any = DEFAULT_PRICES,
    changes: dict[str, Any] | None = None,
    **fields: Any,
) -> Knowledge:
    """Returns knowledge in which the budget of NAMESPACE, of 100 GPU-hours, has the given state and figures.

    Args:
        state: the budget's state.
        remaining_hours: the GPU-hours that the budget has left.
        rate: the budget's present spending, in microGPU-seconds a second.
        prices: GPU-hours charged for an hour of a whole GPU, keyed by model.
        changes: further fields of the NamespaceState to replace.
        fields: further fields of the Knowledge.
    """
    known = NamespaceState(NAMESPACE, "research", state, 100 * GPU_HOUR, int(remaining_hours * GPU_HOUR), rate)
    known = replace(known, **(changes or {}))
    states = BudgetStates({NAMESPACE: known}, BudgetState.UNLIMITED, prices, 0.0)
    return Knowledge(**{"states": states, "timekeeper_ca": CA, **fields})
