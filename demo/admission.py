"""Plays the API server in admission: sends reviews over TLS, and applies the patches of the answers."""

from __future__ import annotations

import base64
import copy
import json
import ssl
import uuid
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from typing import Any

import jsonpatch
import jsonpointer

from demo.children import StepError

TIMEOUT_SECONDS = 10.0
USER = "ada"

Json = dict[str, Any]


@dataclass(frozen=True)
class Admitted:
    """The result of a pod's admission.

    Attributes:
        pod: the pod as JSON: as it would be stored or, if it is refused, as the webhook has changed it so far.
        refusal: the reason why the pod is refused; empty if it is admitted.
        warnings: lines for the pod's author.
    """

    pod: Json
    refusal: str = ""
    warnings: tuple[str, ...] = ()


class Admission:
    """A client of the webhook that plays the API server: it calls the mutating route and then the validating one."""

    def __init__(self, port: int, ca_pem: str) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cadata=ca_pem)

    def ready(self) -> bool:
        """Returns whether the webhook answers its readiness probe with 200."""
        try:
            return self._request("GET", "/readyz", None)[0] == 200
        except (OSError, HTTPException):
            return False

    def create(self, namespace: str, manifest: Json) -> Admitted:
        """Has both webhooks review the creation of a pod; returns the result. Nothing is stored.

        If the mutating webhook refuses the pod, the validating one is not asked.

        Args:
            namespace: the namespace in which the pod would be created.
            manifest: the pod as its author wrote it, as JSON.

        Raises:
            StepError: the webhook does not answer, or its answer is not one that an API server accepts.
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
    """Returns a copy of a JSON object with a JSON Patch (RFC 6902) applied.

    Raises:
        StepError: the patch cannot be applied.
    """
    try:
        patched: Json = jsonpatch.apply_patch(document, operations)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
        raise StepError(f"the patch cannot be applied: {error}: {operations}") from error
    return patched
