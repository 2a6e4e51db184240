"""A GPUGrant or GPUCorrection without an author's name gets it."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest

from webhook.admission.knowledge import Knowledge
from webhook.admission.review import answer
from webhook.settings import Webhook

ORDER = {"metadata": {"name": "deadline"}, "spec": {"budget": "a", "gpuHours": 1, "reason": "paper"}}


def signed(item: Any, user: str = "ann", kind: str = "GPUGrant", operation: str = "CREATE") -> Any:
    request = {
        "uid": "1",
        "kind": {"group": "fairgpu.io", "version": "v1alpha1", "kind": kind},
        "operation": operation,
        "userInfo": {"username": user},
        "object": item,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response = json.loads(answer("mutate", json.dumps(review).encode(), Knowledge(), Webhook(), 0.0).body)["response"]
    assert response["allowed"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return jsonpatch.apply_patch(item, patch)


@pytest.mark.parametrize("kind", ["GPUGrant", "GPUCorrection"])
@pytest.mark.parametrize("given", [{}, {"requestedBy": ""}, {"requestedBy": None}])
def test_a_manifest_without_the_name_is_named(kind: str, given: dict[str, Any]) -> None:
    order = {**ORDER, "spec": {**ORDER["spec"], **given}}
    assert signed(order, "ann", kind) == {**ORDER, "spec": {**ORDER["spec"], "requestedBy": "ann"}}


def test_a_name_that_is_there_stays_for_the_policy_to_judge() -> None:
    order = {**ORDER, "spec": {**ORDER["spec"], "requestedBy": "bob"}}
    assert signed(order) == order


def test_a_name_is_cut_to_the_length_of_the_field() -> None:
    assert signed(ORDER, "é" * 300)["spec"]["requestedBy"] == "é" * 256


@pytest.mark.parametrize("item", [{"metadata": {"name": "deadline"}}, {"spec": []}, {"spec": None}])
def test_an_order_without_a_spec_is_left_to_the_schema(item: Any) -> None:
    assert signed(item) == item


def test_nothing_is_written_where_nobody_is_known_or_nothing_is_made() -> None:
    assert signed(ORDER, "") == ORDER
    assert signed(ORDER, operation="UPDATE") == ORDER
    assert signed(ORDER, kind="GPUBudget") == ORDER
