"""Answers an AdmissionReview, from bytes to bytes (admission.k8s.io/v1).

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import orjson

from fairgpu.faults import explain
from fairgpu.json_values import mapping
from webhook.admission.accounting import admit_accounted
from webhook.admission.creation import admit_new
from webhook.admission.excerpt import DECODER
from webhook.admission.json_patch import add
from webhook.admission.knowledge import Knowledge
from webhook.admission.updating import admit_update
from webhook.admission.validation import validate
from webhook.admission.verdict import UNTOUCHED, Subject, Verdict
from webhook.settings import Webhook

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
FORBIDDEN: Final = 403
MUTATE: Final = "mutate"
VALIDATE: Final = "validate"
ACCOUNT: Final = "account"
"""The mutating webhook of namespaces whose mode is `account`."""
ROUTES: Final = (MUTATE, VALIDATE, ACCOUNT)
"""The routes, which are the paths that the webhook configurations name."""

_ORDERS: Final = ("GPUGrant", "GPUCorrection")
_LONGEST_NAME: Final = 256
"""The maxLength of `spec.requestedBy` in the CRDs; the policy fairgpu-orders truncates names likewise."""


class ReviewError(ValueError):
    """The body of a request is not an AdmissionReview that can be answered; the message says why."""


class Answer(NamedTuple):
    """The answer to an admission review.

    Attributes:
        subject: the review's request.
        verdict: the decision on the request.
        body: the decision as an AdmissionReview in JSON.
    """

    subject: Subject
    verdict: Verdict
    body: bytes


def answer(route: str, body: bytes, knowledge: Knowledge, settings: Webhook, now: float) -> Answer:
    """Returns the answer to an admission review: decodes it, decides on it and encodes the verdict.

    Args:
        route: the webhook that the API server called: `mutate`, `validate` or `account`.
        body: the AdmissionReview as JSON.
        knowledge: the webhook's knowledge of the cluster, by which it decides.
        settings: the webhook's settings.
        now: the present time, in seconds of the monotonic clock.

    Raises:
        ReviewError: the body is not a review that can be answered.
        UnicodeDecodeError, msgspec.DecodeError: a container's environment or command line is not in UTF-8, or has a
            number that is out of range.
    """
    subject = decode(body)
    verdict = judge(route, subject, knowledge, settings, now)
    return Answer(subject, verdict, encode(subject.uid, verdict))


def decode(body: bytes) -> Subject:
    """Returns the request of an AdmissionReview.

    Args:
        body: the AdmissionReview in JSON.

    Raises:
        ReviewError: the body is not JSON, not an AdmissionReview of v1, or has no request with a uid.
    """
    return read(parse(body), len(body))


def parse(body: bytes) -> Any:
    """Returns the parsed JSON of an AdmissionReview, without the fields that admission does not read.

    If a value has another type than in the Kubernetes API, no field is left out.

    Raises:
        ReviewError: the body is not JSON.
    """
    try:
        return DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # a value of another type, or no JSON at all: the whole document decides
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReviewError(f"the body is no JSON: {error}") from error


def read(document: Any, size: int = 0) -> Subject:
    """Returns the request of a parsed AdmissionReview.

    Args:
        document: the AdmissionReview, as JSON.
        size: the bytes of its JSON; 0 if it is unknown.

    Raises:
        ReviewError: the document is not an AdmissionReview of v1, or has no request with a uid.
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
    """Returns the mutating webhook's verdict on a pod or a new order; all other objects stay as they are.

    Args:
        subject: the request of the admission review.
        knowledge: budgets, namespaces and priority classes as last observed.
        settings: the webhook's settings.
        now: the present time, in seconds of the monotonic clock.
    """
    if subject.sub_resource:
        return UNTOUCHED
    if subject.kind in _ORDERS and subject.operation == "CREATE":
        return _sign_order(subject)
    if subject.kind != "Pod":
        return UNTOUCHED
    if subject.operation == "CREATE":
        return admit_new(subject, knowledge, settings, now)
    if subject.operation == "UPDATE":
        return admit_update(subject, settings)
    return UNTOUCHED


def judge(route: str, subject: Subject, knowledge: Knowledge, settings: Webhook, now: float) -> Verdict:
    """Returns the verdict on a request of an admission review.

    The API server chooses the route according to the label `fairgpu.io/mode` of the pod's namespace. So a change of the
    label counts at once, without a watch in this process. Policies read the same label.

    Args:
        route: the webhook that the API server called: `mutate`, `validate` or `account`.
        subject: the request of the admission review.
        knowledge: budgets, namespaces and priority classes as last observed.
        settings: the webhook's settings.
        now: the present time, in seconds of the monotonic clock.
    """
    if route == MUTATE:
        return mutate(subject, knowledge, settings, now)
    if route == ACCOUNT:
        accounts = subject.kind == "Pod" and subject.operation == "CREATE" and not subject.sub_resource
        return admit_accounted(subject, knowledge, settings, now) if accounts else UNTOUCHED
    return validate(subject, knowledge, settings)


def encode(uid: str, verdict: Verdict) -> bytes:
    """Returns a verdict as an AdmissionReview in JSON; a patch is in it only if the object is admitted with changes.

    Args:
        uid: the uid of the review's request.
        verdict: the decision on the request.
    """
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
        # msgspec writes bytes as a JSON string in base64, in two thirds of the time that binascii takes.
        response["patch"] = orjson.Fragment(msgspec.json.encode(orjson.dumps(verdict.operations)))
    if verdict.warnings:
        response["warnings"] = verdict.warnings
    if verdict.audit:
        response["auditAnnotations"] = verdict.audit
    return orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _sign_order(subject: Subject) -> Verdict:
    """Returns the verdict on a new order, which adds the name of the user that creates the order as `requestedBy`.

    An order that has a `requestedBy` already stays as it is; the policy fairgpu-orders checks that name.
    """
    spec = subject.item.get("spec")
    if not isinstance(spec, dict) or spec.get("requestedBy") or not subject.user:
        return UNTOUCHED
    return Verdict(operations=(add("/spec/requestedBy", subject.user[:_LONGEST_NAME]),))


def _text(parent: dict[str, Any], key: str) -> str:
    value = parent.get(key)
    return value if isinstance(value, str) else ""
