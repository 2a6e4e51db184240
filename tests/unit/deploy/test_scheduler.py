"""kube-scheduler and its extender find each other, elect by one Lease, and may do what their work needs and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu import names
from fairgpu.commands import build_parser
from fairgpu.settings import environment_name, fields
from scheduler.application import ANSWER_SECONDS, GANG_LOOK_SECONDS
from scheduler.extender.binding import GIVE_UP_SECONDS
from scheduler.settings import Settings

BASE = Path(__file__).parents[3] / "deploy" / "base"


def documents(path: str) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all((BASE / path).read_text()) if item]


CONFIGURATION = documents("scheduler/configuration.yaml")[0]
EXTENDER = CONFIGURATION["extenders"][0]
POD = next(item for item in documents("scheduler/deployment.yaml") if item["kind"] == "Deployment")["spec"]["template"]
CONTAINERS = {container["name"]: container for container in POD["spec"]["containers"]}


def mounted(name: str, path: str) -> dict[str, Any]:
    """The volume that a container has at a path."""
    (mount,) = [mount for mount in CONTAINERS[name]["volumeMounts"] if mount["mountPath"] == path]
    (volume,) = [volume for volume in POD["spec"]["volumes"] if volume["name"] == mount["name"]]
    return dict(volume)


def test_kube_scheduler_asks_the_extender_where_it_listens() -> None:
    settings = Settings().scheduler.extender
    assert EXTENDER["urlPrefix"] == f"http://{settings.host}:{settings.port}"
    assert settings.host == "127.0.0.1"
    assert (EXTENDER["filterVerb"], EXTENDER["prioritizeVerb"], EXTENDER["bindVerb"]) == (
        "filter",
        "prioritize",
        "bind",
    )
    assert EXTENDER["nodeCacheCapable"]
    assert "preemptVerb" not in EXTENDER
    assert not EXTENDER.get("ignorable")


def test_kube_scheduler_waits_for_a_bind_as_long_as_its_gang_and_the_api_server_may_take() -> None:
    # The pod is read, then the last attempt begins, and after its refusal the pod is read again.
    of_the_api_server = GIVE_UP_SECONDS + 3 * ANSWER_SECONDS
    longest = Settings().scheduler.extender.gang_seconds + GANG_LOOK_SECONDS + of_the_api_server
    assert float(EXTENDER["httpTimeout"].removesuffix("s")) > longest


def test_the_extenders_weight_is_above_that_of_all_plugins_together() -> None:
    """kube-scheduler multiplies scores by weights and adds them; those of an extender it brings to 0 to 100 first.

    Its plugins' weights: https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
    """
    (profile,) = CONFIGURATION["profiles"]
    assert set(profile) == {"schedulerName"}, "plugins with the weights of kube-scheduler"
    plugins = {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "NodeResourcesFit": 1,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert EXTENDER["weight"] > sum(plugins.values())
    preemption = documents("../preemption/configuration.yaml")[0]
    assert [one["weight"] for one in preemption["extenders"]] == [EXTENDER["weight"]]


@pytest.mark.parametrize("path", ["scheduler/configuration.yaml", "../preemption/configuration.yaml"])
def test_comments_name_settings_that_exist(path: str) -> None:
    known = {".".join(path) for path in fields(Settings)}
    named = set(re.findall(r"\bscheduler\.[a-z_.]+[a-z]", (BASE / path).read_text()))
    assert named
    assert named <= known


def test_both_elect_by_one_lease_which_their_account_may_renew() -> None:
    settings, election = Settings().scheduler.lease, CONFIGURATION["leaderElection"]
    lease = settings.namespace, settings.name
    assert (election["resourceNamespace"], election["resourceName"]) == lease
    assert election["leaderElect"]
    (role,) = [item for item in documents("access/scheduler.yaml") if item["kind"] == "Role"]
    named = {
        tuple(rule.get("resourceNames", ())): rule["verbs"] for rule in role["rules"] if "leases" in rule["resources"]
    }
    assert named == {(): ["create"], (settings.name,): ["get", "update"]}
    assert role["metadata"]["namespace"] == settings.namespace


def test_the_profile_is_the_scheduler_that_gpu_pods_name() -> None:
    assert [profile["schedulerName"] for profile in CONFIGURATION["profiles"]] == [names.SCHEDULER_NAME]


def test_every_node_is_shown_and_every_resource_brings_a_pod_to_the_extender() -> None:
    assert CONFIGURATION["percentageOfNodesToScore"] == 100
    managed = {resource["name"]: resource["ignoredByScheduler"] for resource in EXTENDER["managedResources"]}
    assert managed == dict.fromkeys(names.CANONICAL_RESOURCES, False)


def test_many_pods_a_second_are_not_held_up_by_the_client() -> None:
    assert min(CONFIGURATION["clientConnection"].values()) >= 1000


def test_the_variables_of_the_extender_are_settings() -> None:
    known = {environment_name(path) for path in fields(Settings)}
    given = [variable["name"] for variable in CONTAINERS["extender"]["env"]]
    assert given == ["FAIRGPU_SCHEDULER_LEASE_POD_NAME"]
    assert set(given) <= known


def test_the_extender_runs_a_command_that_there_is_and_reads_what_is_mounted() -> None:
    settings = Settings().scheduler
    assert build_parser().parse_args(CONTAINERS["extender"]["args"]).run
    token = mounted("extender", str(settings.states.token_file.parent))["projected"]["sources"]
    assert [source["serviceAccountToken"]["audience"] for source in token] == [names.TOKEN_AUDIENCE]
    assert mounted("extender", "/etc/fairgpu") == {"name": "settings", "configMap": {"name": "fairgpu-settings"}}


def test_kube_scheduler_reads_the_configuration_that_is_mounted() -> None:
    (option,) = [each for each in CONTAINERS["kube-scheduler"]["args"] if each.startswith("--config=")]
    path = Path(option.partition("=")[2])
    assert mounted("kube-scheduler", str(path.parent))["configMap"] == {"name": "fairgpu-kube-scheduler"}
    generators = documents("kustomization.yaml")[0]["configMapGenerator"]
    (generator,) = [each for each in generators if each["name"] == "fairgpu-kube-scheduler"]
    assert generator["files"] == [f"{path.name}=scheduler/configuration.yaml"]


def test_the_kubelet_probes_ports_that_it_reaches() -> None:
    metrics = Settings().scheduler.extender.metrics_port
    opened = {port["name"]: port["containerPort"] for port in CONTAINERS["extender"]["ports"]}
    assert opened == {"metrics": metrics}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINERS["extender"][probe]["httpGet"]["port"] == "metrics"


def test_a_kube_scheduler_beside_a_dead_extender_gives_the_lease_up() -> None:
    asked = CONTAINERS["kube-scheduler"]["livenessProbe"]["httpGet"]
    assert asked == {"path": "/healthz", "port": Settings().scheduler.extender.metrics_port}


FORBIDDEN = [("pods", "delete"), ("pods", "patch"), ("pods", "update"), ("nodes", "patch"), ("pods/status", "update")]


@pytest.mark.parametrize(("resource", "verb"), FORBIDDEN)
def test_no_right_goes_beyond_binding_and_conditions(resource: str, verb: str) -> None:
    (role,) = [item for item in documents("access/scheduler.yaml") if item["kind"] == "ClusterRole"]
    assert not any(resource in rule["resources"] and verb in rule["verbs"] for rule in role["rules"])
