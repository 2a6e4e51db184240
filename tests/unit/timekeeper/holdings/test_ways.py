"""Each way, on nodes and pods as the plugin or scheduler of that way writes them."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from timekeeper.domain.holdings.deciding import capacity, decide
from timekeeper.domain.holdings.holding import Decision, Doubt, read_bound_pod, read_host_node
from timekeeper.domain.holdings.listed import Listed

A100 = "NVIDIA-A100-SXM4-80GB"


def node(
    capacity: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels or {}, "annotations": annotations or {}},
        "status": {"capacity": {"cpu": "64", "memory": "1Ti", **(capacity or {})}},
    }


def pod(*containers: dict[str, Any], init: Any = (), namespace: str = "team", **metadata: Any) -> dict[str, Any]:
    def item(limits: dict[str, Any]) -> dict[str, Any]:
        restart = {"restartPolicy": limits["restartPolicy"]} if "restartPolicy" in limits else {}
        kept = {key: value for key, value in limits.items() if key != "restartPolicy"}
        return {"resources": {"limits": {"cpu": "1", **kept}}, **restart}

    return {
        "metadata": {"namespace": namespace, **metadata},
        "spec": {"containers": [item(one) for one in containers], "initContainers": [item(one) for one in init]},
    }


def decided(asking: dict[str, Any], host: dict[str, Any], own: dict[str, Listed] | None = None) -> Decision:
    return decide(read_bound_pod(asking), read_host_node(host), own or {})


def held(asking: dict[str, Any], host: dict[str, Any]) -> list[tuple[str, str, int, str, str]]:
    found = decided(asking, host).holdings
    return [(item.way, item.model, item.count, str(item.time), str(item.memory)) for item in found]


def gfd(product: str = A100, **labels: str) -> dict[str, str]:
    return {"nvidia.com/gpu.product": product, **{f"nvidia.com/{key}": value for key, value in labels.items()}}


SHARED = gfd(f"{A100}-SHARED", **{"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing", "gpu.memory": "81920"})
MIXED = gfd(**{"mig.strategy": "mixed", "gpu.replicas": "0", "gpu.memory": "81920"})
SINGLE = gfd(f"{A100}-MIG-1g.10gb", **{"mig.strategy": "single", "gpu.replicas": "1", "gpu.memory": "9728"})


@pytest.mark.parametrize(
    ("limits", "labels", "expected"),
    [
        ({"nvidia.com/gpu": "2"}, gfd(), (A100, 2, "1", "1")),
        ({"nvidia.com/gpu": "1"}, SHARED, (A100, 1, "1/4", "1/4")),
        ({"nvidia.com/gpu": "3"}, SHARED, (A100, 3, "1/4", "1/4")),
        (
            {"nvidia.com/gpu.shared": "1"},
            gfd(**{"gpu.replicas": "10", "gpu.sharing-strategy": "mps"}),
            (A100, 1, "1/10", "1/10"),
        ),
        ({"nvidia.com/gpu": "1"}, SINGLE, (A100, 1, "1/7", "1/8")),
        (
            {"nvidia.com/gpu": "1"},
            SINGLE | gfd(f"{A100}-MIG-1g.10gb-SHARED", **{"gpu.replicas": "2"}),
            (A100, 1, "1/14", "1/16"),
        ),
        ({"nvidia.com/mig-3g.40gb": "1"}, MIXED, (A100, 1, "3/7", "1/2")),
        (
            {"nvidia.com/mig-3g.40gb": "1"},
            MIXED | {"nvidia.com/mig-3g.40gb.memory": "40192"},
            (A100, 1, "3/7", "157/320"),
        ),
        ({"nvidia.com/mig-1g.10gb.me": "1"}, MIXED, (A100, 1, "1/7", "1/8")),
        ({"nvidia.com/mig-1c.3g.40gb": "1"}, MIXED, (A100, 1, "1/7", "1/6")),
        (
            {"nvidia.com/mig-1g.10gb.shared": "1"},
            MIXED | {"nvidia.com/mig-1g.10gb.replicas": "2"},
            (A100, 1, "1/14", "1/16"),
        ),
        ({"nvidia.com/mig-7g.141gb": "1"}, gfd("NVIDIA-H200"), ("NVIDIA-H200", 1, "1", "1")),
        ({"nvidia.com/mig-3g.90gb": "1"}, gfd("NVIDIA-B200"), ("NVIDIA-B200", 1, "3/7", "1/2")),
        ({"nvidia.com/mig-2g.12gb": "2"}, gfd("NVIDIA-A30"), ("NVIDIA-A30", 2, "1/2", "1/2")),
        (
            {"nvidia.com/mig-1g.24gb": "1"},
            gfd("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
            ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 1, "1/4", "1/4"),
        ),
        (
            {"nvidia.com/mig-1g.24gb": "1"},
            gfd("NVIDIA-RTX-PRO-5000-Blackwell"),
            ("NVIDIA-RTX-PRO-5000-Blackwell", 1, "1/2", "1/2"),
        ),
        (
            {"nvidia.com/gpu": "1"},
            {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-max-shared-clients-per-gpu": "16"},
            ("nvidia-l4", 1, "1/16", "1/16"),
        ),
        (
            {"nvidia.com/gpu": "1"},
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            },
            ("nvidia-tesla-a100", 1, "1/7", "1/7"),
        ),
        ({"nvidia.com/gpu": "1"}, {"karpenter.k8s.aws/instance-gpu-name": "t4"}, ("t4", 1, "1", "1")),
        (
            {"nvidia.com/gpu": "8"},
            {"node.kubernetes.io/instance-type": "p5.48xlarge"},
            ("NVIDIA H100 80GB HBM3", 8, "1", "1"),
        ),
        (
            {"nvidia.com/gpu": "1"},
            {"node.kubernetes.io/instance-type": "Standard_ND96asr_v4", "kubernetes.azure.com/accelerator": "nvidia"},
            ("NVIDIA A100-SXM4-40GB", 1, "1", "1"),
        ),
        (
            {"nvidia.com/gpu": "1"},
            {"node.kubernetes.io/instance-type": "Standard_ND96asr_v4", "karpenter.azure.com/sku-gpu-name": "A100"},
            ("NVIDIA A100-SXM4-40GB", 1, "1", "1"),
        ),
        (
            {"nvidia.com/gpu": "1"},
            {"node.kubernetes.io/instance-type": "Standard_New", "karpenter.azure.com/sku-gpu-name": "V100"},
            ("V100", 1, "1", "1"),
        ),
    ],
)
def test_nvidias_resources_are_parts_of_a_gpu_by_the_nodes_labels(
    limits: dict[str, str], labels: dict[str, str], expected: tuple[str, int, str, str]
) -> None:
    assert held(pod(limits), node({"nvidia.com/gpu": "8"}, labels)) == [("nvidia", *expected)]


@pytest.mark.parametrize(
    ("limits", "labels", "expected", "doubt"),
    [
        ({"nvidia.com/gpu": "1"}, {}, ("", 1, "1", "1"), Doubt.MODEL_UNKNOWN),
        ({"nvidia.com/gpu": "1"}, gfd(**{"gpu.replicas": "many"}), (A100, 1, "1", "1"), Doubt.REPLICAS_UNREADABLE),
        ({"nvidia.com/gpu": "1"}, gfd(f"{A100}-SHARED"), (A100, 1, "1", "1"), Doubt.REPLICAS_UNREADABLE),
        (
            {"nvidia.com/gpu": "1"},
            gfd(f"{A100}-SHARED", **{"gpu.replicas": "0"}),
            (A100, 1, "1", "1"),
            Doubt.LABELS_CONTRADICT,
        ),
        (
            {"nvidia.com/gpu": "1"},
            gfd(**{"gpu.replicas": "4", "gpu.sharing-strategy": "none"}),
            (A100, 1, "1", "1"),
            Doubt.LABELS_CONTRADICT,
        ),
        ({"nvidia.com/gpu": "1"}, gfd(f"{A100}-MIG-INVALID"), (A100, 1, "1", "1"), Doubt.PROFILE_UNKNOWN),
        ({"nvidia.com/mig-half": "1"}, MIXED, (A100, 1, "1", "1"), Doubt.PROFILE_UNKNOWN),
        ({"nvidia.com/mig-5g.20gb": "1"}, gfd("NVIDIA-A30"), ("NVIDIA-A30", 1, "1", "1"), Doubt.PROFILE_UNKNOWN),
        ({"nvidia.com/mig-2g.20gb": "1"}, {}, ("", 1, "2/7", "2/7"), Doubt.SIZE_UNKNOWN),
    ],
)
def test_a_holding_that_nvidias_labels_do_not_state_is_charged_by_a_rule_and_named(
    limits: dict[str, str], labels: dict[str, str], expected: tuple[str, int, str, str], doubt: Doubt
) -> None:
    host = node({"nvidia.com/gpu": "8"}, labels)

    assert held(pod(limits), host) == [("nvidia", *expected)]
    assert doubt in decided(pod(limits), host).doubts


def test_replicas_follow_from_the_offer_where_feature_discovery_counts_devices_alone() -> None:
    host = node({"nvidia.com/gpu": "40"}, gfd(**{"gpu.count": "4"}))

    assert held(pod({"nvidia.com/gpu": "1"}), host) == [("nvidia", A100, 1, "1/10", "1/10")]


def test_a_pod_holds_the_most_that_its_containers_hold_at_once() -> None:
    asking = pod(
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "1"},
        init=[{"nvidia.com/gpu": "1", "restartPolicy": "Always"}, {"nvidia.com/gpu": "4"}],
    )

    assert held(asking, node({"nvidia.com/gpu": "8"}, gfd())) == [("nvidia", A100, 5, "1", "1")]


def hami_node() -> dict[str, Any]:
    devices = [
        {"id": f"GPU-{index}", "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA A10", "health": True}
        for index in range(2)
    ]
    return node({"nvidia.com/gpu": "20"}, annotations={"hami.io/node-nvidia-register": json.dumps(devices)})


HAMI = "hami.io/vgpu-devices-allocated"
OLD_REGISTER = "GPU-0,10,24576,100,NVIDIA-NVIDIA A10,0,true:"


@pytest.mark.parametrize(
    ("limits", "allocated", "expected"),
    [
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144"},
            "GPU-0,NVIDIA,6144,0:;",
            [("NVIDIA A10", 1, "0", "1/4")],
        ),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "12288", "nvidia.com/gpucores": "30"},
            "GPU-0,NVIDIA,12288,30:GPU-1,NVIDIA,12288,30:;",
            [("NVIDIA A10", 2, "3/10", "1/2")],
        ),
        ({"nvidia.com/gpu": "1"}, "GPU-1,NVIDIA,24576,0:;", [("NVIDIA A10", 1, "0", "1")]),
        ({"nvidia.com/gpu": "1"}, "GPU-1[0-1],NVIDIA,6144,25:;", [("NVIDIA A10", 1, "1/4", "1/4")]),
    ],
)
def test_hamis_allocation_is_joined_to_the_nodes_devices(
    limits: dict[str, str], allocated: str, expected: list[Any]
) -> None:
    asking = pod(limits, annotations={HAMI: allocated})

    assert held(asking, hami_node()) == [("hami", *one) for one in expected]
    assert decided(asking, hami_node()).doubts == frozenset()


@pytest.mark.parametrize(
    ("register", "model"),
    [
        (OLD_REGISTER, "NVIDIA A10"),
        (OLD_REGISTER.replace("true:", "true,0,hami-core:"), "NVIDIA A10"),
        (OLD_REGISTER.replace("NVIDIA A10", "Tesla T4"), "Tesla T4"),
        ('[{"id":"GPU-0","count":10,"devmem":24576,"devcore":100,"type":"NVIDIA-Tesla T4"}]', "Tesla T4"),
    ],
)
def test_hamis_register_names_the_model_as_the_driver_does(register: str, model: str) -> None:
    host = node({"nvidia.com/gpu": "10"}, annotations={"hami.io/node-nvidia-register": register})
    asking = pod({"nvidia.com/gpu": "1"}, annotations={HAMI: "GPU-0,NVIDIA,12288,50:;"})

    assert held(asking, host) == [("hami", model, 1, "1/2", "1/2")]


@pytest.mark.parametrize(
    ("allocated", "doubt"),
    [
        (None, Doubt.ALLOCATION_UNREADABLE),
        ("GPU-0,NVIDIA,61", Doubt.ALLOCATION_UNREADABLE),
        ("GPU-0,NVIDIA,many,30:;", Doubt.ALLOCATION_UNREADABLE),
        (";", Doubt.ALLOCATION_UNREADABLE),
        ("GPU-9,NVIDIA,1,0:;", Doubt.DEVICE_UNKNOWN),
        ("GPU-0,NVIDIA,1,0:;", Doubt.ALLOCATION_BELOW_REQUEST),
    ],
)
def test_a_hami_pod_never_holds_less_than_its_request(allocated: str | None, doubt: Doubt) -> None:
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "12288", "nvidia.com/gpucores": "30"}
    asking = pod(limits, annotations={} if allocated is None else {HAMI: allocated})
    found = decided(asking, hami_node())

    assert sum(holding.count * holding.memory for holding in found.holdings) >= 1
    assert all(holding.time >= Fraction(3, 10) for holding in found.holdings)
    assert sum(holding.count for holding in found.holdings) == 2
    assert doubt in found.doubts


QUARTER = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144", "nvidia.com/gpucores": "25"}
HALF = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "12288", "nvidia.com/gpucores": "50"}


@pytest.mark.parametrize(
    ("init", "allocated", "expected"),
    [
        ([QUARTER], "GPU-1,NVIDIA,6144,25:;GPU-1,NVIDIA,6144,25:;", [(1, "1/4")]),
        ([HALF], "GPU-1,NVIDIA,12288,50:;GPU-1,NVIDIA,6144,25:;", [(1, "1/2")]),
        ([HALF, QUARTER], "GPU-1,NVIDIA,12288,50:;GPU-1,NVIDIA,6144,25:;GPU-1,NVIDIA,6144,25:;", [(1, "1/2")]),
        ([QUARTER], "GPU-0,NVIDIA,6144,25:;GPU-1,NVIDIA,6144,25:;", [(2, "1/4")]),
        ([{**QUARTER, "restartPolicy": "Always"}], "GPU-1,NVIDIA,6144,25:;GPU-1,NVIDIA,6144,25:;", [(2, "1/4")]),
        (
            [{**HALF, "restartPolicy": "Always"}, QUARTER],
            "GPU-1,NVIDIA,12288,50:;GPU-1,NVIDIA,6144,25:;GPU-1,NVIDIA,6144,25:;",
            [(1, "1/4"), (1, "1/2")],
        ),
        ([HALF], "GPU-1,NVIDIA,12288,50:;" + "GPU-1,NVIDIA,6144,25:;", [(1, "1/2")]),
        (
            [{**QUARTER, "restartPolicy": "Always"}, HALF],
            "GPU-1,NVIDIA,6144,25:;GPU-1,NVIDIA,12288,50:;GPU-1,NVIDIA,6144,25:;",
            [(1, "1/4"), (1, "1/2")],
        ),
    ],
)
def test_the_larger_share_of_a_device_counts_that_an_init_container_of_a_hami_pod_had_before_the_others(
    init: list[dict[str, str]], allocated: str, expected: Any
) -> None:
    """As HAMi's scheduler v2.10 wrote it for such pods, and counts it (docs/adopting.md)."""
    asking = pod(QUARTER, init=init, annotations={HAMI: allocated})

    assert [(count, memory) for *_, count, _, memory in held(asking, hami_node())] == expected
    assert decided(asking, hami_node()).doubts == frozenset()


