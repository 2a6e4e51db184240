"""A webhook of somebody else's that is called after FairGPU's, and changes what was admitted.

No webhook is last in the chain for sure: the policy fairgpu-spec sees the pod after all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.pods import canonical_pod, plain_pod
from tests.cluster.reviewer import running_reviewer
from tests.support.waiting import wait_until

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
Operations = list[dict[str, Any]]

pytestmark = pytest.mark.usefixtures("installation")


@pytest.fixture
def later_webhook(control_plane: ControlPlane, namespace: str) -> Callable[[Operations], Any]:
    """`with later_webhook(operations):` patches every pod that is created in this test's namespace."""

    @contextmanager
    def run(operations: Operations) -> Iterator[None]:
        with running_reviewer(control_plane.folder / f"pki-{namespace}", operations=operations) as reviewer:
            webhook = {
                "name": "later.example.org",
                "clientConfig": {"url": f"https://127.0.0.1:{reviewer.port}/", "caBundle": reviewer.ca_bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            configuration = {"metadata": {"name": f"zzz-{namespace}"}, "webhooks": [webhook]}
            control_plane.admin.api.create(CONFIGURATIONS, configuration)
            try:
                yield
            finally:
                control_plane.admin.api.delete(f"{CONFIGURATIONS}/zzz-{namespace}")

    return run


GIVE_GPU = {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {"nvidia.com/gpu": "1"}}}
GIVE_SHARE = {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": {"fairgpu.io/gpu": "1"}}}
TAKE_SIDECAR = {"op": "remove", "path": "/spec/initContainers/0"}
PLACE = {"op": "add", "path": "/spec/nodeName", "value": "n1"}


@pytest.mark.parametrize(
    ("operation", "pod", "message"),
    [
        (GIVE_GPU, plain_pod(), "a webhook that runs after zz-fairgpu may have added it"),
        (GIVE_SHARE, plain_pod(), "spec.initContainers: no native sidecar fairgpu-sidecar"),
        (TAKE_SIDECAR, canonical_pod(), "spec.initContainers: no native sidecar fairgpu-sidecar"),
        (PLACE, canonical_pod(), "spec.nodeName: given"),
    ],
    ids=["adds a GPU", "adds a share", "takes the sidecar out", "places the pod"],
)
def test_a_later_webhooks_change_of_a_gpu_pod_is_caught(
    control_plane: ControlPlane,
    namespace: str,
    later_webhook: Callable[[Operations], Any],
    operation: dict[str, Any],
    pod: dict[str, Any],
    message: str,
) -> None:
    editor: Identity = control_plane.namespace_admin(namespace)
    path = f"/api/v1/namespaces/{namespace}/pods"
    with later_webhook([operation]):

        def refusal() -> str | None:
            """Nothing until the API server has learned of the webhook, which it does in the background."""
            try:
                editor.api.create(path, pod, {"dryRun": "All"})
            except ApiError as error:
                return error.message
            return None

        assert message in wait_until(refusal, "the pod is refused")
