"""Asks the timekeeper's REST API as a person would: with a token of the API server, over TLS that is verified."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import Any
from urllib.parse import urlencode

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.support.waiting import LIMIT_S, wait_until

AUTHORITY = "/api/v1/namespaces/fairgpu-system/configmaps/fairgpu-timekeeper-ca"


class TimekeeperClient:
    """GET and POST with JSON."""

    def __init__(self, plane: ControlPlane, port: int, token: str) -> None:
        """Names the port on loopback, and the token to show."""
        wait_until(lambda: plane.exists(AUTHORITY), "the timekeeper shows its CA")
        authority = plane.admin.api.get(AUTHORITY)["data"]["ca.crt"]
        self._context = ssl.create_default_context(cadata=authority)
        self._address = f"https://localhost:{port}"
        self._token = token

    def get(self, path: str, **query: str) -> Any:
        """The answer's document."""
        return self._ask(urllib.request.Request(f"{self._address}{path}?{urlencode(query)}"))  # noqa: S310 - https

    def post(self, path: str, document: Any) -> Any:
        """The answer's document."""
        data = json.dumps(document).encode()
        request = urllib.request.Request(f"{self._address}{path}", data)  # noqa: S310 - https
        request.add_header("Content-Type", "application/json")
        return self._ask(request)

    def _ask(self, request: urllib.request.Request) -> Any:
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=LIMIT_S, context=self._context) as answer:  # noqa: S310 - https
            return json.load(answer)


def finance_token(plane: ControlPlane, namespace: str) -> str:
    """A token of a new account `finance` of the namespace, which may see and grant money in the whole cluster."""
    admin = plane.admin.api
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "finance"}}
    admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"finance-{namespace}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-budget-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "finance", "namespace": namespace}],
    }
    admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    identity = plane.service_account(namespace, "finance")
    wait_until(lambda: identity.may("list", "gpubudgets.fairgpu.io"), "the binding is in force")
    return plane.token(namespace, "finance")
