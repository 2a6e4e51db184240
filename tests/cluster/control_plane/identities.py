"""Identities of callers of the API server: a kubeconfig, a JSON client and kubectl for each."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.connect import connect
from tests.cluster.control_plane.certificates import Files
from tests.support.waiting import LIMIT_S


@dataclass(frozen=True)
class Identity:
    """A user or account of the test cluster. `name` is what the API server calls it."""

    name: str
    kubeconfig: Path
    kubectl_binary: Path

    @cached_property
    def api(self) -> KubernetesAPI:
        """Requests with raw JSON under this identity, each answered within LIMIT_S."""
        return connect({}, self.kubeconfig).within(LIMIT_S)

    def kubectl(self, *arguments: str, stdin: Any = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl under this identity, at most LIMIT_S.

        `stdin` is text, or an object or list of objects to hand over as JSON. Raises AssertionError with kubectl's
        own words if it fails and `check` holds.
        """
        given = stdin if stdin is None or isinstance(stdin, str) else _as_list(stdin)
        home = str(self.kubeconfig.parent)  # kubectl keeps its discovery cache there
        result = subprocess.run(
            [self.kubectl_binary, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={"KUBECONFIG": str(self.kubeconfig), "HOME": home, "PATH": os.defpath},
        )
        if check and result.returncode != 0:
            raise AssertionError(f"{self.name}: kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result

    def shell(
        self, command: str, folder: Path | None = None, limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a shell that has kubectl under this identity, in a folder; at most `limit_s`."""
        environment = {
            "HOME": str(self.kubeconfig.parent),
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.kubectl_binary.parent}:{os.defpath}",
        }
        shell = ["/bin/bash", "-euo", "pipefail", "-c", command]
        return subprocess.run(
            shell, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def may(self, verb: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
        """Whether the API server's authorizer lets this identity do it. `resource` is `RESOURCE[/SUB][.GROUP]`."""
        path, _, group = resource.partition(".")
        plural, _, subresource = path.partition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        answer = self.api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        allowed: bool = answer["status"]["allowed"]
        return allowed


def write_kubeconfig(path: Path, server: str, authority: Path, credentials: Files | str) -> Path:
    """Write a kubeconfig that holds all that it needs. `credentials` are a client certificate or a token."""
    if isinstance(credentials, Files):
        user = {
            "client-certificate-data": _encoded(credentials.certificate),
            "client-key-data": _encoded(credentials.key),
        }
    else:
        user = {"token": credentials}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority-data": _encoded(authority)}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _as_list(objects: Any) -> str:
    items = objects if isinstance(objects, list) else [objects]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
