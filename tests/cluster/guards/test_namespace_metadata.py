"""The policy fairgpu-namespace: permissions on a Namespace come from those who hand out budgets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.existing import Existing
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.support.waiting import wait_until

RBAC = "rbac.authorization.k8s.io"
PERMISSION = {"fairgpu.io/allow": "elastic"}

pytestmark = pytest.mark.usefixtures("installation")


def refused(who: Identity, path: str, patch: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as refusal:
        who.api.patch(path, patch)
    assert refusal.value.status == 403
    assert "fairgpu-namespace" in refusal.value.message
    return refusal.value.message


@pytest.mark.parametrize("part", ["annotations", "labels"])
@pytest.mark.parametrize("subresource", ["", "/status"])
def test_an_admin_of_a_namespace_cannot_permit_it_anything(
    editor: Identity, namespace: str, part: str, subresource: str
) -> None:
    message = refused(editor, f"/api/v1/namespaces/{namespace}{subresource}", {"metadata": {part: PERMISSION}})
    assert f"metadata: fairgpu.io/allow changed by {editor.name}, who may not update gpubudgets" in message


@pytest.mark.parametrize("mode", ["account", "share"])
def test_an_admin_of_a_namespace_cannot_choose_its_mode(editor: Identity, namespace: str, mode: str) -> None:
    """The namespace has no label; tests/cluster/guards/test_account_mode.py tries to take one away."""
    message = refused(editor, f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {"fairgpu.io/mode": mode}}})
    assert f"metadata: fairgpu.io/mode changed by {editor.name}" in message


@pytest.mark.parametrize("mode", ["Account", "look", ""])
def test_a_mode_that_a_namespace_cannot_have_is_refused_to_everybody(
    control_plane: ControlPlane, namespace: str, mode: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.patch(path, {"metadata": {"labels": {"fairgpu.io/mode": mode}}})
    assert f'metadata.labels[fairgpu.io/mode]: given "{mode}"; allowed: share, account; write' in refusal.value.message
    for allowed in ("account", "share", None):
        control_plane.admin.api.patch(path, {"metadata": {"labels": {"fairgpu.io/mode": allowed}}})


@pytest.mark.parametrize(
    "words",
    ["Elastic", "elastic high-priority", "elastic\nhigh-priority\n", "elastic,all", "elastic;high-priority", "*"],
)
def test_a_permission_that_there_is_not_is_refused_to_everybody(
    control_plane: ControlPlane, namespace: str, words: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.patch(path, {"metadata": {"annotations": {"fairgpu.io/allow": words}}})
    said = f"metadata.annotations[fairgpu.io/allow]: given {json.dumps(words)}; allowed: elastic, high-priority, with a"
    assert said in refusal.value.message
    for allowed in ("elastic", "high-priority, elastic", "\telastic\n", "", None):
        control_plane.admin.api.patch(path, {"metadata": {"annotations": {"fairgpu.io/allow": allowed}}})


@pytest.mark.parametrize(
    ("part", "name", "value", "other"),
    [("labels", "fairgpu.io/allow", "elastic", "annotation"), ("annotations", "fairgpu.io/mode", "account\n", "label")],
)
def test_a_label_that_is_read_as_an_annotation_is_refused_to_everybody_and_the_reverse(
    control_plane: ControlPlane, namespace: str, part: str, name: str, value: str, other: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {part: {name: value}}})
    assert f"metadata.{part}[{name}]: given {json.dumps(value)}; allowed: no " in refusal.value.message
    assert f"write the {other} {name}" in refusal.value.message


@pytest.mark.parametrize(
    ("name", "value", "length"),
    [
        ("fairgpu.io/allow", "elastic," + "x" * 9000, 9008),
        ("fairgpu.io/allow", "," * 200_000, 200_000),
        ("fairgpu.io/mode", "account" * 1000, 7000),
    ],
)
def test_a_long_annotation_is_refused_with_its_beginning_and_its_length(
    control_plane: ControlPlane, namespace: str, name: str, value: str, length: int
) -> None:
    """The API server shows no message of more than 5 KiB, and an annotation may have 256."""
    with pytest.raises(ApiError) as refusal:
        control_plane.admin.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": {name: value}}})
    said = f'metadata.annotations[{name}]: given "{value[:60]}..." ({length} characters); allowed: '
    assert said in refusal.value.message


@pytest.fixture
def older(control_plane: ControlPlane, namespace: str) -> str:
    """A namespace with a label and an annotation that have no effect, written before there was the policy."""
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    binding = control_plane.admin.api.get(f"{bindings}/fairgpu-namespace")
    path, written = f"/api/v1/namespaces/{namespace}", {name: {other: "account"} for name, other in OF_NO_EFFECT}

    def passes(metadata: dict[str, Any], **query: str) -> bool:
        try:
            control_plane.admin.api.patch(path, {"metadata": metadata}, query=query)
        except ApiError as error:
            if "fairgpu-namespace" in error.message:
                return False
            raise
        return True

    control_plane.admin.api.delete(f"{bindings}/fairgpu-namespace")
    try:
        wait_until(lambda: passes(written), "no policy is in force")
    finally:
        metadata = {key: binding["metadata"][key] for key in ("name", "labels") if key in binding["metadata"]}
        control_plane.admin.api.create(bindings, {**binding, "metadata": metadata})
        of_another = {"labels": {"fairgpu.io/mode": "look"}}
        wait_until(lambda: not passes(of_another, dryRun="All"), "the policy is in force again")
    return path


OF_NO_EFFECT = (("labels", "fairgpu.io/allow"), ("annotations", "fairgpu.io/mode"))


def test_a_value_without_effect_that_is_older_than_the_policy_stays_or_goes_and_does_not_change(
    control_plane: ControlPlane, older: str
) -> None:
    admin = control_plane.admin.api
    admin.patch(older, {"metadata": {"labels": {"cost-centre": "42"}, "annotations": {"example.org/owner": "alice"}}})
    for part, name in OF_NO_EFFECT:
        with pytest.raises(ApiError) as refusal:
            admin.patch(older, {"metadata": {part: {name: "share"}}})
        assert f'metadata.{part}[{name}]: given "share"; allowed: no ' in refusal.value.message
        admin.patch(older, {"metadata": {part: {name: None}}})


@pytest.mark.parametrize("label", ["resource.kubernetes.io/admin-access", "resource.k8s.io/admin-access"])
def test_an_admin_of_a_namespace_cannot_give_it_administrative_access_to_devices(
    control_plane: ControlPlane, editor: Identity, namespace: str, label: str
) -> None:
    """Claims with such access get devices that others hold, and are free."""
    path = f"/api/v1/namespaces/{namespace}"
    message = refused(editor, path, {"metadata": {"labels": {label: "true"}}})
    assert f"metadata: {label} changed by {editor.name}" in message
    control_plane.admin.api.patch(path, {"metadata": {"labels": {label: "true"}}})
    refused(editor, path, {"metadata": {"labels": {label: None}}})


def test_finalizing_is_no_way_around_it(editor: Identity, namespace: str) -> None:
    document = editor.api.get(f"/api/v1/namespaces/{namespace}")
    document["metadata"]["annotations"] = PERMISSION
    with pytest.raises(ApiError, match="fairgpu-namespace"):
        editor.api.replace(f"/api/v1/namespaces/{namespace}/finalize", document)


def test_an_admin_of_a_namespace_may_change_the_rest_of_it(editor: Identity, namespace: str) -> None:
    harmless = {"labels": {"cost-centre": "42"}, "annotations": {"example.org/owner": "alice"}}
    changed = editor.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": harmless})
    assert changed["metadata"]["labels"]["cost-centre"] == "42"


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_a_namespace_has_no_more_than_can_be_looked_through_in_time(
    control_plane: ControlPlane, editor: Identity, namespace: str, part: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    most = {f"a{number}": "" for number in range(990)}
    editor.api.patch(path, {"metadata": {part: most}})
    message = refused(editor, path, {"metadata": {part: {f"b{number}": "" for number in range(20)}}})
    assert "allowed: at most 1000 each on a Namespace" in message
    control_plane.admin.api.patch(path, {"metadata": {part: {f"b{number}": "" for number in range(20)}}})
    refused(editor, path, {"metadata": {part: {"c": ""}}})
    other = {"annotations": "labels", "labels": "annotations"}[part]
    editor.api.patch(path, {"metadata": {other: {"c": ""}}})


@pytest.mark.parametrize("part", ["annotations", "labels"])
def test_the_refusal_of_hundreds_of_changed_keys_names_the_first_and_their_number(
    editor: Identity, namespace: str, part: str
) -> None:
    """The API server shows no message of more than 5 KiB, and its own says neither what was given nor what to do."""
    given = {f"fairgpu.io/key-{number:03}": "a" for number in range(400)}
    message = refused(editor, f"/api/v1/namespaces/{namespace}", {"metadata": {part: given}})
    assert "metadata: fairgpu.io/key-" in message
    assert f"... (400 in all) changed by {editor.name}, who may not update gpubudgets; ask an admin" in message


def test_a_permission_that_was_given_can_be_neither_widened_nor_removed(
    control_plane: ControlPlane, editor: Identity, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    control_plane.admin.api.patch(path, {"metadata": {"annotations": PERMISSION}})
    for value in ("elastic,high-priority", None):
        refused(editor, path, {"metadata": {"annotations": {"fairgpu.io/allow": value}}})
    editor.api.patch(path, {"metadata": {"labels": {"cost-centre": "42"}}})


@pytest.fixture
def operator(control_plane: ControlPlane, namespace: str) -> Identity:
    """Somebody who may make and update any namespace, as a self-service portal does."""
    who = control_plane.user(f"operator-{namespace}")
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "create", "update", "patch"]}
    role = {"metadata": {"name": who.name}, "rules": [rule]}
    control_plane.admin.api.create(f"/apis/{RBAC}/v1/clusterroles", role)
    bind_cluster_role(control_plane, who, who.name)
    wait_until(lambda: who.may("update", "namespaces"), "the operator may update namespaces")
    return who


def bind_cluster_role(control_plane: ControlPlane, who: Identity, role: str) -> None:
    binding = {
        "metadata": {"name": f"{who.name}-{role}"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": who.name}],
    }
    control_plane.admin.api.create(f"/apis/{RBAC}/v1/clusterrolebindings", binding)


def test_an_account_that_may_update_any_namespace_may_still_give_no_permission(
    operator: Identity, namespace: str
) -> None:
    refused(operator, f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": PERMISSION}})


def test_a_namespace_is_not_made_with_a_permission_either(operator: Identity) -> None:
    made = {"metadata": {"generateName": "self-service-", "annotations": PERMISSION}}
    with pytest.raises(ApiError, match="fairgpu-namespace"):
        operator.api.create("/api/v1/namespaces", made, {"dryRun": "All"})


@pytest.mark.parametrize("name", Existing().left_alone)
def test_nor_by_a_name_that_is_left_alone(control_plane: ControlPlane, operator: Identity, name: str) -> None:
    """No budget would hold its pods, and those in a namespace that keeps GPUs for others would cost nobody anything."""
    with pytest.raises(ApiError, match="fairgpu-namespace") as refusal:
        operator.api.create("/api/v1/namespaces", {"metadata": {"name": name}}, {"dryRun": "All"})
    assert f"metadata.name: {name} given by {operator.name}, who may not update gpubudgets" in refusal.value.message
    operator.api.create("/api/v1/namespaces", {"metadata": {"name": f"{name}-2"}}, {"dryRun": "All"})
    control_plane.admin.api.create("/api/v1/namespaces", {"metadata": {"name": name}}, {"dryRun": "All"})


def test_an_account_that_may_update_budgets_in_the_whole_cluster_may_give_permissions(
    control_plane: ControlPlane, operator: Identity, namespace: str
) -> None:
    bind_cluster_role(control_plane, operator, "fairgpu-budget-admin")
    wait_until(lambda: operator.may("update", "gpubudgets.fairgpu.io"), "the operator may update budgets")
    given = operator.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"annotations": PERMISSION}})
    assert given["metadata"]["annotations"]["fairgpu.io/allow"] == "elastic"