def test_a_hami_pod_with_a_list_of_more_devices_than_nodes_have_holds_its_request() -> None:
    asking = pod(QUARTER, annotations={HAMI: "GPU-1,NVIDIA,1,1:" * 257 + ";"})

    assert [(count, memory) for *_, count, _, memory in held(asking, hami_node())] == [(1, "1/4")]
    assert Doubt.ALLOCATION_UNREADABLE in decided(asking, hami_node()).doubts


def test_a_hami_annotation_alone_makes_no_part_of_a_gpu_that_hami_does_not_share() -> None:
    asking = pod({"nvidia.com/gpu": "1"}, annotations={HAMI: "GPU-0,NVIDIA,1,1:;"})

    assert held(asking, node({"nvidia.com/gpu": "8"}, gfd())) == [("nvidia", A100, 1, "1", "1")]


@pytest.mark.parametrize(
    ("allocated", "expected"),
    [
        ("GPU-a,NVIDIA,3000,50:GPU-b,NVIDIA,3000,50:", [("volcano", "Tesla V100", 2, "1/2", "3/16")]),
        (None, [("volcano", "Tesla V100", 2, "1/2", "3/16")]),
    ],
)
def test_volcanos_vgpus_are_joined_to_the_nodes_devices(allocated: str | None, expected: Any) -> None:
    register = "GPU-a,10,16000,NVIDIA-Tesla V100,true,hami-core:GPU-b,10,16000,NVIDIA-Tesla V100,true,hami-core:"
    host = node({"volcano.sh/vgpu-number": "20"}, annotations={"volcano.sh/node-vgpu-register": register})
    limits = {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000", "volcano.sh/vgpu-cores": "50"}
    annotations = {} if allocated is None else {"volcano.sh/vgpu-ids-new": allocated}

    assert held(pod(limits, annotations=annotations), host) == expected


@pytest.mark.parametrize(
    ("memory", "cores", "model", "expected"),
    [
        ("1", "0", "NVIDIA A100-SXM4-80GB", ("1/7", "1/8")),
        ("10240", "0", "NVIDIA A100-SXM4-80GB", ("1/7", "1/8")),
        ("10241", "0", "NVIDIA A100-SXM4-80GB", ("2/7", "1/4")),
        ("30000", "0", "NVIDIA A100-SXM4-80GB", ("3/7", "1/2")),
        ("50000", "0", "NVIDIA A100-SXM4-80GB", ("1", "1")),
        ("1", "50", "NVIDIA A100-SXM4-80GB", ("1/2", "1/8")),
        ("30000", "0", "NVIDIA A30", ("1/2", "1/2")),
        ("8192", "0", "Tesla V100", ("0", "1/10")),
    ],
)
def test_volcanos_mig_instance_is_the_smallest_of_the_model_with_the_memory_that_is_asked_for_and_named(
    memory: str, cores: str, model: str, expected: tuple[str, str]
) -> None:
    """Volcano writes the memory that was asked for, and the place of the instance in a layout of its settings."""
    register = f"GPU-0,10,81920,NVIDIA-{model},true,mig:"
    host = node({"volcano.sh/vgpu-number": "20"}, annotations={"volcano.sh/node-vgpu-register": register})
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": memory, "volcano.sh/vgpu-cores": cores}
    annotations = {"volcano.sh/vgpu-ids-new": f"GPU-0[group1-3],NVIDIA,{memory},{cores}:"}
    decision = decided(pod(limits, annotations=annotations), host)

    assert [(str(item.time), str(item.memory)) for item in decision.holdings] == [expected]
    assert decision.doubts == {Doubt.SIZE_UNKNOWN}


def test_a_mig_instance_of_hami_before_2_10_has_the_slices_of_its_memory() -> None:
    devices = json.dumps([{"id": "GPU-0", "devmem": 81920, "type": "NVIDIA A100-SXM4-80GB"}])
    host = node({"nvidia.com/gpu": "20"}, annotations={"hami.io/node-nvidia-register": devices})
    asking = pod(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}, annotations={HAMI: "GPU-0[1-2],NVIDIA,20480,0:;"}
    )

    assert [item[3:] for item in held(asking, host)] == [("2/7", "1/4")]
    assert decided(asking, host).doubts == frozenset()


