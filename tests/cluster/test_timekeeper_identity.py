"""The timekeeper's recognition of callers and its certificates, on a real API server under its own account and Role."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairgpu.certificates import serves
from fairgpu.cluster.api import ApiError, KubernetesAPI
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.pods import plain_pod
from tests.support.waiting import wait_until
from timekeeper.api.orders import ClusterOrders, GrantOrder, grant_object, place
from timekeeper.api.pods import ClusterPods
from timekeeper.auth.access_control import Action, Caller, UnauthenticatedError
from timekeeper.auth.signed_tokens import KeySet, PodIdentity, PodTokens
from timekeeper.auth.token_review import ClusterReviewer, fetch_issuer
from timekeeper.certificates import (
    CONFIG_MAPS,
    SECRETS,
    ClusterVault,
    keep_store_certificate,
    read_chain,
    service_names,
)
from timekeeper.sources.base import ExistsError

pytestmark = pytest.mark.usefixtures("installation")

AUDIENCE = "fairgpu-timekeeper"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def api(control_plane: ControlPlane) -> KubernetesAPI:
    return control_plane.service_account("fairgpu-system", "fairgpu-timekeeper").api


@pytest.fixture
def keys(api: KubernetesAPI) -> KeySet:
    return KeySet(lambda: fetch_issuer(api), time.monotonic)


@pytest.fixture
def tokens(keys: KeySet) -> PodTokens:
    keys.refresh()
    return PodTokens(keys, time.time)


@pytest.fixture
def access(api: KubernetesAPI, keys: KeySet) -> ClusterReviewer:
    return ClusterReviewer(api, keys)


@pytest.fixture
def pod(control_plane: ControlPlane, namespace: str) -> Any:
    return control_plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", plain_pod())


def test_a_pods_token_is_verified_with_the_keys_that_the_api_server_publishes(
    control_plane: ControlPlane, namespace: str, pod: Any, tokens: PodTokens
) -> None:
    identity = tokens.verify(control_plane.token(namespace, "default", audience=AUDIENCE, pod=pod))
    assert (identity.namespace, identity.pod, identity.uid) == (namespace, "plain", pod["metadata"]["uid"])


@pytest.mark.parametrize("audience", ["", "somebody-else"], ids=["the API server", "somebody else"])
def test_a_pods_token_for_another_audience_is_no_proof(
    control_plane: ControlPlane, namespace: str, pod: Any, tokens: PodTokens, audience: str
) -> None:
    with pytest.raises(UnauthenticatedError):
        tokens.verify(control_plane.token(namespace, "default", audience=audience, pod=pod))


def test_an_accounts_token_is_no_pods(control_plane: ControlPlane, namespace: str, tokens: PodTokens) -> None:
    with pytest.raises(UnauthenticatedError, match="not bound to a pod"):
        tokens.verify(control_plane.token(namespace, "default", audience=AUDIENCE))


@pytest.mark.parametrize("audience", ["", AUDIENCE], ids=["for the API server", "for the timekeeper"])
def test_people_and_services_are_known_by_their_tokens(
    control_plane: ControlPlane, namespace: str, access: ClusterReviewer, audience: str
) -> None:
    caller = access.authenticate(control_plane.token(namespace, "default", audience=audience))
    assert caller.name == f"system:serviceaccount:{namespace}:default"
    assert f"system:serviceaccounts:{namespace}" in caller.groups


def test_a_token_that_is_forged_or_for_others_or_of_a_pod_that_is_gone_is_nobodys(
    control_plane: ControlPlane, namespace: str, access: ClusterReviewer, pod: Any
) -> None:
    of_a_pod = control_plane.token(namespace, "default", audience=AUDIENCE, pod=pod)
    control_plane.admin.api.delete(f"/api/v1/namespaces/{namespace}/pods/plain", {"gracePeriodSeconds": 0})
    good = control_plane.token(namespace, "default")
    for token in (control_plane.token(namespace, "default", audience="somebody-else"), good[:-8] + "AAAAAAAA", "x"):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(token)
    # The API server believes its own cache of pods for a moment.
    wait_until(lambda: refused(access, of_a_pod), "the token dies with its pod")


def test_tokens_for_the_api_server_are_refused_where_the_own_audience_alone_is_taken(
    control_plane: ControlPlane, namespace: str, api: KubernetesAPI, keys: KeySet
) -> None:
    strict = ClusterReviewer(api, keys, own_audience_alone=True)
    caller = strict.authenticate(control_plane.token(namespace, "default", audience=AUDIENCE))
    assert caller.name == f"system:serviceaccount:{namespace}:default"
    for audience in ("", "somebody-else"):
        with pytest.raises(UnauthenticatedError, match="--audience fairgpu-timekeeper"):
            strict.authenticate(control_plane.token(namespace, "default", audience=audience))


def refused(access: ClusterReviewer, token: str) -> bool:
    try:
        access.authenticate(token)
    except UnauthenticatedError:
        return True
    return False


def test_an_account_that_may_view_a_namespace_may_read_what_it_spends_and_nothing_else(
    control_plane: ControlPlane, make_namespace: Callable[..., str], access: ClusterReviewer
) -> None:
    own, other = make_namespace(), make_namespace()
    viewer = Caller(f"viewer-{own}", groups=("system:authenticated",))
    bind(control_plane, f"namespaces/{own}/rolebindings", "RoleBinding", "view", viewer.name)
    reading = Action("get", "gpubudgets", own)
    wait_until(lambda: access.permits(viewer, reading), "the API server knows the viewer")
    for action in (
        Action("get", "gpubudgets", other),
        Action("get", "gpubudgets"),
        Action("list", "gpubudgets"),
        Action("create", "gpugrants", own),
        Action("create", "gpugrants"),
    ):
        assert not access.permits(viewer, action), str(action)


def test_an_admin_of_one_namespace_can_give_nobody_money(
    control_plane: ControlPlane, namespace: str, access: ClusterReviewer
) -> None:
    admin = Caller(control_plane.namespace_admin(namespace).name)
    assert access.permits(admin, Action("get", "gpubudgets", namespace))
    assert not access.permits(admin, Action("create", "gpugrants"))


def test_the_roles_that_are_shipped_let_the_webhook_read_states_and_budget_admins_give_money(
    control_plane: ControlPlane, access: ClusterReviewer
) -> None:
    webhook = access.authenticate(control_plane.token("fairgpu-system", "fairgpu-webhook"))
    assert access.permits(webhook, Action("list", "gpubudgets"))
    assert not access.permits(webhook, Action("create", "gpugrants"))
    treasurer = Caller(f"treasurer-{uuid.uuid4().hex[:8]}")
    bind(control_plane, "clusterrolebindings", "ClusterRoleBinding", "fairgpu-budget-admin", treasurer.name)
    wait_until(lambda: access.permits(treasurer, Action("create", "gpugrants")), "the treasurer may give money")


def bind(control_plane: ControlPlane, path: str, kind: str, role: str, user: str) -> None:
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    control_plane.admin.api.create(f"{BINDINGS}/{path}", body)


def test_replicas_share_one_authority_whose_leaf_rotates_and_whose_certificate_all_may_see(
    control_plane: ControlPlane, api: KubernetesAPI
) -> None:
    now, names = datetime.now(UTC), [*service_names(), "localhost"]
    first = read_chain(ClusterVault(api), names, lambda: now)
    assert read_chain(ClusterVault(api), names, lambda: now) == first
    later = read_chain(ClusterVault(api), names, lambda: now + timedelta(days=61))
    shown = control_plane.admin.api.get(f"{CONFIG_MAPS}/fairgpu-timekeeper-ca")["data"]["ca.crt"].encode()
    assert later.certificates_pem != first.certificates_pem
    for chain in (first, later):
        assert serves(chain.certificates_pem, shown, names)
    control_plane.admin.api.delete(f"{SECRETS}/fairgpu-timekeeper-tls")


def test_it_makes_and_renews_the_secret_that_redis_mounts(control_plane: ControlPlane, api: KubernetesAPI) -> None:
    now, names, seen = datetime.now(UTC), service_names("fairgpu-redis"), []
    for days in (0, 61):
        moment = now + timedelta(days=days)
        keep_store_certificate(ClusterVault(api), names, lambda moment=moment: moment)
        secret = control_plane.admin.api.get(f"{SECRETS}/fairgpu-redis-tls")
        assert secret["type"] == "kubernetes.io/tls"
        seen.append(secret["data"]["tls.crt"])
    assert seen[0] != seen[1]
    control_plane.admin.api.delete(f"{SECRETS}/fairgpu-redis-tls")


def test_a_grant_is_made_once_and_what_its_schema_refuses_is_shown(api: KubernetesAPI) -> None:
    store, order = ClusterOrders(api), GrantOrder(f"g-{uuid.uuid4().hex[:8]}", "research", "2.5", "more", "alice")
    made, new = place(grant_object(order), store)
    assert (new, made["spec"]["requestedBy"]) == (True, "alice")
    assert place(grant_object(order), store)[1] is False
    with pytest.raises(ExistsError):
        store.create(grant_object(order))
    assert store.read("never-made") is None
    with pytest.raises(ApiError) as refusal:
        store.create(grant_object(GrantOrder("nothing", "research", "0", "more", "alice")))
    assert refusal.value.status == 422


def test_a_pod_is_read_only_while_it_is_the_one_of_that_uid(api: KubernetesAPI, namespace: str, pod: Any) -> None:
    pods, uid = ClusterPods(api), pod["metadata"]["uid"]
    found = pods.read(PodIdentity(namespace, "plain", uid, 0))
    assert found is not None
    assert found["metadata"]["uid"] == uid
    assert pods.read(PodIdentity(namespace, "plain", "another", 0)) is None
    assert pods.read(PodIdentity(namespace, "nobody", uid, 0)) is None
