"""The state of an installation, from the objects of an API server."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from fairgpu.certificates import make_authority
from fairgpu.cluster.api import ApiError, KubernetesAPI
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.installation import OWN_CONTAINERS, Installation, as_document, as_lines, judge, read_installation

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
NANOSECONDS = int(NOW.timestamp()) * SECOND
APPS = "/apis/apps/v1/namespaces"
SYSTEM = f"{APPS}/fairgpu-system"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/fairgpu-system/leases/fairgpu-timekeeper"
AUTHORITY = "/api/v1/namespaces/fairgpu-system/configmaps/fairgpu-timekeeper-ca"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-fairgpu"
BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
LINES = "/api/v1/namespaces/fairgpu-system/configmaps/fairgpu-budgets"
VERSION = "0.1.0"
DEPLOY = Path(__file__).parents[3] / "deploy"


def workload(name: str, ready: int, wanted: int, **images: str) -> dict[str, Any]:
    """A Deployment or StatefulSet with an image by container."""
    containers = [{"name": container.replace("_", "-"), "image": image} for container, image in images.items()]
    spec = {"replicas": wanted, "template": {"spec": {"containers": containers}}}
    return {"metadata": {"name": name}, "spec": spec, "status": {"readyReplicas": ready}}


def daemons(ready: int, wanted: int, image: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"name": "nodeagent", "image": image}]}}}
    status = {"desiredNumberScheduled": wanted, "numberReady": ready}
    return {"metadata": {"name": "fairgpu-nodeagent"}, "spec": spec, "status": status}


def authority(left: timedelta = timedelta(days=365), age: timedelta = timedelta(days=300)) -> str:
    """A CA of that age, with that much of its life left."""
    return make_authority("fairgpu", NOW - age, age + left).certificate_pem.decode()


def namespace(name: str, mode: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"fairgpu.io/mode": mode}}}


def installed() -> dict[str, Any]:
    """The objects of an installation in which all is right."""
    ca = authority()
    hook = {"clientConfig": {"caBundle": base64.b64encode(ca.encode()).decode()}}
    budget = {"metadata": {"name": "vision", "generation": 2}, "status": {"observedGeneration": 2}}
    return {
        f"{SYSTEM}/deployments": {
            "items": [
                workload("fairgpu-timekeeper", 2, 2, rest="r.example.org:5000/fairgpu/timekeeper:0.1.0@sha256:00"),
                workload("fairgpu-webhook", 2, 2, webhook="r.example.org/webhook:0.1.0", proxy="envoy:v1.35.0"),
                workload(
                    "fairgpu-scheduler",
                    2,
                    2,
                    extender="r.example.org/scheduler:0.1.0",
                    kube_scheduler="r.example.org/k8s-scheduler-amd64:v1.34.2",
                ),
                workload("other", 0, 1, webhook="example.org/other:9.9"),
            ]
        },
        f"{SYSTEM}/statefulsets": {"items": [workload("fairgpu-redis", 1, 1, redis="docker.io/library/redis:7.2")]},
        f"{APPS}/fairgpu-nodes/daemonsets": {"items": [daemons(3, 3, "r.example.org/nodeagent:0.1.0")]},
        LEASE: {"spec": {"renewTime": format_instant(NANOSECONDS - 5 * SECOND)}},
        AUTHORITY: {"data": {"ca.crt": ca}},
        WEBHOOKS: {"webhooks": [hook, hook]},
        BUDGETS: {"items": [budget]},
        "/api/v1/namespaces": {"items": [namespace("research", "share"), {"metadata": {"name": "default"}}]},
    }


class Server:
    """An API server with these objects; a number stands for its refusal."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects

    def get(self, path: str, _query: Any = None, **_options: Any) -> Any:
        found = self._objects.get(path, 404)
        if isinstance(found, int):
            raise ApiError(found, "Refused", path)
        return found


def judged(objects: Mapping[str, Any]) -> Installation:
    observed = read_installation(cast("KubernetesAPI", Server(objects)), "fairgpu-timekeeper")
    assert observed is not None
    return judge(observed, VERSION, 15, NANOSECONDS)


def matter(changed: Mapping[str, Any]) -> str:
    """The one thing that is the matter once these objects are other than in an installation that is right."""
    (found,) = judged({**installed(), **changed}).matters
    return found


def test_nothing_is_installed_where_none_of_its_workloads_is() -> None:
    assert read_installation(cast("KubernetesAPI", Server({})), "fairgpu-timekeeper") is None


def test_nothing_is_the_matter_where_all_is_right_and_versions_are_those_of_fairgpus_own_images() -> None:
    found = judged(installed())

    assert (found.matters, found.unreadable) == ((), ())
    assert [(part.name, part.ready, part.wanted, part.versions) for part in found.parts] == [
        ("fairgpu-timekeeper", 2, 2, ("0.1.0",)),
        ("fairgpu-webhook", 2, 2, ("0.1.0",)),
        ("fairgpu-scheduler", 2, 2, ("0.1.0",)),
        ("fairgpu-redis", 1, 1, ()),
        ("fairgpu-nodeagent", 3, 3, ("0.1.0",)),
    ]
    assert "All parts are ready" in "\n".join(as_lines(found))
    assert as_document(found)["parts"][3] == {"name": "fairgpu-redis", "ready": 1, "wanted": 1, "versions": ()}