KAI_LABELS = {"runai-gpu-group": "4f1d"}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"gpu-fraction": "0.5"}, (1, "1/2")),
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, (2, "1/4")),
        ({"gpu-memory": "20480"}, (1, "1/4")),
        ({"gpu-fraction": "half"}, (1, "1")),
        ({"gpu-fraction": "-1"}, (1, "1")),
        # KAI reads what follows: 0.9 of a GPU, a fraction of each of 8, and 40 GiB.
        ({"gpu-fraction": "0.009e00000000000000000002"}, (1, "1")),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "00000000000008"}, (8, "1/2")),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "+8"}, (8, "1/2")),
        ({"gpu-memory": "00000000040960"}, (1, "1/2")),
        ({"gpu-memory": "9" * 30}, (1, "1")),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "9" * 30}, (10**6, "1/2")),
    ],
)
def test_kais_fraction_is_the_share_of_its_gpus(annotations: dict[str, str], expected: tuple[int, str]) -> None:
    host = node({"nvidia.com/gpu": "8"}, gfd(**{"gpu.memory": "81920"}))
    count, share = expected

    assert held(pod({}, annotations=annotations, labels=KAI_LABELS), host) == [("kai", A100, count, share, share)]


def test_a_fraction_with_a_huge_exponent_is_not_computed() -> None:
    """Its denominator alone would be larger than the memory of the leader, which reads the pods of all teams."""
    host = node({"nvidia.com/gpu": "8"}, gfd(**{"gpu.memory": "81920"}))
    bound = pod({}, annotations={"gpu-fraction": "1e-9999999"}, labels=KAI_LABELS)

    assert held(bound, host) == [("kai", A100, 1, "1", "1")]


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({"nvidia.com/container.main.gpu-memory.request": "40Gi"}, "1/2"),
        ({"nvidia.com/container.main.gpu-memory.request": "79Gi", "gpu-fraction": "0.01"}, "79/80"),
        ({"nvidia.com/container.main.gpu-memory.request": "much", "gpu-fraction": "0.01"}, "1"),
        ({"nvidia.com/container.main.gpu-memory.limit": "1Gi", "gpu-fraction": "0.01"}, "1/80"),
        ({"nvidia.com/container.main.gpu-memory.limit": "40Gi"}, "1/2"),
        (
            {
                "nvidia.com/container.main.gpu-memory.limit": "80Gi",
                "nvidia.com/container.main.gpu-memory.request": "40Gi",
            },
            "1/2",
        ),
        ({f"nvidia.com/container.a{number}.gpu-memory.request": "1Mi" for number in range(17)}, "1"),
    ],
)
def test_the_memory_that_kai_gives_a_container_comes_before_the_pods_fraction(
    given: dict[str, str], share: str
) -> None:
    host = node({"nvidia.com/gpu": "8"}, gfd(**{"gpu.memory": "81920"}))

    assert held(pod({}, annotations=given, labels=KAI_LABELS), host) == [("kai", A100, 1, share, share)]


