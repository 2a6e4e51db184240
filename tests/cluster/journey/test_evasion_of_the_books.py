"""Evasions by an admin of one namespace, through budgets, reports and other teams' figures."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.journey.manifests import Manifest, pod
from tests.cluster.services.everything import Services
from tests.cluster.services.timekeeper_client import AUTHORITY
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.usefixtures("services")

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
GRANTS = "/apis/fairgpu.io/v1alpha1/gpugrants"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Books:
    """The timekeeper's REST API, asked with whatever token."""

    port: int
    context: ssl.SSLContext

    def ask(self, method: str, path: str, token: str, document: Any = None) -> int:
        """The status of the answer."""
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=LIMIT_S, context=self.context)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Idempotency-Key": "mine"}
        try:
            connection.request(method, path, None if document is None else json.dumps(document), headers)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def books(control_plane: ControlPlane, services: Services) -> Books:
    wait_until(lambda: control_plane.exists(AUTHORITY), "the timekeeper shows its CA")
    authority = control_plane.admin.api.get(AUTHORITY)["data"]["ca.crt"]
    return Books(services.timekeeper, ssl.create_default_context(cadata=authority))


@pytest.fixture
def others(make_namespace: Callable[..., str], control_plane: ControlPlane) -> str:
    """The namespace of another team, which has a budget."""
    name = make_namespace("others-")
    control_plane.admin.api.create(BUDGETS, budget(name))
    return name


