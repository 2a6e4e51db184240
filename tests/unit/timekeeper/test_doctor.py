"""The findings of `fairgpu doctor` in a cluster, from the objects of an API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

import pytest

from fairgpu import names
from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.commands import CommandError
from fairgpu.names import CANONICAL_RESOURCES
from tests.support.field_tables import differences
from timekeeper import doctor
from timekeeper.settings import TimekeeperSettings

LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}


OTHERS = {
    "quotas": "/api/v1/resourcequotas",
    "budgets": "/apis/fairgpu.io/v1alpha1/gpubudgets",
    "classes": "/apis/scheduling.k8s.io/v1/priorityclasses",
}


class Cluster:
    """An API server that answers lists, refuses those of OTHERS, and has nothing else; an error given is raised."""

    def __init__(
        self, nodes: list[Any], pods: list[Any], more: Mapping[str, Any] | None = None, **others: list[Any]
    ) -> None:
        self._answers = {
            "/version": {"gitVersion": "v1.34.2"},
            "/api/v1/nodes": {"items": nodes},
            "/api/v1/pods": {"items": pods},
            **(more or {}),
            **{path: {"items": others[name]} for name, path in OTHERS.items() if name in others},
        }

    def get(self, path: str, _query: Mapping[str, Any] | None = None, **_options: Any) -> Any:
        if path not in self._answers:
            refused = path in OTHERS.values()
            raise ApiError(403, "Forbidden", path) if refused else ApiError(404, "NotFound", path)
        answer = self._answers[path]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def create(self, _path: str, body: Mapping[str, Any], _query: Any = None) -> Any:
        """Answers access reviews: yes to who asks for themselves, and no about others."""
        return {"status": {"allowed": body["kind"] == "SelfSubjectAccessReview"}}


def node(name: str, capacity: dict[str, str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "status": {"capacity": capacity}}


def pod(name: str, limits: dict[str, str], node_name: str = "", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"containers": [{"resources": {"limits": limits}}], "nodeName": node_name, **spec},
        "status": {"phase": phase},
    }


def examined(
    nodes: list[Any], pods: list[Any], capsys: pytest.CaptureFixture[str], more: Any = None, **settings: Any
) -> Any:
    api = cast("KubernetesAPI", Cluster(nodes, pods, more))
    assert doctor.run(api, TimekeeperSettings(**settings), "json", 0) == 0
    return json.loads(capsys.readouterr().out)


NODES = [node("n1", {"nvidia.com/gpu": "32"}, LABELS), node("n2", {"amd.com/gpu": "8"}), node("cpu", {"cpu": "8"})]


def test_it_names_the_stacks_of_the_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(NODES, [], capsys)["stacks"] == {"nvidia with shared GPUs": 1, "amd": 1}


def test_it_says_what_each_pod_costs_at_the_admins_prices(capsys: pytest.CaptureFixture[str]) -> None:
    pods = [pod("sliced", {"nvidia.com/gpu": "1"}, "n1"), pod("plain", {"cpu": "1"}, "n1")]
    found = examined(NODES, pods, capsys, metering={"prices": {"A100": 2}})

    assert [(one["name"], one["rateMicroGPUSecondsPerSecond"]) for one in found["pods"]] == [
        ("sliced", str(int(Fraction(2, 4) * 1_000_000)))
    ]


def test_it_names_what_is_charged_by_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    api = cast("KubernetesAPI", Cluster(NODES, [pod("p", {"amd.com/gpu": "2"}, "n2")]))
    doctor.run(api, TimekeeperSettings(), "text", 0)

    assert "charged at the price of `*`: team/p" in capsys.readouterr().out


def test_pods_that_wait_or_have_ended_hold_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"nvidia.com/gpu": "1"}
    found = examined(NODES, [pod("waits", asked), pod("ended", asked, "n1", "Succeeded")], capsys)

    assert (found["pods"], found["waiting"]) == ([], 1)


def claims_api(driver: str, model: str) -> dict[str, Any]:
    group = "/apis/resource.k8s.io"
    device = {"name": "gpu-0", "attributes": {"productName": {"string": model}}}
    spec = {"driver": driver, "nodeName": "n1", "pool": {"name": "n1", "generation": 1}, "devices": [device]}
    result = {"driver": driver, "pool": "n1", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "uid": "u1"}]}
    claim = {"metadata": {"namespace": "team", "name": "own"}, "status": status}
    return {
        group: {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]},
        f"{group}/v1beta2/resourceclaims": {"items": [claim]},
        f"{group}/v1beta2/resourceslices": {"items": [{"spec": spec}]},
    }


def test_a_claim_is_named_with_what_its_devices_cost(capsys: pytest.CaptureFixture[str]) -> None:
    claiming = pod("claims", {"cpu": "1"}, "n1", resourceClaims=[{"name": "gpu"}])
    found = examined(NODES, [claiming], capsys, more=claims_api("gpu.nvidia.com", "NVIDIA L4"))

    assert [(one["name"], one["models"], one["rateMicroGPUSecondsPerSecond"]) for one in found["pods"]] == [
        ("resourceclaim/own", ["NVIDIA L4"], "1000000")
    ]
    assert found["stacks"]["claims of gpu.nvidia.com"] == 1


@pytest.mark.parametrize(
    ("place", "nodes"),
    [
        ({"allNodes": True}, 0),
        ({"nodeSelector": {"nodeSelectorTerms": []}}, 0),
        ({"perDeviceNodeSelection": True, "devices": [{"name": "a", "nodeName": "n1"}, {"name": "b"}]}, 1),
    ],
    ids=["all nodes", "a selector", "each device"],
)
def test_a_slice_without_a_node_of_its_own_counts_the_nodes_that_its_devices_name(
    place: dict[str, Any], nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    more = claims_api("gpu.nvidia.com", "NVIDIA L4")
    ((slices,),) = (more[path]["items"] for path in more if path.endswith("slices"))
    del slices["spec"]["nodeName"]
    slices["spec"] |= place
    assert examined(NODES, [], capsys, more=more)["stacks"]["claims of gpu.nvidia.com"] == nodes


def test_an_extended_resource_of_a_claim_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    asking = pod("asks", {"nvidia.com/gpu": "1"}, "n1")
    asking["metadata"]["uid"] = "u1"
    mapped = [{"containerName": "", "resourceName": "nvidia.com/gpu", "requestName": "r"}]
    asking["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "own", "requestMappings": mapped}
    found = examined(NODES, [asking], capsys, more=claims_api("gpu.nvidia.com", "NVIDIA L4"))

    assert [one["name"] for one in found["pods"]] == ["resourceclaim/own"]


def test_drivers_whose_claims_cost_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(NODES, [], capsys, more=claims_api("dra.example.com", "any"))

    assert (found["pods"], found["unlistedDrivers"]) == ([], ["dra.example.com"])


@pytest.mark.parametrize("status", [403, 503])
@pytest.mark.parametrize("part", ["", "/v1beta2/resourceclaims", "/v1beta2/resourceslices"])
def test_where_the_api_server_does_not_show_claims_it_says_so_and_names_the_other_pods(
    part: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/apis/resource.k8s.io{part}"
    more = {**claims_api("gpu.nvidia.com", "NVIDIA L4"), path: ApiError(status, "Refused", path)}
    pods = [pod("sliced", {"nvidia.com/gpu": "1"}, "n1")]
    found = examined(NODES, pods, capsys, more)
    unread = path.rpartition("/")[2]

    assert "sliced" in [one["name"] for one in found["pods"]]
    assert found["notRead"] == [unread]
    doctor.run(cast("KubernetesAPI", Cluster(NODES, pods, more)), TimekeeperSettings(), "text", 0)
    shown = capsys.readouterr().out
    follows = "What pods hold by resource claims is not known without it."
    if part.endswith("slices"):
        follows = "Without it, each device of a claim counts as a GPU of unknown model."
        (claim,) = (one for one in found["pods"] if one["name"] == "resourceclaim/own")
        assert (claim["models"], claim["rateMicroGPUSecondsPerSecond"]) == (["*"], "1000000")
    assert f"Not read: {unread}. {follows}" in shown
    assert shown.count("Not read: resourc") == 1


def test_a_list_that_is_refused_is_a_clear_error() -> None:
    class Refusing(Cluster):
        def get(self, path: str, _query: Mapping[str, Any] | None = None, **_options: Any) -> Any:
            raise ApiError(403, "Forbidden", f"cannot read {path}")

    with pytest.raises(CommandError, match="cannot read /version\ndoctor needs `list` of nodes"):
        doctor.run(cast("KubernetesAPI", Refusing([], [])), TimekeeperSettings(), "json", 0)


def test_it_plans_the_way_to_share_pool_by_pool(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        node("n1", {"nvidia.com/gpu": "32"}, {**LABELS, "cloud.google.com/gke-nodepool": "a100"}),
        node("n2", {"amd.com/gpu": "8"}),
        node("n3", {"cpu": "8"}),
    ]
    asked = {"nvidia.com/gpu": "1"}
    pods = [pod("runs", asked, "n1"), pod("waits", asked), pod("amd", {"amd.com/gpu": "1"}, "n2")]
    validator = pod("validator", asked, "n2")
    validator["metadata"]["namespace"] = "gpu-operator"
    found = examined(nodes, [*pods, validator], capsys)["pools"]

    assert [(one["name"], one["nodes"], one["models"], one["pods"], one["move"]) for one in found] == [
        (None, 1, ["*"], {"team": 1}, 1),
        ("a100", 1, ["NVIDIA-A100-SXM4-80GB"], {"team": 1}, 1),
    ]
    assert [(one["canMove"], one["before"]) for one in found] == [
        (False, []),
        (True, ["take the device plugin away"]),
    ]
    assert found[1]["rateMicroGPUSecondsPerSecond"] == "250000"


def test_a_node_of_a_driver_for_claims_is_in_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("n1", {"cpu": "8"}, {"karpenter.sh/nodepool": "dra"})]
    claiming = pod("claims", {"cpu": "1"}, "n1", resourceClaims=[{"name": "gpu"}])
    (pool,) = examined(nodes, [claiming], capsys, more=claims_api("gpu.nvidia.com", "NVIDIA L4"))["pools"]

    assert (pool["name"], pool["stacks"], pool["models"]) == ("dra", ["claims of gpu.nvidia.com"], ["NVIDIA L4"])
    assert (pool["rateMicroGPUSecondsPerSecond"], pool["pods"]) == ("1000000", {"team": 1})


def changes(
    capsys: pytest.CaptureFixture[str], pods: list[Any], *more_nodes: dict[str, Any], **others: list[Any]
) -> tuple[Any, str]:
    """Returns the changes that the modes would bring, as a document and as text."""
    api = cast("KubernetesAPI", Cluster([*NODES, *more_nodes], pods, **others))
    doctor.run(api, TimekeeperSettings(), "json", 0)
    document = json.loads(capsys.readouterr().out)["modes"]
    doctor.run(api, TimekeeperSettings(), "text", 0)
    return document, capsys.readouterr().out


def test_it_says_which_pods_share_would_read_and_which_it_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    pods = [
        pod("plain", {"cpu": "1"}, "n1"),
        pod("whole", {"nvidia.com/gpu": "1"}, "n1", priorityClassName="everyday"),
        pod("own", {"nvidia.com/gpu": "1"}, "n1", priorityClassName="urgent"),
        pod("mig", {"nvidia.com/mig-1g.10gb": "1"}, "n1"),
        pod("over", {"amd.com/gpu": "1"}, "n2", phase="Succeeded"),
    ]
    everyday = {"metadata": {"name": "everyday"}, "globalDefault": True}
    document, text = changes(capsys, pods, classes=[everyday])

    assert document["namespaces"] == [{"namespace": "team", "pods": 3, "readByShare": 2, "ownPriorityClass": 1}]
    assert ["team", "3", "2", "1", "1"] in [line.split() for line in text.splitlines()]


def test_it_names_the_schedulers_whose_pods_account_would_refuse_and_the_right_that_they_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods = [pod(name, {"nvidia.com/gpu": "1"}, "n1", schedulerName=name) for name in ("kai-scheduler", "own-scheduler")]
    document, text = changes(capsys, pods)

    assert document["schedulersNotTriedWithGates"] == {"own-scheduler": 1}
    assert document["writers"] == {"kai": ["kai-scheduler:scheduler", "kai-scheduler:binder"]}
    assert "kubectl create clusterrolebinding kai-writes-gpu-pods" in text
    assert "--serviceaccount=kai-scheduler:scheduler --serviceaccount=kai-scheduler:binder" in text
    assert "existing.gated_schedulers" in text


def test_it_names_the_plugin_that_writes_on_pods_which_devices_of_ascend_they_get(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document, text = changes(capsys, [], node("ascend", {"huawei.com/Ascend910B3": "8"}))

    assert document["writers"] == {"ascend": ["kube-system:hami-ascend"]}
    assert "kubectl create clusterrolebinding ascend-writes-gpu-pods" in text


def test_it_names_the_budgets_by_which_nothing_yields_and_the_quotas_that_count_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    allowance = {"allowance": {"gpuHours": 1}}
    budgets = [
        {"metadata": {"name": "yields"}, "spec": allowance},
        {"metadata": {"name": "holds"}, "spec": {**allowance, "onExhausted": "hold"}},
        {"metadata": {"name": "evicts"}, "spec": {**allowance, "enforcement": "evict"}},
        {"metadata": {"name": "unlimited"}, "spec": {}},
    ]
    quota = {"metadata": {"namespace": "team", "name": "q"}, "spec": {"hard": {"requests.fairgpu.io/gpu-core": "100"}}}
    document, text = changes(capsys, [], budgets=budgets, quotas=[quota])

    assert document["budgetsByWhichNothingYields"] == ["yields"]
    assert document["namespacesWithIdleQuotas"] == ["team"]
    assert "enforcement: evict" in text
    assert "requests.nvidia.com/gpu" in text


def kueue(version: str, queues: dict[str, list[str]], local: list[tuple[str, str]]) -> dict[str, Any]:
    """The answers of an API server with Kueue: ClusterQueues with what they cover, and LocalQueues by namespace."""
    group = "/apis/kueue.x-k8s.io"
    cluster = [
        {"metadata": {"name": name}, "spec": {"resourceGroups": [{"coveredResources": covered}]}}
        for name, covered in queues.items()
    ]
    of_namespaces = [
        {"metadata": {"namespace": namespace, "name": "gpu"}, "spec": {"clusterQueue": queue}}
        for namespace, queue in local
    ]
    return {
        group: {"versions": [{"version": "v1alpha1"}, {"version": version}]},
        f"{group}/{version}/clusterqueues": {"items": cluster},
        f"{group}/{version}/localqueues": {"items": of_namespaces},
    }


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_it_names_the_queues_by_which_kueue_gives_gpus(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours = [*CANONICAL_RESOURCES, "cpu"]
    queues = {"gpus": ["cpu", "nvidia.com/gpu"], "ready": ours, "cpus": ["cpu", "memory"]}
    more = kueue(version, queues, [("vision", "gpus"), ("speech", "gpus"), ("web", "cpus")])
    api = cast("KubernetesAPI", Cluster(NODES, [], more))
    doctor.run(api, TimekeeperSettings(), "json", 0)
    found = json.loads(capsys.readouterr().out)["modes"]["clusterQueues"]
    doctor.run(api, TimekeeperSettings(), "text", 0)
    text = capsys.readouterr().out

    assert [(one["name"], one["namespaces"], one["coversShare"]) for one in found] == [
        ("gpus", ["speech", "vision"], False),
        ("ready", [], True),
    ]
    assert found[0]["resources"] == ["nvidia.com/gpu"]
    assert "Before share, let gpus cover fairgpu.io/gpu, " in text


@pytest.mark.parametrize("status", [403, 503])
def test_where_the_api_server_does_not_show_kueue_it_says_so_and_goes_on(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"/apis/kueue.x-k8s.io": ApiError(status, "Refused", "kueue")}
    found = examined(NODES, [], capsys, more)["modes"]

    assert found["clusterQueues"] == []
    assert "kueue.x-k8s.io" in found["notRead"]


def test_without_kueue_it_says_nothing_of_queues(capsys: pytest.CaptureFixture[str]) -> None:
    document, text = changes(capsys, [])

    assert document["clusterQueues"] == []
    assert "Kueue" not in text


def test_it_says_which_objects_it_may_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    document, text = changes(capsys, [])

    assert document["notRead"] == ["priorityclasses", "resourcequotas", "gpubudgets"]
    assert "Not read for these modes: priorityclasses, resourcequotas, gpubudgets." in text


POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RIGHT = {"type": "RenderedFromSettings", "status": "True", "message": "as rendered"}


def policy(*conditions: Any) -> dict[str, Any]:
    return {"status": {"conditions": list(conditions)}}


def policies(capsys: pytest.CaptureFixture[str], found: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns the answer of doctor about the policies of a cluster, in JSON and in text."""
    api = cast("KubernetesAPI", Cluster([], [], {f"{POLICIES}/{name}": item for name, item in found.items()}))
    assert doctor.run(api, TimekeeperSettings(), "json", 0) == 0
    document = json.loads(capsys.readouterr().out)["policies"]
    doctor.run(api, TimekeeperSettings(), "text", 0)
    return document, capsys.readouterr().out


