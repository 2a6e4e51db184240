"""Bodies of any size at the real extender, whose API server is away."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
import yaml

from tests.support.ports import free_ports
from tests.support.processes import FAIRGPU, ending
from tests.support.waiting import LIMIT_S, wait_until

LARGEST = 8 << 20
"""As docs/bad-input.md says."""


@pytest.fixture(scope="module")
def extender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of `fairgpu scheduler serve`."""
    folder = tmp_path_factory.mktemp("extender")
    port, metrics, nothing = free_ports(3)
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{nothing}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": {}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    settings = {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "HOME": str(folder),
        "PATH": os.defpath,
        "FAIRGPU_SCHEDULER_EXTENDER_PORT": str(port),
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": "127.0.0.1",
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": str(metrics),
        "FAIRGPU_SCHEDULER_STATES_URL": f"https://127.0.0.1:{nothing}",
        "FAIRGPU_SCHEDULER_STATES_CA_FILE": str(folder / "none"),
    }
    command = [*FAIRGPU, "scheduler", "serve"]
    log = (folder / "log").open("wb")
    with log, ending(subprocess.Popen(command, env=settings, stdout=log, stderr=log)) as process:

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                return post(port, b"{}")[0] == 503
            except OSError:
                return False

        wait_until(answers, "the extender answers")
        yield port


def post(port: int, body: bytes, path: str = "/filter") -> tuple[int, str]:
    """The status of an answer, and what it says."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["detail"]


@pytest.mark.parametrize("path", ["/filter", "/prioritize", "/bind"])
def test_a_body_above_the_limit_is_refused_and_the_extender_goes_on(extender: int, path: str) -> None:
    assert post(extender, b" " * (LARGEST + 1), path) == (413, f"the body is longer than {LARGEST} bytes")
    assert post(extender, b" " * LARGEST, path) == (503, "this replica does not lead")


def test_no_pod_is_placed_before_nodes_and_pods_were_read(extender: int) -> None:
    body = json.dumps({"Pod": {}, "NodeNames": ["n0"]}).encode()
    assert post(extender, body) == (503, "this replica does not lead")
    bind = json.dumps({"PodName": "a", "PodNamespace": "team", "PodUID": "uid-a", "Node": "n0"}).encode()
    assert post(extender, bind, "/bind") == (503, "this replica does not lead")