@pytest.fixture
def token(control_plane: ControlPlane, user: Identity, namespace: str) -> str:
    """The token of an account with every right in its namespace, and every right on budgets that a Role can give."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "all"}}
    user.api.create(f"{RBAC}/namespaces/{namespace}/roles", {**role, "rules": [everything]})
    binding = {
        **role,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [subject],
    }
    user.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    return control_plane.token(namespace, "default")


def budget(namespace: str) -> Manifest:
    spec = {"namespaces": [namespace], "allowance": {"gpuHours": "10"}, "period": {"every": "month"}}
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": f"budget-{namespace}"},
        "spec": spec,
    }


def test_no_budget_is_made_raised_lowered_reported_spent_or_deleted(
    user: Identity, namespace: str, others: str
) -> None:
    grant = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": f"grant-{namespace}"},
        "spec": {"budget": f"budget-{others}", "gpuHours": "10", "reason": "mine"},
    }
    theirs = f"{BUDGETS}/budget-{others}"
    attempts: list[Callable[[], object]] = [
        lambda: user.api.create(BUDGETS, budget(namespace)),
        lambda: user.api.patch(theirs, {"spec": {"allowance": {"gpuHours": "1000"}}}),
        lambda: user.api.patch(theirs, {"spec": {"namespaces": [namespace, others]}}),
        lambda: user.api.patch(f"{theirs}/status", {"status": {"state": "over"}}),
        lambda: user.api.delete(theirs),
        lambda: user.api.create(GRANTS, grant),
        lambda: user.api.get(theirs),
    ]
    for attempt in attempts:
        with pytest.raises(ApiError) as refusal:
            attempt()
        assert refusal.value.status == 403


@pytest.mark.parametrize(
    "somebody",
    [
        ("--as=system:serviceaccount:fairgpu-system:fairgpu-timekeeper",),
        ("--as=system:serviceaccount:fairgpu-system:fairgpu-scheduler",),
        ("--as=system:node:n1", "--as-group=system:nodes"),
        ("--as=me", "--as-group=system:masters"),
    ],
    ids=lambda flags: flags[-1].partition("=")[2],
)
def test_no_account_is_impersonated_that_the_guards_let_pass(
    user: Identity, namespace: str, somebody: tuple[str, ...]
) -> None:
    tried = user.kubectl("get", "pods", "-n", namespace, *somebody, check=False)
    assert tried.returncode == 1
    assert "Forbidden" in tried.stderr


def test_the_figures_of_other_teams_are_not_shown(books: Books, namespace: str, others: str, token: str) -> None:
    wait_until(lambda: books.ask("GET", f"/v1/namespaces/{namespace}/budget", token) == 200, "one's own are")
    for path in (
        f"/v1/namespaces/{others}/budget",
        f"/v1/namespaces/{namespace}%2F..%2F{others}/budget",
        f"/v1/sessions?namespace={others}",
        f"/v1/sessions?namespace={others}&namespace={namespace}",
        "/v1/sessions",
        "/v1/sessions?namespace=",
        f"/v1/budgets/budget-{others}",
        "/v1/budgets",
        f"/v1/ledger?budget=budget-{others}",
        "/v1/ledger?budget=",
        "/v1/states",
        "/v1/states?wait=60",
        f"/budget/{others}",
    ):
        assert books.ask("GET", path, token) in (403, 404), path


def test_no_person_gives_themselves_money_at_the_timekeeper(
    books: Books, namespace: str, others: str, token: str
) -> None:
    for account in (others, namespace):
        order = {"budget": f"budget-{account}", "gpuHours": "1000", "reason": "mine", "name": f"grant-{namespace}"}
        assert books.ask("POST", "/v1/grants", token, order) == 403
        increase = {"gpu_hours": 1000, "reason": "mine"}
        assert books.ask("POST", f"/budget/{account}/increase", token, increase) == 403


def test_a_token_for_another_teams_pod_is_not_had(
    control_plane: ControlPlane, user: Identity, namespace: str, others: str
) -> None:
    theirs = control_plane.admin.api.create(f"/api/v1/namespaces/{others}/pods", pod("theirs", {"cpu": "1"}))
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "theirs", "uid": theirs["metadata"]["uid"]}
    spec = {"audiences": [names.TOKEN_AUDIENCE], "boundObjectRef": reference}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    for where in (namespace, others, "fairgpu-system"):
        with pytest.raises(ApiError) as refusal:
            user.api.create(f"/api/v1/namespaces/{where}/serviceaccounts/default/token", request)
        assert refusal.value.status in (403, 404)


def test_a_pod_reports_neither_for_another_nor_while_it_holds_nothing(
    control_plane: ControlPlane, user: Identity, namespace: str, others: str, books: Books
) -> None:
    mine = user.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("mine", {"nvidia.com/gpu": "1"}))
    token = control_plane.token(namespace, "default", audience=names.TOKEN_AUDIENCE, pod=mine)
    report = {"v": 1, "boot": "b", "seq": 1, "containers": []}
    assert books.ask("POST", "/v1/reports", token, report) == 403
    alive = {"usage_factor": 1.0, "pod_name": "theirs"}
    assert books.ask("POST", f"/budget/{others}/report", token, alive) == 403
    assert books.ask("POST", f"/budget/{namespace}/report", token, alive) == 403


def part(document: Any) -> str:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


ODD_TOKENS = {
    "no token": "x",
    "an audience that is a number": f"{part({'alg': 'RS256'})}.{part({'aud': 5})}.{part(b'x')}",
    "an audience that is an object": f"{part({'alg': 'RS256'})}.{part({'aud': {'a': [1]}})}.{part(b'x')}",
    "no signature": f"{part({'alg': 'none'})}.{part({'aud': [names.TOKEN_AUDIENCE], 'sub': 'admin'})}.",
    "claims 4,000 lists deep": f"{part({'alg': 'RS256'})}.{part(b'[' * 4000)}.{part(b'x')}",
    "a header 4,000 lists deep": f"{part(b'[' * 4000)}.{part({})}.{part(b'x')}",
    "a number of 5,000 digits": f"{part({'alg': 'RS256'})}.{part(b'9' * 5000)}.{part(b'x')}",
}


@pytest.mark.parametrize("oddity", ODD_TOKENS)
def test_a_caller_with_an_odd_token_has_no_rights_and_breaks_nothing(books: Books, oddity: str) -> None:
    token = ODD_TOKENS[oddity]
    for method, path in (("GET", "/v1/budgets"), ("GET", "/v1/states"), ("POST", "/v1/reports")):
        assert books.ask(method, path, token, {}) == 401