ALL_RIGHT = dict.fromkeys(names.POLICIES, policy(RIGHT))


def test_policies_that_are_not_what_the_settings_make_are_named_in_the_webhooks_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "fairgpu-spec: not what the settings make"
    differs = policy({"type": "RenderedFromSettings", "status": "False", "message": said})
    named = {"fairgpu-spec": differs, "fairgpu-claims": differs, "fairgpu-nodeagent": differs}
    document, text = policies(capsys, {**ALL_RIGHT, **named})

    assert document == dict.fromkeys(named, said)
    assert f"The policies fairgpu-spec, fairgpu-claims, fairgpu-nodeagent: {said}." in text


def test_a_policy_that_is_missing_or_was_not_compared_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: item for name, item in ALL_RIGHT.items() if name != "fairgpu-spec"}
    document, text = policies(capsys, found | {"fairgpu-metadata": policy()})

    assert document.pop("fairgpu-metadata").startswith("not compared with the settings yet")
    assert document == {"fairgpu-spec": "missing: apply the overlay again"}
    assert "The policy fairgpu-spec: missing: apply the overlay again." in text


def test_it_says_nothing_of_policies_where_all_is_right_or_nothing_is_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert policies(capsys, ALL_RIGHT)[0] == {}
    assert policies(capsys, {})[0] == {}