def test_a_part_that_is_not_ready_is_named_with_what_follows() -> None:
    redis = {f"{SYSTEM}/statefulsets": {"items": [workload("fairgpu-redis", 0, 1, redis="redis:7.2")]}}
    agents = {f"{APPS}/fairgpu-nodes/daemonsets": {"items": [daemons(1, 3, "r.example.org/nodeagent:0.1.0")]}}

    assert matter(redis) == (
        "fairgpu-redis: 0 of 1 pods are ready. Without Redis nothing is settled, and states of budgets grow old"
    )
    assert matter(agents).startswith("fairgpu-nodeagent: 1 of 3 pods are ready")


@pytest.mark.parametrize(
    ("name", "consequence"), [("fairgpu-webhook", "the API server refuses GPU pods"), ("fairgpu-certificates", "")]
)
def test_a_part_that_is_scaled_to_no_pod_is_named_with_the_way_back(name: str, consequence: str) -> None:
    objects = installed()
    objects[f"{SYSTEM}/deployments"]["items"].append(workload(name, 0, 0))
    (found,) = judged(objects).matters

    assert found.startswith(f"{name} is scaled to 0 pods. ")
    assert consequence in found
    assert found.endswith("Apply your overlay again")


def test_an_agent_that_no_node_asks_for_is_no_matter() -> None:
    none = {f"{APPS}/fairgpu-nodes/daemonsets": {"items": [daemons(0, 0, "r.example.org/nodeagent:0.1.0")]}}
    assert judged({**installed(), **none}).matters == ()


def test_a_team_that_was_moved_to_a_scheduler_that_is_not_there_is_named() -> None:
    webhook = workload("fairgpu-webhook", 2, 2, webhook="r.example.org/webhook:0.1.0")

    assert matter({f"{SYSTEM}/deployments": {"items": [webhook]}}) == (
        "These namespaces have the label fairgpu.io/mode=share, and fairgpu-scheduler is not installed: research. "
        "Their new GPU pods stay Pending without an event until it is (docs/adopting.md)"
    )


def test_a_mode_that_counts_as_none_is_named() -> None:
    assert matter({"/api/v1/namespaces": {"items": [namespace("vision", "Account")]}}) == (
        "vision: the label fairgpu.io/mode is 'Account' and counts as none; allowed: share, account"
    )


def test_words_that_permit_nothing_are_named() -> None:
    vision = {"metadata": {"name": "vision", "annotations": {"fairgpu.io/allow": "elastic, Elastic,all"}}}
    assert matter({"/api/v1/namespaces": {"items": [vision]}}) == (
        "vision: the annotation fairgpu.io/allow contains 'Elastic', 'all', which permits nothing; "
        "allowed: elastic, high-priority"
    )


def test_parts_of_different_versions_are_an_upgrade_that_is_not_finished() -> None:
    agents = {f"{APPS}/fairgpu-nodes/daemonsets": {"items": [daemons(3, 3, "r.example.org/nodeagent:0.2.0")]}}

    assert matter(agents) == "Parts are of different versions: 0.1.0, 0.2.0. Finish the upgrade"


def test_versions_are_read_of_each_container_of_the_manifests_with_an_image_of_fairgpu() -> None:
    own = set()
    # deploy/overlays may hold a developer's own.
    for file in (file for folder in ("base", "nodes") for file in (DEPLOY / folder).rglob("*.yaml")):
        for item in yaml.safe_load_all(file.read_text()):
            if isinstance(item, dict) and item.get("kind") in {"Deployment", "DaemonSet", "StatefulSet"}:
                containers = item["spec"].get("template", {}).get("spec", {}).get("containers", [])
                images = {container["name"]: container.get("image", "") for container in containers}
                own |= {name for name, image in images.items() if image.endswith(f":{VERSION}")}

    assert own == OWN_CONTAINERS


def test_an_installation_of_another_version_than_the_command_is_named() -> None:
    observed = read_installation(cast("KubernetesAPI", Server(installed())), "fairgpu-timekeeper")
    assert observed is not None

    assert judge(observed, "0.2.0", 15, NANOSECONDS).matters == (
        "Installed is 0.1.0, and this command is 0.2.0. It may name things that are not there",
    )


def test_a_lease_without_renewal_means_that_states_grow_old() -> None:
    old = {LEASE: {"spec": {"renewTime": format_instant(NANOSECONDS - 90 * SECOND)}}}

    assert matter(old).startswith("No replica leads: the Lease was renewed 90 s ago by this machine's clock")
    assert matter({LEASE: 404}).startswith("No replica has led yet")