def test_a_fraction_of_unknown_size_that_kai_has_granted_is_a_whole_gpu() -> None:
    """A later release of KAI may read it from elsewhere, or somebody removed the annotation before it was read."""
    granted = {"received-resource-type": "Fraction"}

    assert held(pod({}, annotations=granted), node(labels=gfd())) == [("kai", A100, 1, "1", "1")]


def test_a_fraction_that_kai_has_not_granted_holds_nothing() -> None:
    assert held(pod({}, annotations={"gpu-fraction": "0.5"}), node(labels=gfd())) == []


def test_kais_reservation_pod_is_no_second_bill() -> None:
    reservation = pod({"nvidia.com/gpu": "1"}, namespace="kai-resource-reservation")

    assert held(reservation, node({"nvidia.com/gpu": "8"}, gfd())) == []


@pytest.mark.parametrize(
    ("limits", "annotations", "expected"),
    [
        ({"aliyun.com/gpu-mem": "8"}, {}, (1, "1/2", "1/2")),
        ({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"}, {}, (1, "3/10", "1/2")),
        (
            {"aliyun.com/gpu-mem": "8"},
            {"scheduler.framework.gpushare.allocation": '{"0":{"0":4,"1":4}}'},
            (2, "1/4", "1/4"),
        ),
        ({"aliyun.com/gpu-mem": "8"}, {"scheduler.framework.gpushare.allocation": '{"0":'}, (1, "1/2", "1/2")),
    ],
)
def test_aliyuns_memory_is_a_share_of_what_the_node_offers_on_a_device(
    limits: dict[str, str], annotations: dict[str, str], expected: tuple[int, str, str]
) -> None:
    host = node(
        {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}, {"aliyun.accelerator/nvidia_name": "Tesla-T4"}
    )

    assert held(pod(limits, annotations=annotations), host) == [("aliyun", "Tesla-T4", *expected)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "30"}, (1, "1/5", "1/2")),
        ({"tencent.com/vcuda-core": "200"}, (2, "1", "1")),
        ({"tencent.com/vcuda-core": "50"}, (1, "1/2", "0")),
    ],
)
def test_gpu_managers_cores_and_blocks_are_shares_of_a_device(limits: dict[str, str], expected: Any) -> None:
    host = node({"tencent.com/vcuda-core": "400", "tencent.com/vcuda-memory": "240"}, gfd("Tesla-T4"))

    assert held(pod(limits), host) == [("gpu-manager", "Tesla-T4", *expected)]


