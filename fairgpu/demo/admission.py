"""Plays the API server's part in admission: reviews sent over TLS, patches applied, refusals and warnings shown."""

from __future__ import annotations

import base64
import copy
import json
import ssl
import uuid
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from typing import Any

from fairgpu.demo.children import StepError

TIMEOUT_SECONDS = 10.0
USER = "ada"

Json = dict[str, Any]


@dataclass(frozen=True)
class Admitted:
    """What became of a manifest: the pod as it would be stored, or why it was refused."""

    pod: Json
    refusal: str = ""
    warnings: tuple[str, ...] = ()


class Admission:
    """The webhook at one address, called as an API server calls it: mutating first, validating what came out."""

    def __init__(self, port: int, ca_pem: str) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cadata=ca_pem)

    def ready(self) -> bool:
        """Whether the webhook serves."""
        try:
            return self._request("GET", "/readyz", None)[0] == 200
        except (OSError, HTTPException):
            return False

    def create(self, namespace: str, manifest: Json) -> Admitted:
        """Sends a manifest through both webhooks.

        Raises:
            StepError: the webhook does not answer as an API server needs it to.
        """
        pod = copy.deepcopy(manifest)
        pod["metadata"]["namespace"] = namespace
        mutated = self._review("/mutate", namespace, pod)
        if not mutated["allowed"]:
            return Admitted(pod, mutated["status"]["message"], tuple(mutated.get("warnings", ())))
        if "patch" in mutated:
            pod = apply_patch(pod, json.loads(base64.b64decode(mutated["patch"])))
        validated = self._review("/validate", namespace, pod)
        warnings = (*mutated.get("warnings", ()), *validated.get("warnings", ()))
        refusal = "" if validated["allowed"] else validated["status"]["message"]
        return Admitted(pod, refusal, tuple(dict.fromkeys(warnings)))

    def _review(self, path: str, namespace: str, pod: Json) -> Json:
        uid = str(uuid.uuid4())
        request = {
            "uid": uid,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": namespace,
            "name": pod["metadata"]["name"],
            "operation": "CREATE",
            "userInfo": {"username": USER, "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        try:
            status, body = self._request("POST", path, json.dumps(review).encode())
            response: Json = json.loads(body)["response"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise StepError(f"the webhook gave no AdmissionReview at {path}: {error!r}") from error
        if status != 200 or response.get("uid") != uid or not isinstance(response.get("allowed"), bool):
            raise StepError(f"the webhook answered {status} at {path}: {response}")
        return response

    def _request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = HTTPSConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS, context=self._tls)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def apply_patch(document: Json, operations: list[Json]) -> Json:
    """A copy with the JSON Patch (RFC 6902) applied: add, replace and remove, which is what admission sends.

    Raises:
        StepError: an operation of another kind, or on a place that is not there.
    """
    patched = copy.deepcopy(document)
    for operation in operations:
        *parents, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        try:
            target: Any = patched
            for step in parents:
                target = target[int(step) if isinstance(target, list) else step]
            _apply(target, last, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise StepError(f"the patch cannot be applied: {operation}") from error
    return patched


def _apply(target: Any, key: str, operation: Json) -> None:
    match operation["op"], target:
        case "remove", list():
            del target[int(key)]
        case "remove", dict():
            del target[key]
        case "add", list():
            target.insert(len(target) if key == "-" else int(key), operation["value"])
        case "replace", list():
            target[int(key)] = operation["value"]
        case "add" | "replace", dict():
            target[key] = operation["value"]
        case kind, _:
            raise ValueError(kind)
