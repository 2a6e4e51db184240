from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import running
from tests.cluster.control_plane.stand_ins import bind, create_node, forged_allocation
from tests.cluster.installation import Manifest
from tests.cluster.pods import canonical_pod, plain_pod
from tests.support.waiting import wait_until


def test_the_api_server_answers_with_the_version_that_was_built(control_plane: ControlPlane) -> None:
    assert control_plane.admin.api.get("/version")["gitVersion"] == "v1.34.2"
    assert "v1.34.2" in control_plane.admin.kubectl("version", "--client").stdout


def test_rbac_refuses_a_user_without_a_role(control_plane: ControlPlane, namespace: str) -> None:
    nobody = control_plane.user("nobody")
    with pytest.raises(ApiError) as refusal:
        nobody.api.get(f"/api/v1/namespaces/{namespace}/pods")
    assert refusal.value.status == 403
    assert not nobody.may("list", "pods", namespace=namespace)


def test_an_admin_of_one_namespace_may_do_all_in_it_and_nothing_beside_it(
    control_plane: ControlPlane, namespace: str
) -> None:
    admin = control_plane.namespace_admin(namespace)
    assert admin.may("create", "pods/binding", namespace=namespace)
    assert not admin.may("create", "pods", namespace="default")
    assert not admin.may("update", "gpubudgets.fairgpu.io")


def test_the_stock_scheduler_binds_a_plain_pod_and_a_job_completes_when_its_pod_does(
    control_plane: ControlPlane, namespace: str
) -> None:
    node = create_node(control_plane, f"node-{namespace}")
    api = control_plane.admin.api
    container = {"name": "main", "image": "example.org/app:1"}
    here = {"kubernetes.io/hostname": node.name}  # other tests have left their nodes
    template = {"spec": {"restartPolicy": "Never", "nodeSelector": here, "containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template}}
    api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", job)

    def bound() -> str | None:
        pods = api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return next((pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node.name), None)

    pod = wait_until(bound, "the job's pod is bound")
    node.set_pod_phase(namespace, pod, "Running")
    node.set_pod_phase(namespace, pod, "Succeeded")
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/job"
    wait_until(lambda: api.get(path)["status"].get("succeeded") == 1, "the job completes")
    api.delete(f"/api/v1/nodes/{node.name}")


def test_a_binding_carries_the_allocation_into_the_pod(
    control_plane: ControlPlane, installation: list[Manifest], namespace: str
) -> None:
    assert installation
    api = control_plane.admin.api
    node = create_node(control_plane, f"node-{namespace}")
    pod = canonical_pod()
    amounts = {"fairgpu.io/gpu": "2", "fairgpu.io/gpu-core": "60", "fairgpu.io/gpu-memory": "8192"}
    pod["spec"]["containers"][0]["resources"] = {"limits": amounts}
    created = api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    allocation = forged_allocation(created, node.name)
    first, second = allocation["containers"][0]["devices"]
    assert (second["core"], second["memoryMiB"]) == (30, 4096)
    assert first["uuid"] != second["uuid"]

    bind(control_plane.service_account("fairgpu-system", "fairgpu-scheduler"), created, node.name, allocation)

    bound = node.set_pod_phase(namespace, "gpu", "Running")
    assert json.loads(bound["metadata"]["annotations"]["fairgpu.io/allocation"]) == allocation
    assert bound["spec"]["nodeName"] == node.name
    conditions = {condition["type"]: condition["status"] for condition in bound["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"
    assert bound["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    api.delete(f"/api/v1/nodes/{node.name}")


def test_a_node_may_not_write_the_status_of_another_nodes_pod(control_plane: ControlPlane, namespace: str) -> None:
    here, there = (create_node(control_plane, f"{side}-{namespace}") for side in ("here", "there"))
    pod = control_plane.admin.api.create(f"/api/v1/namespaces/{namespace}/pods", plain_pod())
    bind(control_plane.admin, pod, here.name, None)
    with pytest.raises(ApiError, match="can only update pod status for pods with spec"):
        there.kubelet.api.patch(f"/api/v1/namespaces/{namespace}/pods/plain/status", {"status": {"phase": "Failed"}})
    for node in (here, there):
        control_plane.admin.api.delete(f"/api/v1/nodes/{node.name}")


def test_tokens_bound_to_a_pod_verify_against_the_published_keys(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.admin.api
    pod = api.create(f"/api/v1/namespaces/{namespace}/pods", plain_pod())
    token = control_plane.token(namespace, "default", audience="fairgpu-timekeeper", pod=pod)

    keys = jwt.PyJWKSet.from_dict(control_plane.service_account("default", "default").api.get("/openid/v1/jwks"))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["ES256"], audience="fairgpu-timekeeper", issuer=control_plane.server)

    assert claims["kubernetes.io"]["pod"] == {"name": "plain", "uid": pod["metadata"]["uid"]}


def test_the_api_server_can_be_taken_away_and_comes_back_with_all_that_it_knew(
    control_plane: ControlPlane, namespace: str
) -> None:
    api = control_plane.admin.api
    made = api.create(f"/api/v1/namespaces/{namespace}/pods", plain_pod())
    with control_plane.api_server_away(), pytest.raises(ApiError) as failure:
        api.get(f"/api/v1/namespaces/{namespace}/pods")
    assert failure.value.status == 0
    assert api.get(f"/api/v1/namespaces/{namespace}/pods/plain")["metadata"]["uid"] == made["metadata"]["uid"]
    control_plane.create_namespace("after-")  # waits for its default account: the controllers are at work again


def test_a_process_ends_when_the_session_that_started_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.cluster.control_plane.processes import running\n"
        "with running('sleeper', ['/bin/sleep', '600'], Path(sys.argv[1]), {}) as p: print(p.popen.pid, flush=True);"
        " time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert starter.stdout is not None
    with starter, starter.stdout:
        sleeper = int(starter.stdout.readline())
        wait_until(lambda: Path(f"/proc/{sleeper}/comm").read_text() == "sleep\n", "the helper becomes the program")
        starter.kill()
    wait_until(lambda: not _alive(sleeper), "the kernel ends the sleeper")


def test_a_process_that_may_be_killed_and_ignores_sigterm_is_killed_with_its_group(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    with running("deaf", [sys.executable, "-I", "-S", "-c", deaf], log, {}, stop_limit_s=0.2) as process:
        wait_until(lambda: "deaf" in log.read_text(), "the program ignores SIGTERM")
    assert process.popen.returncode == -signal.SIGKILL


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it was there when the file was opened, or not
        return False
    return state != "Z"
