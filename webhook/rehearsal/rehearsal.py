"""What would happen to manifests: the reviews that the API server would ask for, and what comes of them."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jsonpatch
import orjson

from fairgpu.faults import explain
from webhook.admission.verdict import Subject
from webhook.rehearsal.manifests import Manifest
from webhook.rehearsal.shape import misshapen

Review = Callable[[str, bytes], bytes]
"""Answers a review: the route, `mutate` or `validate`, and the body. Raises RehearsalError."""


class RehearsalError(RuntimeError):
    """The webhook that was asked gave no answer; the message says why."""


class Outcome(StrEnum):
    """What becomes of an object."""

    UNCONCERNED = "unconcerned"
    UNTOUCHED = "untouched"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would happen to one manifest.

    Attributes:
        manifest: the manifest.
        namespace: where it would be created.
        outcome: what becomes of it, or of the pods made from it.
        before: the pod as its author wants it.
        after: the pod as it would be stored.
        operations: the JSON Patch between the two.
        warnings: what kubectl would show.
        message: why it would be refused.
    """

    manifest: Manifest
    namespace: str
    outcome: Outcome
    before: dict[str, Any]
    after: dict[str, Any]
    operations: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()
    message: str = ""


def rehearse(manifest: Manifest, namespace: str, user: str, review: Review) -> Rehearsal:
    """Asks for the reviews of creating a manifest, and where it makes pods, of creating one of those.

    Raises:
        RehearsalError: the webhook gave no answer.
    """
    namespace = manifest.namespace or namespace
    pod = manifest.pod()
    if not manifest.concerned:
        return Rehearsal(manifest, namespace, Outcome.UNCONCERNED, pod, pod, [])
    faults = misshapen(manifest)
    if faults:
        return Rehearsal(manifest, namespace, Outcome.REFUSED, pod, pod, [], message=explain(faults))
    warnings: list[str] = []
    if manifest.kind != "Pod":
        answer = _ask("validate", manifest.kind, manifest.item, namespace, user, review)
        # A refusal of the template's pods says the same again, and better.
        if not answer["allowed"]:
            return Rehearsal(manifest, namespace, Outcome.REFUSED, pod, pod, [], message=_message(answer))
    mutated = _ask("mutate", "Pod", pod, namespace, user, review)
    operations, after = _patched(pod, mutated.get("patch") or "W10=")
    warnings += mutated.get("warnings") or []
    refusal = mutated if not mutated["allowed"] else None
    if refusal is None:
        validated = _ask("validate", "Pod", after, namespace, user, review)
        warnings += validated.get("warnings") or []
        refusal = validated if not validated["allowed"] else None
    if refusal is not None:
        return Rehearsal(manifest, namespace, Outcome.REFUSED, pod, pod, [], (), _message(refusal))
    outcome = Outcome.CHANGED if operations else Outcome.UNTOUCHED
    return Rehearsal(manifest, namespace, outcome, pod, after, operations, tuple(dict.fromkeys(warnings)))


def review_body(subject: Subject, *, dry_run: bool = True) -> bytes:
    """An AdmissionReview as the API server would send it."""
    return orjson.dumps(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": subject.uid,
                "kind": {"group": "", "version": "v1", "kind": subject.kind},
                "subResource": subject.sub_resource,
                "operation": subject.operation,
                "namespace": subject.namespace,
                "name": subject.name,
                "userInfo": {"username": subject.user},
                "object": subject.item or None,
                "oldObject": subject.old_item or None,
                "dryRun": dry_run,
            },
        }
    )


def _ask(route: str, kind: str, item: dict[str, Any], namespace: str, user: str, review: Review) -> dict[str, Any]:
    subject = Subject(
        uid=str(uuid.uuid4()),
        kind=kind,
        sub_resource="",
        operation="CREATE",
        namespace=namespace,
        name="",
        user=user,
        item=item,
        old_item={},
    )
    body = review_body(subject)
    try:
        response = orjson.loads(review(route, body))["response"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise RehearsalError(f"the webhook's answer is no AdmissionReview: {error!r}") from error
    if not isinstance(response, dict) or "allowed" not in response:
        raise RehearsalError("the webhook's answer has no verdict")
    return response


def _patched(pod: dict[str, Any], encoded: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The operations in an answer's patch, and the pod after them."""
    try:
        operations = orjson.loads(base64.b64decode(encoded))
        return operations, jsonpatch.apply_patch(pod, operations)
    except (ValueError, TypeError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise RehearsalError(f"the webhook's answer has no patch that fits: {error!r}") from error


def _message(response: dict[str, Any]) -> str:
    return str((response.get("status") or {}).get("message") or "refused without a reason")