CORE = "tencent.com/vcuda-core"


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([{CORE: "60"}, {CORE: "60"}], [], [(2, "3/5")]),
        ([{CORE: "50"}, {CORE: "50"}], [], [(2, "1/2")]),
        ([{CORE: "100"}, {CORE: "20"}], [], [(1, "1/5"), (1, "1")]),
        ([{CORE: "20"}], [{CORE: "200"}], [(2, "1")]),
        ([{CORE: "60"}], [{CORE: "20"}], [(1, "3/5")]),
        ([{CORE: "60"}], [{CORE: "60", "restartPolicy": "Always"}, {CORE: "30"}], [(2, "3/5")]),
    ],
)
def test_gpu_manager_gives_each_container_devices_by_itself(containers: Any, init: Any, expected: Any) -> None:
    host = node({CORE: "400", "tencent.com/vcuda-memory": "240"}, gfd("Tesla-T4"))

    assert [(count, time) for *_, count, time, _ in held(pod(*containers, init=init), host)] == expected


MI300X = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}


@pytest.mark.parametrize(
    ("limits", "capacity", "labels", "expected"),
    [
        ({"amd.com/gpu": "2"}, {"amd.com/gpu": "8"}, MI300X, ("amd", "AMD_Instinct_MI300X_OAM", 2, "1")),
        (
            {"amd.com/gpu": "1"},
            {"amd.com/gpu": "64"},
            MI300X | {"amd.com/gpu.compute-memory-partition": "cpx_nps4"},
            ("amd", "AMD_Instinct_MI300X_OAM", 1, "1/8"),
        ),
        ({"amd.com/dpx_nps1": "1"}, {}, MI300X, ("amd", "AMD_Instinct_MI300X_OAM", 1, "1/2")),
        (
            {"amd.com/cpx_nps1": "1"},
            {},
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300A"},
            ("amd", "AMD_Instinct_MI300A", 1, "1/6"),
        ),
        (
            {"gpu.intel.com/xe": "1"},
            {"gpu.intel.com/xe": "8"},
            {"gpu.intel.com/product": "Max_1550", "gpu.intel.com/device.count": "8"},
            ("intel", "Max_1550", 1, "1"),
        ),
        (
            {"gpu.intel.com/i915": "1"},
            {"gpu.intel.com/i915": "20"},
            {"gpu.intel.com/product": "Flex_170", "gpu.intel.com/device.count": "2"},
            ("intel", "Flex_170", 1, "1/10"),
        ),
        ({"habana.ai/gaudi": "8"}, {}, {}, ("gaudi", "Gaudi", 8, "1")),
        (
            {"huawei.com/Ascend910": "4"},
            {},
            {"node.kubernetes.io/npu.chip.name": "910B3"},
            ("ascend", "910B3", 4, "1"),
        ),
        ({"huawei.com/Ascend910-8c": "1"}, {}, {}, ("ascend", "Ascend910", 1, "1/4")),
        ({"huawei.com/Ascend910-12c.3cpu.32g": "1"}, {}, {}, ("ascend", "Ascend910", 1, "1/2")),
        ({"huawei.com/Ascend910-5c.1cpu.8g": "1"}, {}, {}, ("ascend", "Ascend910", 1, "1/4")),
        ({"huawei.com/Ascend310P-4c.4cpu.dvpp": "1"}, {}, {}, ("ascend", "Ascend310P", 1, "1/2")),
        ({"huawei.com/Ascend310P-VPro": "2"}, {}, {}, ("ascend", "Ascend310P-VPro", 2, "1")),
        (
            {"huawei.com/npu-core": "4"},
            {"huawei.com/npu-core": "56"},
            {"node.kubernetes.io/npu.chip.name": "310P3"},
            ("ascend", "310P3", 1, "1/2"),
        ),
        (
            {"google.com/tpu": "4"},
            {"google.com/tpu": "4"},
            {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"},
            ("tpu", "tpu-v5-lite-podslice", 4, "1"),
        ),
        (
            {"aws.amazon.com/neuroncore": "1"},
            {"aws.amazon.com/neuroncore": "32", "aws.amazon.com/neuron": "16"},
            {"node.kubernetes.io/instance-type": "trn1.32xlarge"},
            ("neuron", "trn1.32xlarge", 1, "1/2"),
        ),
        (
            {"aws.amazon.com/neuron": "2", "aws.amazon.com/neuroncore": "4"},
            {},
            {"node.kubernetes.io/instance-type": "inf2.48xlarge"},
            ("neuron", "inf2.48xlarge", 2, "1"),
        ),
    ],
)
def test_other_vendors_units_are_parts_of_a_device_by_the_table(
    limits: dict[str, str], capacity: dict[str, str], labels: dict[str, str], expected: tuple[str, str, int, str]
) -> None:
    assert held(pod(limits), node(capacity, labels)) == [(*expected, expected[-1])]


def ascend_node() -> dict[str, Any]:
    devices = [{"id": f"Ascend910B3-{index}", "count": 4, "devmem": 65536, "type": "Ascend910B3"} for index in (0, 1)]
    return node({"huawei.com/Ascend910B3": "8"}, annotations={"hami.io/node-register-Ascend910B3": json.dumps(devices)})


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"huawei.com/Ascend910B3": "1"}, (1, "1")),
        ({"huawei.com/Ascend910B3": "2", "huawei.com/Ascend910B3-memory": "16384"}, (2, "1/4")),
        ({"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "99999"}, (1, "1")),
    ],
)
def test_hamis_ascend_memory_is_a_share_of_what_the_node_registers(limits: dict[str, str], expected: Any) -> None:
    found = decided(pod(limits), ascend_node())

    assert [(item.count, str(item.memory)) for item in found.holdings] == [expected]
    assert found.doubts == frozenset()


