"""The manifests of the node agent keep their rules, without a server."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.names import STARTUP_TAINT
from fairgpu.settings import environment_name, fields
from nodeagent import writer_process
from nodeagent.kubelet.device_plugin import GRACE_SECONDS
from nodeagent.service import END_SECONDS
from nodeagent.settings import Nodeagent, Settings

NODES = Path(__file__).parents[3] / "deploy" / "nodes"
ACCOUNT = "system:serviceaccount:fairgpu-nodes:fairgpu-nodeagent"


@cache
def manifests() -> dict[str, dict[str, Any]]:
    listed = yaml.safe_load((NODES / "kustomization.yaml").read_text())["resources"]
    documents = [document for name in listed for document in yaml.safe_load_all((NODES / name).read_text())]
    return {document["kind"]: document for document in documents}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (found,) = pod()["containers"]
    return dict(found)


def test_every_manifest_is_listed() -> None:
    listed = set(yaml.safe_load((NODES / "kustomization.yaml").read_text())["resources"])
    assert listed == {path.name for path in NODES.glob("*.yaml")} - {"kustomization.yaml"}


def test_every_variable_of_the_agent_is_a_setting() -> None:
    known = {environment_name(path) for path in fields(Settings)}
    given = {each["name"] for each in container()["env"] if each["name"].startswith("FAIRGPU_")}
    assert given == {"FAIRGPU_NODEAGENT_NODE"}
    assert given <= known


def test_the_agent_finds_the_hosts_folders_where_its_settings_say_and_where_the_runtime_looks() -> None:
    settings = Nodeagent()
    on_the_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod()["volumes"] if "hostPath" in volume}
    mounted = {mount["mountPath"]: on_the_host.get(mount["name"]) for mount in container()["volumeMounts"]}
    assert {path: source for path, source in mounted.items() if source not in (path, None)} == {}
    wanted = [
        settings.run_folder,
        settings.shim_folder,
        settings.cdi_folder,
        settings.kubelet.device_plugins,
        settings.kubelet.pod_resources,
        settings.kubelet.pods,
        settings.bundles,
        settings.runtime_socket,
        *settings.vendor_cdi_folders,
    ]
    for path in wanted:
        assert any(path.is_relative_to(mount) and mount != "/tmp" for mount in mounted), path  # noqa: S108


def test_the_agent_has_the_folders_of_sockets_since_a_server_that_restarts_makes_its_socket_anew() -> None:
    """A socket that is mounted by itself stays that of the server that has ended."""
    settings = Nodeagent()
    folders = [Path(mount["mountPath"]) for mount in container()["volumeMounts"]]
    for socket in (settings.runtime_socket, settings.kubelet.pod_resources, settings.kubelet.device_plugins / "a.sock"):
        assert any(socket.parent.is_relative_to(folder) for folder in folders), socket
    kinds = {volume["name"]: volume["hostPath"]["type"] for volume in pod()["volumes"] if "hostPath" in volume}
    assert {name: kind for name, kind in kinds.items() if not kind.startswith("Directory")} == {}


def test_the_agent_has_no_rights_beyond_being_root() -> None:
    context = container()["securityContext"]
    assert (context["runAsUser"], context["readOnlyRootFilesystem"]) == (0, True)
    assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
    assert "privileged" not in context
    assert pod()["hostPID"]


def test_the_agent_comes_before_what_it_serves_and_goes_where_nothing_else_may() -> None:
    assert pod()["priorityClassName"] == "system-node-critical"
    (scope,) = manifests()["ResourceQuota"]["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["system-node-critical"]
    assert pod()["tolerations"] == [{"operator": "Exists"}]


def has_agent(labels: dict[str, str]) -> bool:
    """Returns whether the DaemonSet's required affinity lets the agent run on a node with these labels."""
    required = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert {each["operator"] for each in term["matchExpressions"]} == {"NotIn"}
    return all(labels.get(each["key"]) not in each["values"] for each in term["matchExpressions"])


PAUSING = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.operator-validator")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, f"paused-for-{change}") for key in PAUSING for change in ("driver-upgrade", "mig-change")),
        ("fairgpu.io/agent", "off"),
    ],
)
def test_the_agent_leaves_a_node_whose_driver_is_to_be_unloaded(key: str, value: str) -> None:
    assert not has_agent({**dict.fromkeys(PAUSING, "true"), key: value})


def test_the_agent_runs_where_the_gpu_operator_runs_and_where_it_does_not() -> None:
    assert has_agent({})
    assert has_agent(dict.fromkeys(PAUSING, "true"))


def test_the_next_agent_of_a_node_is_ready_before_the_last_one_ends() -> None:
    strategy = manifests()["DaemonSet"]["spec"]["updateStrategy"]["rollingUpdate"]
    assert (strategy["maxSurge"], strategy["maxUnavailable"]) == ("10%", 0)
    assert container()["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert "hostNetwork" not in pod(), "two agents of a node listen on one port, each in its own pod"


def test_the_kubelet_waits_longer_than_an_agent_goes_on_whose_server_is_silent() -> None:
    of_a_healthy_end = GRACE_SECONDS + 2 * writer_process.END_SECONDS
    assert of_a_healthy_end < END_SECONDS < pod()["terminationGracePeriodSeconds"]


def test_the_kubelets_probes_ask_where_the_agent_answers() -> None:
    """A probe goes to the pod's own address: the agent without an address of its own takes each that the pod has."""
    assert Nodeagent().metrics_host == ""
    assert container()["ports"] == [{"name": "metrics", "containerPort": Nodeagent().metrics_port}]
    probes = {name: probe["httpGet"] for name, probe in container().items() if name.endswith("Probe")}
    assert probes.keys() == {"startupProbe", "livenessProbe", "readinessProbe"}
    assert all(asked == {"path": "/healthz", "port": "metrics"} for asked in probes.values())


def test_the_policy_lets_the_agent_remove_the_startup_taint_alone() -> None:
    variables = {
        each["name"]: each["expression"] for each in manifests()["ValidatingAdmissionPolicy"]["spec"]["variables"]
    }
    assert f"t.key != '{STARTUP_TAINT}'" in variables["taintsLeft"]


def test_the_agents_account_may_write_nodes_and_events_alone() -> None:
    rules = manifests()["ClusterRole"]["rules"]
    writing = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert writing == {("nodes", "patch"), ("nodes/status", "patch"), ("events", "create")}


def test_the_policy_holds_the_account_that_the_role_is_bound_to() -> None:
    (subject,) = manifests()["ClusterRoleBinding"]["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == ACCOUNT
    policy = manifests()["ValidatingAdmissionPolicy"]["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == '{ACCOUNT}'"
    assert policy["failurePolicy"] == "Fail"
    assert manifests()["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Deny"]
