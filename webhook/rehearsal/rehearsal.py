"""What would happen to manifests: the reviews that the API server would ask for, and what comes of them."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import jsonpatch
import orjson

from fairgpu.faults import explain
from fairgpu.names import SYSTEM_NAMESPACE
from webhook.admission.verdict import Subject
from webhook.rehearsal.manifests import Manifest
from webhook.rehearsal.shape import misshapen, misshapen_spec, resources_of_others, wrong_kind
from webhook.rehearsal.templates import Template, gpus_elsewhere, is_custom, is_workload, templates_of

EXEMPT_NAMESPACES: Final = ("kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE)
"""Namespaces of which the API server sends the webhook nothing: the namespaceSelector of its configurations."""
REVIEWED_TEMPLATES: Final = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
"""Kinds whose templates the API server sends: the rules of its configuration."""

_NUMBER = re.compile(r"[0-9]+\. ")

Review = Callable[[str, bytes], bytes]
"""Answers a review: the route, `mutate` or `validate`, and the body. Raises RehearsalError."""


class RehearsalError(RuntimeError):
    """The webhook that was asked gave no answer; the message says why."""


class Outcome(StrEnum):
    """The outcome of an object, or of the pods made from one of its templates."""

    UNCONCERNED = "unconcerned"
    UNTOUCHED = "untouched"
    CHANGED = "changed"
    REFUSED = "refused"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would happen to one manifest, or to the pods of one of its templates.

    Attributes:
        manifest: the manifest.
        namespace: where it would be created.
        outcome: what becomes of it, or of the pods made from it.
        before: the pod as its author wants it.
        after: the pod as it would be stored.
        operations: the JSON Patch between the two.
        warnings: what kubectl would show.
        message: why it would be refused, left as it is, or cannot be told.
        template: the field path of the template that the pods are made from; empty for a Pod.
        let_in: whether the object itself is let in, whatever comes of its pods.
        warned: whether whoever applies the object is warned of that.
    """

    manifest: Manifest
    namespace: str
    outcome: Outcome
    before: dict[str, Any]
    after: dict[str, Any]
    operations: list[dict[str, Any]]
    warnings: tuple[str, ...] = ()
    message: str = ""
    template: str = ""
    let_in: bool = False
    warned: bool = False


def rehearse(manifest: Manifest, namespace: str, user: str, review: Review) -> list[Rehearsal]:
    """Asks for the reviews of creating a manifest, and of the pods made from each of its templates.

    Raises:
        RehearsalError: the webhook gave no answer.
    """
    asking = _Asking(manifest, manifest.namespace or namespace, user, review)
    wrong = wrong_kind(manifest)
    if wrong:
        return [asking.refused(explain(wrong))]
    templates = templates_of(manifest)
    found = [_judge(asking, template) for template in templates]
    if is_workload(manifest):
        return found
    elsewhere = gpus_elsewhere(manifest, templates)
    if elsewhere is not None:
        resource, place = elsewhere
        message = f"asks for {resource} at {place}, in no template of pods; its pods are judged as they are created"
        return [*found, asking.outcome(Outcome.UNDECIDED, message)]
    if found:
        return found
    message = "no template of pods in it; pods that it makes in another way are judged as they are created"
    return [asking.outcome(Outcome.UNCONCERNED, message if is_custom(manifest) else "no pods in it, nothing to admit")]


@dataclass(frozen=True, slots=True)
class _Asking:
    """What is the same for all templates of a manifest."""

    manifest: Manifest
    namespace: str
    user: str
    review: Review

    def outcome(self, outcome: Outcome, message: str) -> Rehearsal:
        """What comes of the object as a whole."""
        item = self.manifest.item
        return Rehearsal(self.manifest, self.namespace, outcome, item, item, [], self.manifest.repeated, message)

    def refused(self, message: str) -> Rehearsal:
        """A refusal of the object as a whole."""
        return self.outcome(Outcome.REFUSED, message)

    def ask(self, route: str, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        """The response to the review of creating an object."""
        return _ask(route, kind, item, self.namespace, self.user, self.review)


def _judge(asking: _Asking, template: Template) -> Rehearsal:
    manifest, pod = asking.manifest, template.pod
    own = is_workload(manifest)
    faults = misshapen(manifest) if own else misshapen_spec(pod)
    if faults:
        message = explain(faults)
        return asking.refused(message) if own else _of_pods(asking, template, Outcome.REFUSED, message=message)
    if asking.namespace in EXEMPT_NAMESPACES:
        message = f"in the namespace {asking.namespace}, which FairGPU leaves alone"
        return _of_pods(asking, template, Outcome.UNTOUCHED, message=message)
    warned = False
    if manifest.kind in REVIEWED_TEMPLATES and own:
        answer = asking.ask("validate", manifest.kind, manifest.item)
        if not answer["allowed"]:
            return asking.refused(_message(answer))
        warned = bool(answer.get("warnings"))
    mutated = asking.ask("mutate", "Pod", pod)
    operations, after = _patched(pod, mutated.get("patch") or "W10=")
    warnings = [*(mutated.get("warnings") or [])]
    refusal = mutated if not mutated["allowed"] else None
    if refusal is None:
        validated = asking.ask("validate", "Pod", after)
        warnings += validated.get("warnings") or []
        refusal = validated if not validated["allowed"] else None
    if refusal is not None:
        refused = _of_pods(asking, template, Outcome.REFUSED, message=_message(refusal))
        return replace(refused, warned=warned)
    if operations:
        said = tuple(dict.fromkeys(warnings))
        return _of_pods(asking, template, Outcome.CHANGED, after=after, operations=operations, warnings=said)
    return _of_pods(asking, template, Outcome.UNTOUCHED, warnings=tuple(warnings), message=_untouched(pod))


def _of_pods(  # noqa: PLR0913 - the fields of a value
    asking: _Asking,
    template: Template,
    outcome: Outcome,
    *,
    after: dict[str, Any] | None = None,
    operations: list[dict[str, Any]] | None = None,
    warnings: tuple[str, ...] = (),
    message: str = "",
) -> Rehearsal:
    """What comes of a template's pods, said with the field paths of the object."""
    return Rehearsal(
        manifest=asking.manifest,
        namespace=asking.namespace,
        outcome=outcome,
        before=template.pod,
        after=template.pod if after is None else after,
        operations=operations or [],
        warnings=(*asking.manifest.repeated, *(_in_object(warning, template) for warning in warnings)),
        message="\n".join(_in_object(line, template) for line in message.splitlines()),
        template=template.place,
        let_in=bool(template.place),
    )


def _in_object(line: str, template: Template) -> str:
    """A line about a pod with the field path that it begins with, maybe after a number, as it is in the object."""
    numbered = _NUMBER.match(line)
    start = numbered.end() if numbered else 0
    number, path = line[:start], line[start:]
    for part, place in template.parts:
        if path.startswith(part) and path[len(part) : len(part) + 1] in (".", "[", ":"):
            return f"{number}{place}{path[len(part) :]}"
    return line


def _untouched(pod: dict[str, Any]) -> str:
    left = resources_of_others(pod)
    if not left:
        return "asks for no GPU, and stays as it is"
    return f"asks for no GPU that FairGPU shares, and stays as it is; left to others: {', '.join(left)}"


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