NPU, NPU_MEMORY, NPU_TIME = (f"huawei.com/Ascend910B3{suffix}" for suffix in ("", "-memory", "-core"))
QUARTER_OF_AN_NPU = {NPU: "1", NPU_MEMORY: "16384"}


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ([QUARTER_OF_AN_NPU, QUARTER_OF_AN_NPU], [], [(2, "1/4")]),
        ([QUARTER_OF_AN_NPU, {NPU: "1"}], [], [(1, "1/4"), (1, "1")]),
        ([QUARTER_OF_AN_NPU], [{NPU: "1", NPU_MEMORY: "32768"}], [(1, "1/2")]),
        ([QUARTER_OF_AN_NPU], [{**QUARTER_OF_AN_NPU, "restartPolicy": "Always"}], [(2, "1/4")]),
    ],
)
def test_each_container_asks_hami_for_the_memory_of_its_own_ascend_devices(
    containers: Any, init: Any, expected: Any
) -> None:
    found = decided(pod(*containers, init=init), ascend_node()).holdings

    assert [(item.count, str(item.memory)) for item in found] == expected


@pytest.mark.parametrize(
    ("asked", "cores", "expected"),
    [
        ({NPU_MEMORY: "1", NPU_TIME: "100"}, 100, ("1", "1/65536")),
        ({NPU_MEMORY: "16384", NPU_TIME: "80"}, 100, ("4/5", "1/4")),
        ({NPU_MEMORY: "16384", NPU_TIME: "900"}, 100, ("1", "1/4")),
        ({NPU_TIME: "30"}, 100, ("3/10", "1")),
        ({NPU_MEMORY: "16384"}, 100, ("0", "1/4")),
        ({NPU_MEMORY: "16384"}, 20, ("1/4", "1/4")),
        ({NPU_MEMORY: "16384"}, None, ("1/4", "1/4")),
    ],
)
def test_the_time_of_an_ascend_device_by_hamis_soft_split_is_charged_and_unbounded_time_costs_the_floor(
    asked: dict[str, str], cores: int | None, expected: tuple[str, str]
) -> None:
    """HAMi registers 100 cores of each device there; with its hard split, a device's AI cores."""
    device = {"id": "a-0", "count": 4, "devmem": 65536, "type": "Ascend910B3"} | ({"devcore": cores} if cores else {})
    host = node({NPU: "8"}, annotations={"hami.io/node-register-Ascend910B3": json.dumps([device])})
    (found,) = decided(pod({NPU: "1", **asked}), host).holdings

    assert (found.count, str(found.time), str(found.memory)) == (1, *expected)


