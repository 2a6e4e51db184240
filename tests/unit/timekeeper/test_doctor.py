"""What `fairgpu doctor` finds in a cluster, from the objects of an API server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

import pytest

from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.commands import CommandError
from timekeeper import doctor
from timekeeper.settings import TimekeeperSettings

LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}


class Cluster:
    """An API server that answers lists, and refuses everything else."""

    def __init__(self, nodes: list[Any], pods: list[Any]) -> None:
        self._answers = {"/version": {"gitVersion": "v1.34.2"}} | {
            "/api/v1/nodes": {"items": nodes},
            "/api/v1/pods": {"items": pods},
        }

    def get(self, path: str, _query: Mapping[str, Any] | None = None, **_options: Any) -> Any:
        if path not in self._answers:
            raise ApiError(403, "Forbidden", path)
        return self._answers[path]


def node(name: str, capacity: dict[str, str], labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "status": {"capacity": capacity}}


def pod(name: str, limits: dict[str, str], node_name: str = "", phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"containers": [{"resources": {"limits": limits}}], "nodeName": node_name, **spec},
        "status": {"phase": phase},
    }


def examined(nodes: list[Any], pods: list[Any], capsys: pytest.CaptureFixture[str], **settings: Any) -> Any:
    api = cast("KubernetesAPI", Cluster(nodes, pods))
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


def test_pods_that_hold_devices_by_claims_alone_are_named_as_not_metered(capsys: pytest.CaptureFixture[str]) -> None:
    claiming = pod("claims", {"cpu": "1"}, "n1", resourceClaims=[{"name": "gpu"}])

    assert examined(NODES, [claiming], capsys)["byClaimAlone"] == ["team/claims"]


def test_a_list_that_is_refused_is_a_clear_error() -> None:
    class Refusing(Cluster):
        def get(self, path: str, _query: Mapping[str, Any] | None = None, **_options: Any) -> Any:
            raise ApiError(403, "Forbidden", f"cannot read {path}")

    with pytest.raises(CommandError, match="Forbidden"):
        doctor.run(cast("KubernetesAPI", Refusing([], [])), TimekeeperSettings(), "json", 0)
