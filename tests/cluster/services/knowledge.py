"""The state of a budget as each replica of the webhook has it: the API server's next review may go to any of them."""

from __future__ import annotations

import ssl
from http.client import HTTPSConnection

from fairgpu import names
from fairgpu.states import BudgetState
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.support.admission import apply, read_answer, review
from tests.support.servers.https_requests import one_request
from tests.support.waiting import LIMIT_S, wait_until


def wait_until_known(services: Services, namespace: str, state: BudgetState) -> None:
    """Returns once every replica that takes reviews knows the state of a namespace's budget."""

    def known() -> bool:
        ready = services.webhook.ready
        return bool(ready) and all(_state_at(port, namespace) == state for port in ready)

    wait_until(known, f"the webhook's replicas know that the budget of {namespace} is {state}")


def _state_at(port: int, namespace: str) -> str | None:
    """The state that the replica at a port would write on a GPU pod of a namespace."""
    item = pod("asking", {"nvidia.com/gpu": 1})
    item["metadata"]["namespace"] = namespace
    trusting = ssl._create_unverified_context()  # noqa: S323 - as the kubelet's probes
    connection = HTTPSConnection("127.0.0.1", port, timeout=LIMIT_S, context=trusting)
    _, body = one_request(connection, "POST", "/mutate", review(item, namespace=namespace, dryRun=True))
    found: str | None = apply(item, read_answer(body).patch)["metadata"].get("annotations", {}).get(names.BUDGET_STATE)
    return found