def test_a_cluster_without_gpus_gets_sentences_in_place_of_empty_tables(capsys: pytest.CaptureFixture[str]) -> None:
    api = cast("KubernetesAPI", Cluster([node("cpu", {"cpu": "8"})], []))
    assert doctor.run(api, TimekeeperSettings(), "text", 0) == 0
    text = capsys.readouterr().out

    assert "No node offers GPUs of a stack that FairGPU knows." in text
    assert "No pod holds a GPU by these stacks now." in text
    assert "No pod asks for a GPU now." in text
    assert "NAMESPACE" not in text


def test_nodes_without_a_pool_label_are_named_by_their_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = ("NVIDIA-A10G", "NVIDIA-L4")
    nodes = [node(model, {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu.product": model}) for model in models]
    pods = [pod(model.lower(), {"nvidia.com/gpu": "1"}, model) for model in models]
    pods[1]["metadata"]["namespace"] = "other-team"
    assert doctor.run(cast("KubernetesAPI", Cluster(nodes, pods)), TimekeeperSettings(), "text", 0) == 0
    text = capsys.readouterr().out

    assert "no pool label (nvidia: NVIDIA-A10G), with team." in text
    assert "no pool label (nvidia: NVIDIA-L4), with other-team." in text


def test_the_reference_describes_each_field_of_the_json_and_none_that_is_never_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    system = "/apis/apps/v1/namespaces/fairgpu-system"
    part = {
        "metadata": {"name": "fairgpu-webhook"},
        "spec": {
            "template": {"spec": {"containers": [{"name": "webhook", "image": "registry.example/webhook:0.1.0"}]}}
        },
        "status": {"readyReplicas": 1},
    }
    there = {
        **claims_api("gpu.nvidia.com", "NVIDIA L4"),
        **kueue("v1beta2", {"gpus": ["nvidia.com/gpu"]}, [("team", "gpus")]),
        **{f"{POLICIES}/{name}": item for name, item in ALL_RIGHT.items() if name != "fairgpu-spec"},
        f"{system}/deployments": {"items": [part]},
        f"{system}/statefulsets": {"items": []},
        "/apis/apps/v1/namespaces/fairgpu-nodes/daemonsets": {"items": []},
    }
    nodes = [node("n1", {"nvidia.com/gpu": "32"}, {**LABELS, "karpenter.sh/nodepool": "a100"})]
    asks = {"nvidia.com/gpu": "1"}
    pods = [pod(name, asks, "n1", schedulerName=f"{name}-scheduler") for name in ("kai", "own")]
    installed, bare = (examined(nodes, pods, capsys, more) for more in (there, {}))

    assert bare["installation"] is None
    assert differences("fairgpu doctor", installed, bare) == []
