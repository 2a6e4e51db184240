"""FairGPU's own manifests on the test cluster: rendered by kubectl's kustomize, applied as an admin would."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fairgpu.cluster.api import ApiError
from fairgpu.names import BUDGET_API, NAMESPACE_MODE, POD_LABEL, POD_LABEL_VALUE
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.control_plane.stand_ins import bind
from tests.cluster.pods import canonical_pod, plain_pod
from tests.support.waiting import wait_until

OVERLAY = Path(__file__).parents[2] / "deploy" / "overlays" / "loopback-test"
NODES = Path(__file__).parents[2] / "deploy" / "nodes"
WEBHOOK_CONFIGURATIONS = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})

Manifest = dict[str, Any]


def render(
    plane: ControlPlane,
    *,
    webhook_port: int | None = None,
    extra: Manifest | None = None,
    files: Mapping[str, str] | None = None,
    with_nodes: bool = False,
) -> list[Manifest]:
    """The objects of the installation for tests; the webhook's is the only port that a manifest names.

    `extra` are further fields of a kustomization over deploy/overlays/loopback-test, and over deploy/nodes where these
    are wanted. `files` are those beside it.
    """

    def ports(count: int) -> str:
        path = "/webhooks/{}/clientConfig/service/port"
        return json.dumps([{"op": "replace", "path": path.format(n), "value": webhook_port} for n in range(count)])

    patches = [
        {"target": {"kind": "MutatingWebhookConfiguration"}, "patch": ports(4)},
        {"target": {"kind": "ValidatingWebhookConfiguration"}, "patch": ports(4)},
    ]
    resources = [OVERLAY, NODES] if with_nodes else [OVERLAY]
    with tempfile.TemporaryDirectory(dir=plane.folder) as folder:
        kustomization = {
            "resources": [os.path.relpath(each, Path(folder).resolve()) for each in resources],
            "patches": patches if webhook_port else [],
            **(extra or {}),
        }
        for name, text in {**(files or {}), "kustomization.yaml": yaml.safe_dump(kustomization)}.items():
            (Path(folder) / name).write_text(text)
        rendered = plane.admin.kubectl("kustomize", folder).stdout
    return [document for document in yaml.safe_load_all(rendered) if document]


def render_overlay(plane: ControlPlane, folder: Path) -> list[Manifest]:
    """The objects of an overlay as it stands."""
    rendered = plane.admin.kubectl("kustomize", str(folder)).stdout
    return [document for document in yaml.safe_load_all(rendered) if document]


def apply(plane: ControlPlane, manifests: Iterable[Manifest], *flags: str) -> str:
    """Apply on the server with strict validation, in the order given. Returns what kubectl prints."""
    text = yaml.safe_dump_all(list(manifests))
    command = ("apply", "--server-side", "--field-manager=fairgpu-install", "--validate=strict", "-f", "-", *flags)
    return plane.admin.kubectl(*command, stdin=text).stdout


def without(manifests: Iterable[Manifest], kinds: Iterable[str]) -> list[Manifest]:
    """All manifests but those of these kinds."""
    unwanted = frozenset(kinds)
    return [manifest for manifest in manifests if manifest["kind"] not in unwanted]


def named(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """The one manifest of a kind (and name)."""
    (found,) = [m for m in manifests if m["kind"] == kind and name in ("", m["metadata"]["name"])]
    return found


def install(plane: ControlPlane) -> list[Manifest]:
    """Apply all but the webhook configurations, since no webhook answers yet; returns once all of it is in force."""
    manifests = without(render(plane), WEBHOOK_CONFIGURATIONS)
    apply(plane, manifests)
    _wait_for_resources(plane, manifests)
    wait_for_policies(plane)
    return manifests


def _wait_for_resources(plane: ControlPlane, manifests: list[Manifest]) -> None:
    for resource in ("gpubudgets", "gpugrants", "gpucorrections"):
        wait_until(partial(served, plane, f"/apis/fairgpu.io/v1alpha1/{resource}"), f"{resource} are served")
    for name in [item["metadata"]["name"] for item in manifests if item["kind"] == "ValidatingAdmissionPolicy"]:
        path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
        wait_until(partial(_type_checked, plane, path), f"{name} is type-checked")


def served(plane: ControlPlane, path: str) -> bool:
    """Whether the API server answers a list of a new resource."""
    try:
        return plane.exists(path)
    except ApiError as error:
        if error.status == 429:  # the storage of a new resource is being set up
            return False
        raise


def _type_checked(plane: ControlPlane, path: str) -> bool:
    return "typeChecking" in plane.admin.api.get(path).get("status", {})


def wait_for_policies(plane: ControlPlane) -> None:
    """Returns once all policies are in force: each refuses what it must.

    The API server reads policies in the background.
    """
    editor = plane.namespace_admin(plane.create_namespace("policies-"))
    namespace = editor.name.removeprefix("admin-of-")
    for policy, attempt in _attempts(plane, editor, namespace).items():
        wait_until(partial(_refused, attempt, policy), f"{policy} is in force")
    plane.remove_pods(namespace)
    _wait_for_asking(plane)


def _wait_for_asking(plane: ControlPlane) -> None:
    """Returns once the policy is in force that keeps pods from asking later, where the mode is account alone."""
    namespace = plane.create_namespace("asking-", labels={NAMESPACE_MODE: "account"})
    editor, pods = plane.namespace_admin(namespace), f"/api/v1/namespaces/{namespace}/pods"
    editor.api.create(pods, plain_pod("probe"))
    later = {"metadata": {"annotations": {"gpu-fraction": "0.5"}}}
    attempt = partial(editor.api.patch, f"{pods}/probe", later, query={"dryRun": "All"})
    wait_until(partial(_refused, attempt, "fairgpu-asking"), "fairgpu-asking is in force")
    plane.remove_pods(namespace)


def _attempts(plane: ControlPlane, editor: Identity, namespace: str) -> dict[str, Callable[[], object]]:
    """Returns requests without effect, one for each policy of both modes, which it refuses once it is in force."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    dry = {"dryRun": "All"}
    pod = plain_pod("probe")
    editor.api.create(pods, pod)
    marked = {"metadata": {"annotations": {"fairgpu.io/allocation": "{}"}}}
    forged = {**pod, "metadata": {"name": "forged", **marked["metadata"]}}
    timekeeper = plane.service_account("fairgpu-system", "fairgpu-timekeeper")
    labelled = {"metadata": {"labels": {"changed": "yes"}}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "probe"}}
    forced = {**eviction, "deleteOptions": {"gracePeriodSeconds": 0, "dryRun": ["All"]}}
    by_force = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "dryRun": ["All"]}
    gpu = plane.admin.api.create(pods, canonical_pod("bound"))
    bind(plane.service_account("fairgpu-system", "fairgpu-scheduler"), gpu, "nowhere", None)
    taken = {"metadata": {"labels": {POD_LABEL: POD_LABEL_VALUE}}}
    claims = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
    wanted = {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.example.org"}}]}}
    editor.api.create(claims, {"metadata": {"name": "probe"}, "spec": wanted})
    results = [{"request": "gpus", "driver": "gpu.example.org", "pool": "none", "device": "none"}]
    allocated = {"status": {"allocation": {"devices": {"results": results}}}}
    order = {"budget": "none", "gpuHours": 1, "reason": "none", "requestedBy": "nobody"}
    grant = {"apiVersion": BUDGET_API, "kind": "GPUGrant", "metadata": {"name": "probe"}, "spec": order}
    return {
        "fairgpu-orders": lambda: plane.admin.api.create(f"/apis/{BUDGET_API}/gpugrants", grant, query=dry),
        "fairgpu-binding": lambda: bind(
            editor, pod | {"metadata": {"name": "probe", "namespace": namespace}}, "n", None
        ),
        "fairgpu-claims": lambda: editor.api.patch(f"{claims}/probe/status", allocated, query=dry),
        "fairgpu-deletion": lambda: editor.api.delete(f"{pods}/bound", by_force),
        "fairgpu-forced-eviction": lambda: editor.api.create(f"{pods}/probe/eviction", forced, query=dry),
        "fairgpu-eviction": lambda: timekeeper.api.create(f"{pods}/probe/eviction", eviction, query=dry),
        "fairgpu-timekeeper": lambda: timekeeper.api.patch(f"{pods}/probe", labelled, query=dry),
        "fairgpu-metadata": lambda: editor.api.patch(f"{pods}/probe", taken, query=dry),
        "fairgpu-spec": lambda: editor.api.create(pods, forged, query=dry),
        "fairgpu-namespace": lambda: editor.api.patch(f"/api/v1/namespaces/{namespace}", marked, query=dry),
    }


def wait_for_webhooks(plane: ControlPlane) -> None:
    """Returns once the API server asks FairGPU's webhooks, both of them, and trusts who answers.

    It hears of their configurations, and of the CA that the webhook writes into these, some time after they are stored.
    """
    wait_until(partial(_mutated, plane), "GPU pods are sent to the mutating webhook")
    limits = {"tencent.com/vcuda-core": "30"}  # without its memory
    container = {"name": "main", "image": "example.org/app:1", "resources": {"limits": limits}}
    labels = {"app": "wrong"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "wrong"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    create = partial(plane.admin.kubectl, "create", "--dry-run=server", "-f", "-", stdin=deployment, check=False)
    wait_until(lambda: "vcuda-memory" in create().stderr, "templates are sent to the validating webhook")


def _mutated(plane: ControlPlane) -> bool:
    """Whether a pod with a GPU would be given the sidecar; without the webhook, or with one unknown, it is refused."""
    container = {"name": "main", "image": "example.org/app:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": {"containers": [container]}}
    try:
        admitted = plane.admin.api.create("/api/v1/namespaces/default/pods", pod, query={"dryRun": "All"})
    except ApiError as error:
        if error.status in {403, 422, 500}:
            return False
        raise
    return "initContainers" in admitted["spec"]


def _refused(attempt: Callable[[], object], policy: str) -> bool:
    try:
        attempt()
    except ApiError as error:
        return policy in error.message
    return False