@pytest.mark.parametrize("size", [NPU_MEMORY, NPU_TIME])
def test_ascend_memory_or_time_of_a_node_that_registers_nothing_is_a_whole_device_and_named(size: str) -> None:
    found = decided(pod({NPU: "1", size: "16"}), node({NPU: "8"}))

    assert [(item.count, item.memory) for item in found.holdings] == [(1, 1)]
    assert Doubt.SIZE_UNKNOWN in found.doubts


@pytest.mark.parametrize("chip", ["Ascend910C", "Ascend910B4-1"])
def test_each_chip_of_hamis_default_settings_is_a_device(chip: str) -> None:
    assert held(pod({f"huawei.com/{chip}": "1"}), node()) == [("ascend", chip, 1, "1", "1")]


@pytest.mark.parametrize(
    ("labels", "own", "model"),
    [
        ({}, {}, "Ascend910B3"),
        ({"node.kubernetes.io/npu.chip.name": "910B3"}, {}, "910B3"),
        ({"accelerator": "huawei-Ascend910"}, {}, "huawei-Ascend910"),
        ({"accelerator": "huawei-Ascend910"}, {"huawei.com/Ascend910B3": Listed("npu", model="NPU")}, "NPU"),
    ],
)
def test_hamis_ascend_devices_have_one_model_as_capacity_and_as_what_pods_hold(
    labels: dict[str, str], own: dict[str, Listed], model: str
) -> None:
    """Otherwise the whole of the node counts as idle, and what pods hold as of a model without capacity."""
    host = ascend_node() | {"metadata": {**ascend_node()["metadata"], "labels": labels}}
    devices = json.dumps([{"id": "a-0", "count": 4, "devmem": 65536, "type": "910B3 of the driver"}])
    host["metadata"]["annotations"] = {"hami.io/node-register-Ascend910B3": devices}

    assert capacity(read_host_node(host), own) == {model: 1}
    assert [item.model for item in decided(pod({"huawei.com/Ascend910B3": "1"}), host, own).holdings] == [model]


MANAGED = {
    "gpu.intel.com/i915": "600",
    "gpu.intel.com/millicores": "2000",
    "gpu.intel.com/tiles": "4",
    "gpu.intel.com/memory.max": "32Gi",
}
"""The capacity of a node with two GPUs of two tiles and 16 GiB, as Intel's resource manager has it."""


@pytest.mark.parametrize(
    ("host", "gpus"),
    [
        (node({"nvidia.com/gpu": "8"}, gfd()), "8"),
        (node({"nvidia.com/gpu": "32"}, SHARED), "8"),
        (node({"nvidia.com/mig-3g.40gb": "2"}, MIXED), "1"),
        (hami_node(), "2"),
        (ascend_node(), "2"),
        (node({"aws.amazon.com/neuroncore": "32", "aws.amazon.com/neuron": "16"}), "16"),
        (node(MANAGED), "2"),
        (node(MANAGED | {"gpu.intel.com/xe": "600"}), "2"),
        (node({"gpu.intel.com/i915": "30", "gpu.intel.com/xe": "10"}, {"gpu.intel.com/device.count": "4"}), "4"),
        (node({"gpu.intel.com/i915": "3", "gpu.intel.com/xe": "1"}), "4"),
        (node({"gpu.intel.com/i915": "0", "gpu.intel.com/xe": "2"}, {"gpu.intel.com/device.count": "2"}), "2"),
        (node({"tencent.com/vcuda-core": "400", "tencent.com/vcuda-memory": "240"}), "4"),
        (node(), "0"),
    ],
)
def test_a_nodes_capacity_is_what_a_pod_would_hold_that_asks_for_all_of_it(host: dict[str, Any], gpus: str) -> None:
    assert sum(capacity(read_host_node(host), {}).values()) == Fraction(gpus)


def test_a_nodes_capacity_is_divided_by_model() -> None:
    devices = [
        *({"id": f"GPU-{at}", "count": 4, "devmem": 40960, "type": "NVIDIA A100"} for at in (0, 1)),
        {"id": "GPU-2", "count": 4, "devmem": 16384, "type": "NVIDIA T4"},
    ]
    mixed = node({"nvidia.com/gpu": "12"}, annotations={"hami.io/node-nvidia-register": json.dumps(devices)})

    assert capacity(read_host_node(mixed), {}) == {"NVIDIA A100": 2, "NVIDIA T4": 1}
    assert capacity(read_host_node(node({"amd.com/gpu": "8"})), {}) == {"": 8}


