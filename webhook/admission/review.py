"""AdmissionReview in, AdmissionReview out, as bytes (admission.k8s.io/v1).

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any, Final

import msgspec
import orjson

from fairgpu.faults import explain
from webhook.admission.creation import admit_new
from webhook.admission.excerpt import DECODER
from webhook.admission.knowledge import Knowledge
from webhook.admission.orders import KINDS, sign
from webhook.admission.updating import admit_update
from webhook.admission.validation import validate
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict, mapping
from webhook.settings import Webhook

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
FORBIDDEN: Final = 403


class ReviewError(ValueError):
    """The body is no AdmissionReview that can be answered; the message says why."""


def decode(body: bytes) -> Subject:
    """The request in an AdmissionReview.

    Raises:
        ReviewError: it is no JSON, no AdmissionReview of v1, or has no request with a uid.
    """
    return read(parse(body), len(body))


def parse(body: bytes) -> Any:
    """The document, as far as it is read where it is as an API server writes it, else all of it.

    Raises:
        ReviewError: it is no JSON.
    """
    try:
        return DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # of other types, or no JSON at all: said by who reads all of it
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"the body is no JSON: {error}") from error


def read(document: Any, size: int = 0) -> Subject:
    """The request in a document.

    Args:
        document: the AdmissionReview.
        size: bytes of its JSON.

    Raises:
        ReviewError: it is no AdmissionReview of v1, or has no request with a uid.
    """
    if not isinstance(document, dict) or document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise ReviewError(f"the body is no {KIND} of {API_VERSION}")
    request = document.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise ReviewError("the review has no request with a uid")
    return Subject(
        uid=request["uid"],
        kind=_text(mapping(request.get("kind")), "kind"),
        sub_resource=_text(request, "subResource"),
        operation=_text(request, "operation"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        user=_text(mapping(request.get("userInfo")), "username"),
        item=mapping(request.get("object")),
        old_item=mapping(request.get("oldObject")),
        size=size,
    )


def mutate(subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """The verdict of the mutating webhook: on pods, only as a whole, and on new orders."""
    if subject.sub_resource:
        return UNTOUCHED
    if subject.kind in KINDS and subject.operation == "CREATE":
        return sign(subject)
    if subject.kind != "Pod":
        return UNTOUCHED
    if subject.operation == "CREATE":
        return admit_new(subject, knowledge, settings, now)
    if subject.operation == "UPDATE":
        return admit_update(subject, settings)
    return UNTOUCHED


def judge(route: str, subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """The verdict of the webhook behind a route, `mutate` or `validate`."""
    if route == "mutate":
        return mutate(subject, knowledge, settings, now)
    return validate(subject, knowledge, settings)


def encode(uid: str, verdict: Verdict) -> bytes:
    """The answer; a refusal changes nothing, and what is admitted unchanged has no patch."""
    response: dict[str, Any] = {"uid": uid, "allowed": not verdict.faults}
    if verdict.faults:
        response["status"] = {
            "status": "Failure",
            "code": FORBIDDEN,
            "reason": "Forbidden",
            "message": explain(verdict.faults),
        }
    elif verdict.operations:
        response["patchType"] = "JSONPatch"
        encoded = b2a_base64(orjson.dumps(verdict.operations), newline=False)
        response["patch"] = orjson.Fragment(b'"%b"' % encoded)  # nothing in base64 is to be escaped
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    if verdict.audit:
        response["auditAnnotations"] = verdict.audit
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def answer(route: str, body: bytes, knowledge: Knowledge, settings: Webhook, now: float) -> bytes:
    """The whole way from a body to its answer.

    Raises:
        ReviewError: the body is none that can be answered.
    """
    subject = decode(body)
    return encode(subject.uid, judge(route, subject, knowledge, settings, now))


def _text(parent: dict[str, Any], key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""
