from __future__ import annotations

import io
import json
from pathlib import Path

import jwt
import pytest
from rich.console import Console

from demo import children
from demo.admission import apply_patch
from demo.children import StepError
from demo.cluster import DEVICE_MIB, Cluster
from demo.environment import manifests
from demo.gpus import Load, record
from demo.keys import ISSUER, TokenSigner
from demo.running import allocation_of, cost, rate
from demo.screen import Reading, Screen
from fairgpu import names
from fairgpu.allocation import Allocation, ContainerAllocation, DeviceShare
from fairgpu.states import BudgetState
from sidecar.usage_record import decode as decode_usage

SECOND_NS = 10**9


def test_the_gpus_write_what_the_sidecar_reads() -> None:
    load = Load(Path("usage"), "GPU-a", busy_share=0.25, memory_mib=3, memory_limit_mib=4)
    usage = decode_usage(record(load, sequence=7, since_ns=SECOND_NS, now_ns=5 * SECOND_NS))
    assert usage is not None
    assert (usage.sequence, usage.epoch_ns) == (7, SECOND_NS)
    (device,) = usage.devices
    assert (device.uuid, device.busy_ns, device.memory_peak_bytes) == ("GPU-a", SECOND_NS, 3 << 20)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/b", "value": 2}], {"a": [1, 2], "b": 2}),
        ([{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ([{"op": "add", "path": "/a/-", "value": 3}], {"a": [1, 2, 3]}),
        ([{"op": "remove", "path": "/a/1"}], {"a": [1]}),
        ([{"op": "replace", "path": "/a/0", "value": 9}], {"a": [9, 2]}),
        ([{"op": "add", "path": "/x~1y~0z", "value": {}}, {"op": "add", "path": "/x~1y~0z/k", "value": 1}],
         {"a": [1, 2], "x/y~z": {"k": 1}}),
    ],
)  # fmt: skip
def test_a_json_patch_is_applied_to_a_copy(operations: list[dict[str, object]], expected: dict[str, object]) -> None:
    document = {"a": [1, 2]}
    assert apply_patch(document, operations) == expected
    assert document == {"a": [1, 2]}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/b"},
        {"op": "remove", "path": "/a/7"},
        {"op": "add", "path": "/a/b/c", "value": 1},
        {"op": "move", "path": "/a", "from": "/b"},
        {"op": "shuffle", "path": "/a"},
    ],
)
def test_a_patch_that_does_not_fit_is_an_error(operation: dict[str, object]) -> None:
    with pytest.raises(StepError):
        apply_patch({"a": [1, 2]}, [operation])


def test_a_pods_token_is_one_that_its_key_set_verifies() -> None:
    signer = TokenSigner()
    key = jwt.PyJWKSet.from_dict(signer.key_set()).keys[0]
    token = signer.pod("research", "train", "uid-1")
    claims = jwt.decode(token, key, algorithms=["ES256"], audience=names.TOKEN_AUDIENCE, issuer=ISSUER)
    assert claims["kubernetes.io"]["pod"] == {"name": "train", "uid": "uid-1"}


def canonical(core: int, memory: int) -> dict[str, object]:
    limits = {names.GPU: "1", names.GPU_CORE: str(core), names.GPU_MEMORY: str(memory)}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    return {"metadata": {"name": f"pod-{core}"}, "spec": {"containers": [container]}}


def test_a_bound_pod_carries_an_allocation_of_devices_that_had_room(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "pods")
    bound, beside = (cluster.bind(canonical(core=60, memory=4096)) for _ in range(2))
    assert json.loads(cluster.file(bound).read_text()) == bound
    first, second = (allocation_of(pod).containers[0].devices[0] for pod in (bound, beside))
    assert (first.core_percent, first.memory_mib) == (60, 4096)
    assert first.uuid != second.uuid


def test_a_pod_that_has_ended_costs_its_rate_for_each_second(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "pods")
    finished = cluster.finish(cluster.bind(canonical(core=60, memory=4096)))
    finished["status"]["conditions"][0]["lastTransitionTime"] = "2030-01-01T00:00:00Z"
    finished["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "2030-01-01T00:01:10Z"
    assert cost(finished) == 70 * 600_000


def test_a_pod_that_fits_nowhere_ends_the_demonstration(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="gpu-node-1 has no room for pod-10: gpu-size: 81921 MiB on one GPU asked"):
        Cluster(tmp_path / "pods").bind(canonical(core=10, memory=DEVICE_MIB + 1))


@pytest.mark.parametrize(
    ("core", "memory_mib", "per_second"),
    [(30, 4096, 300_000), (10, 8192, 100_000), (10, 40960, 500_000), (0, 1, 100_000), (10, 8193, 100_013)],
)
def test_a_share_costs_the_larger_of_its_time_and_its_memory(core: int, memory_mib: int, per_second: int) -> None:
    share = DeviceShare("GPU-a", "A100", 81920, core, memory_mib)
    assert rate(Allocation("n1", (ContainerAllocation("main", (share,)),))) == per_second


def test_there_is_a_manifest_for_each_dialect() -> None:
    spoken = [dialect for dialect, _ in manifests()]
    assert spoken == ["native", "tencent", "hami", "aliyun", "kai", "volcano", "model"]


def test_in_a_pipe_the_screen_is_plain_text() -> None:
    output = io.StringIO()
    screen = Screen(Console(file=output))
    screen.title("FairGPU", ["a line"])
    screen.section("A section")
    with screen.meter() as meter:
        meter.show(Reading("research", BudgetState.OPEN, 20_000_000, 5_000_000, 2_000_000, 2_850_000))
        meter.show(Reading("research", BudgetState.GRACE, 20_000_000, 21_000_000, 9_000_000, 2_850_000))
    screen.done("it happened")
    text = output.getvalue()
    assert "\x1b" not in text
    assert "reserved   5.0 of 20 GPU·s  used   2.0  at 2.85 GPUs" in text
    assert "research grace" in text


def test_no_two_servers_are_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PORTS", range(25000, 25200))
    ports = [children.free_port() for _ in range(60)]
    assert len(set(ports)) == len(ports)