@pytest.mark.parametrize(
    ("gpus", "millicores", "parts"),
    [("1", "500", (1, "1/2")), ("2", "500", (1, "1/2")), ("2", "1500", (2, "3/4")), ("1", "0", (1, "1/300"))],
)
def test_intels_millicores_are_thousandths_of_a_gpu_whatever_the_node_offers(
    gpus: str, millicores: str, parts: tuple[int, str]
) -> None:
    asking = pod({"gpu.intel.com/i915": gpus, "gpu.intel.com/millicores": millicores})
    labels = {"gpu.intel.com/product": "Flex_170", "gpu.intel.com/device.count": "1"}
    count, part = parts

    assert held(asking, node({"gpu.intel.com/i915": "300"}, labels)) == [("intel", "Flex_170", count, part, part)]


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/tiles": "1"}, (1, "1/2")),
        ({"gpu.intel.com/i915": "2", "gpu.intel.com/tiles": "3"}, (2, "3/4")),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/memory.max": "4Gi"}, (1, "1/4")),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/tiles": "1", "gpu.intel.com/memory.max": "12Gi"}, (1, "3/4")),
        ({"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "600", "gpu.intel.com/tiles": "1"}, (1, "3/5")),
    ],
)
def test_intels_tiles_and_memory_are_parts_of_what_the_node_offers_of_its_gpus(
    asked: dict[str, str], parts: tuple[int, str]
) -> None:
    found = held(pod(asked), node(MANAGED, {"gpu.intel.com/product": "Max_1550"}))
    count, part = parts

    assert found == [("intel", "Max_1550", count, part, part)]


@pytest.mark.parametrize("size", ["gpu.intel.com/tiles", "gpu.intel.com/memory.max"])
def test_intels_tiles_and_memory_of_a_node_that_states_none_are_whole_gpus_and_named(size: str) -> None:
    host = node(
        {"gpu.intel.com/i915": "600", "gpu.intel.com/millicores": "2000"}, {"gpu.intel.com/product": "Max_1550"}
    )
    decision = decided(pod({"gpu.intel.com/i915": "2", size: "1"}), host)

    assert [(one.count, one.time) for one in decision.holdings] == [(2, 1)]
    assert decision.doubts == {Doubt.SIZE_UNKNOWN}


@pytest.mark.parametrize("labels", [{}, {"gpu.intel.com/device.count": "2"}])
def test_a_unit_of_intels_managed_gpus_is_a_whole_one_where_the_pod_states_no_size(labels: dict[str, str]) -> None:
    """Such a node offers hundreds of units of each GPU, and nothing bounds what the pod uses of it."""
    decision = decided(pod({"gpu.intel.com/i915": "1"}), node(MANAGED, labels))

    assert [(one.count, one.time) for one in decision.holdings] == [(1, 1)]
    assert Doubt.SIZE_UNKNOWN in decision.doubts


def test_a_size_of_one_container_bounds_no_other_of_intels_managed_gpus() -> None:
    sized = {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "1"}
    for asking in (
        pod({"gpu.intel.com/i915": "1"}, init=[sized]),
        pod({"gpu.intel.com/i915": "1"}, sized),
        pod(sized, init=[{"gpu.intel.com/i915": "1"}]),
    ):
        found = decided(asking, node(MANAGED)).holdings
        assert sum(one.count * one.time for one in found) >= 1


def test_sizes_of_a_container_with_intels_one_driver_are_none_of_a_container_with_the_other() -> None:
    half = {"gpu.intel.com/millicores": "500"}
    asking = pod({"gpu.intel.com/i915": "1", **half}, {"gpu.intel.com/xe": "1", **half})
    host = node(MANAGED | {"gpu.intel.com/xe": "600"}, {"gpu.intel.com/product": "Flex_170"})

    assert held(asking, host) == [("intel", "Flex_170", 2, "1/2", "1/2")]


def test_a_unit_of_intels_is_the_same_part_of_a_gpu_by_either_driver() -> None:
    """The label counts the node's GPUs of both drivers."""
    host = node({"gpu.intel.com/i915": "30", "gpu.intel.com/xe": "10"}, {"gpu.intel.com/device.count": "4"})

    for driver in ("gpu.intel.com/i915", "gpu.intel.com/xe"):
        assert [one[2:] for one in held(pod({driver: "1"}), host)] == [(1, "1/10", "1/10")]


def test_sizes_of_a_container_with_both_of_intels_drivers_count_for_each() -> None:
    """Nothing states how they are divided between the two: the dearer rule counts."""
    asking = pod({"gpu.intel.com/i915": "1", "gpu.intel.com/xe": "1", "gpu.intel.com/millicores": "500"})
    host = node(MANAGED | {"gpu.intel.com/xe": "600"}, {"gpu.intel.com/product": "Flex_170"})
    decision = decided(asking, host)

    assert sum(one.count * one.time for one in decision.holdings) == 1
    assert Doubt.SIZE_UNKNOWN in decision.doubts


def test_intels_monitoring_resource_holds_no_device() -> None:
    assert held(pod({"gpu.intel.com/i915_monitoring": "1"}), node({"gpu.intel.com/i915_monitoring": "1"})) == []


def test_a_resource_that_the_admin_lists_is_held_by_that_line() -> None:
    own = {"example.com/npu": Listed("npu", parts=4, model_labels=("example.com/npu.product",))}
    host = node({"example.com/npu": "32"}, {"example.com/npu.product": "N1"})
    found = decided(pod({"example.com/npu": "2"}), host, own)

    assert [(item.model, item.count, item.time) for item in found.holdings] == [("N1", 1, Fraction(1, 2))]


def test_resources_of_two_stacks_are_counted_each_once() -> None:
    host = hami_node()
    host["metadata"]["labels"] = gfd("NVIDIA-A10")
    asking = pod(
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6144", "google.com/tpu": "1"},
        annotations={HAMI: "GPU-0,NVIDIA,6144,0:;"},
    )

    assert [(way, count) for way, _, count, _, _ in held(asking, host)] == [("hami", 1), ("tpu", 1)]