@pytest.mark.parametrize(
    ("bundle", "said"),
    [
        ("", "The CA of the timekeeper is not published yet"),
        ("no certificate", "The CA of the timekeeper is not published yet"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "The CA of the timekeeper is not published"),
        (authority(timedelta(days=-1)), "The CA of the timekeeper ended on 2026-11-25"),
        (authority(timedelta(days=7)), "The CA of the timekeeper ends on 2026-12-03"),
    ],
)
def test_a_ca_that_is_missing_or_near_its_end_is_named(bundle: str, said: str) -> None:
    assert matter({AUTHORITY: {"data": {"ca.crt": bundle}}}).startswith(said)


def test_a_ca_of_the_timekeeper_that_is_not_there_is_not_published_and_one_that_is_refused_is_not_known() -> None:
    assert matter({AUTHORITY: 404}).startswith("The CA of the timekeeper is not published yet")
    refused = judged({**installed(), AUTHORITY: 403})
    assert (refused.matters, refused.unreadable) == ((), (AUTHORITY,))


def test_a_ca_of_a_short_life_is_near_its_end_in_the_last_sixth_of_it() -> None:
    fresh, late = (authority(timedelta(days=left), timedelta(days=6 - left)) for left in (2, 0.5))

    assert judged({**installed(), AUTHORITY: {"data": {"ca.crt": fresh}}}).matters == ()
    assert matter({AUTHORITY: {"data": {"ca.crt": late}}}).endswith("and should have been renewed")


def test_while_a_ca_changes_the_newer_one_counts() -> None:
    both = authority(timedelta(days=2)) + authority(timedelta(days=300))

    assert judged({**installed(), AUTHORITY: {"data": {"ca.crt": both}}}).matters == ()


def test_a_webhook_of_several_without_a_ca_is_named() -> None:
    hooks = [*installed()[WEBHOOKS]["webhooks"], {"clientConfig": {}}]

    assert matter({WEBHOOKS: {"webhooks": hooks}}).startswith("The CA of the webhook is not published yet")


def test_budgets_whose_status_is_of_an_older_spec_are_named() -> None:
    budgets = [
        {"metadata": {"name": f"b{at}", "generation": 2}, "status": {"observedGeneration": 1}} for at in range(5)
    ]

    assert matter({BUDGETS: {"items": budgets}}) == (
        "The status of these budgets is of an older spec: b0, b1, b2 and 2 more"
    )


LINES_LEFT = (
    "These budgets are lines of the ConfigMap fairgpu-budgets, which has no effect where budgets are GPUBudgets: "
    "speech. `fairgpu gpubudgets | kubectl apply -f -` makes them GPUBudgets; or take them out of the ConfigMap"
)


def test_lines_of_the_config_map_that_are_no_gpubudgets_are_named_where_the_mode_is_not_look() -> None:
    lines = {LINES: {"data": {"vision": "", "speech": ""}}}
    looking = {path: item for path, item in installed().items() if path != WEBHOOKS}

    assert matter(lines) == LINES_LEFT
    assert judged({**looking, **lines}).matters == ()


def test_lines_of_the_config_map_are_named_where_the_mode_look_takes_gpubudgets() -> None:
    """The Deployment is as deploy/look-gpubudgets patches it."""
    (component,) = [
        yaml.safe_load(patch["patch"])
        for patch in yaml.safe_load((DEPLOY / "look-gpubudgets/kustomization.yaml").read_text())["patches"]
        if "target" not in patch
    ]
    timekeeper = {**workload("fairgpu-timekeeper", 2, 2), "spec": {"replicas": 2, **component["spec"]}}
    looking = {path: item for path, item in installed().items() if path != WEBHOOKS}
    lines = {LINES: {"data": {"vision": "", "speech": ""}}, f"{SYSTEM}/deployments": {"items": [timekeeper]}}

    assert judged({**looking, **lines}).matters == (LINES_LEFT,)
    assert judged({**looking, **lines, LINES: {"data": {"vision": ""}}}).matters == ()


@pytest.mark.parametrize("status", [403, 503])
def test_an_object_that_cannot_be_read_is_named_and_not_judged(status: int) -> None:
    found = judged({**installed(), LEASE: status, BUDGETS: status})

    assert found.matters == ()
    assert found.unreadable == (LEASE, BUDGETS)
    lines = as_lines(found)
    assert f"Not read: {LEASE}, {BUDGETS}." in lines
    assert "a replica leads" not in "\n".join(lines)


def test_an_account_that_may_read_no_workload_learns_that_nothing_is_known() -> None:
    """An account with no right at all would otherwise read as a cluster without FairGPU."""
    kinds = [f"{SYSTEM}/deployments", f"{SYSTEM}/statefulsets", f"{APPS}/fairgpu-nodes/daemonsets"]
    found = judged(dict.fromkeys(kinds, 403))

    assert (found.parts, found.matters, found.unreadable) == ((), (), tuple(kinds))
    assert as_lines(found) == [f"It is not known whether FairGPU is installed. Not read: {', '.join(kinds)}."]


def test_an_error_of_the_api_server_is_one_of_the_command() -> None:
    with pytest.raises(ApiError):
        judged({**installed(), LEASE: 500})
