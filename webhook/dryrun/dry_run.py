"""Runs manifests through admission without a cluster.

A dry run makes the reviews that an API server would send, has them answered, and returns the outcome of each manifest.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import jsonpatch
import orjson

from fairgpu.faults import explain
from webhook.admission.review import ACCOUNT, MUTATE
from webhook.admission.verdict import Subject
from webhook.dryrun.manifests import Manifest
from webhook.dryrun.schema import faults_of_policy, misshapen, misshapen_spec, resources_of_others, wrong_kind
from webhook.dryrun.templates import Template, gpus_elsewhere, is_custom, is_workload, templates_of

REVIEWED_TEMPLATES: Final = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob")
"""The kinds of built-in workloads whose templates the API server sends, by the rules of the webhook's configuration."""
REVIEWED_JOBS: Final = (
    ("jobset.x-k8s.io", "JobSet"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    ("kubeflow.org", "PyTorchJob"),
    ("kubeflow.org", "MPIJob"),
)
"""The custom resources that the API server sends, by group and kind."""

_NUMBER = re.compile(r"[0-9]+\. ")

Review = Callable[[str, bytes], bytes]
"""A function that answers a review: from its route, such as `mutate`, and its body to the answer's body. It raises
DryRunError if there is no answer."""


def accounted(review: Review) -> Review:
    """Returns a function that answers reviews as the webhooks do for a namespace in the mode `account`.

    In such a namespace one webhook reviews new pods. No webhook reviews pod templates, or new pods a second time.

    Args:
        review: answers a review: takes the route and the review's body, and returns the answer's body.
    """

    def asked(route: str, body: bytes) -> bytes:
        return review(ACCOUNT, body) if route == MUTATE else _ALLOWED

    return asked


_ALLOWED: Final = b'{"response": {"allowed": true}}'


class DryRunError(RuntimeError):
    """The webhook gave no answer to a review of a dry run; the message says why."""


class Outcome(StrEnum):
    """The outcome of a dry run for an object, or for the pods made from one of its templates.

    Attributes:
        UNCONCERNED: the object has no pods that a dry run can find.
        UNTOUCHED: the pods would be admitted as they are.
        CHANGED: the pods would be admitted with changes.
        REFUSED: the pods, or the object itself, would be refused.
        UNDECIDED: the outcome is known only once the pods are created.
    """

    UNCONCERNED = "unconcerned"
    UNTOUCHED = "untouched"
    CHANGED = "changed"
    REFUSED = "refused"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run for one manifest, or for the pods made from one of its templates.

    Attributes:
        manifest: the manifest.
        namespace: the namespace in which the object would be created.
        outcome: the outcome of the object, or of its pods.
        before: the pod as its author wrote it, as JSON; the object, if the result is for the object as a whole.
        after: the pod as it would be stored, as JSON; `before` if it would not be changed.
        operations: the JSON Patch operations that change `before` to `after`.
        warnings: the warnings that kubectl would show.
        message: the reason why the object or its pods would be refused or left as they are, or why the outcome is
            unknown.
        template: the field path of the template that the pods are made from; empty for a Pod, and for an object as a
            whole.
        admitted: true if the result is for the pods of a template, whose object itself is admitted. False for a Pod
            and for an object as a whole, even if these are admitted.
        warned: if the pods of an admitted object would be refused, whether the object's review gave warnings, which
            kubectl shows when the object is applied; `message` is usually among them. Else False.
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
    admitted: bool = False
    warned: bool = False


def dry_run(
    manifest: Manifest, namespace: str, user: str, review: Review, left_alone: Container[str] = ()
) -> list[DryRun]:
    """Reviews the creation of a manifest's object, and of the pods made from each of its templates.

    Args:
        manifest: the manifest of the object.
        namespace: the namespace of a manifest that names none.
        user: the name of the user that creates the object.
        review: answers a review: takes the route and the review's body, and returns the answer's body.
        left_alone: the namespaces of which the API server sends no reviews, by the configurations' namespaceSelector.

    Returns:
        A result for each template that `templates_of` returns. A result for the object as a whole is the only one if
        the object is refused or has no template, and the last one if it asks for a GPU outside its templates.

    Raises:
        DryRunError: the webhook gave no answer.
    """
    request = _Request(manifest, manifest.namespace or namespace, user, review, left_alone)
    wrong = wrong_kind(manifest)
    if wrong:
        return [request.refused(explain(wrong))]
    templates = templates_of(manifest)
    results = [_judge(request, template) for template in templates]
    if is_workload(manifest):
        return results
    as_a_whole = [result for result in results if result.outcome is Outcome.REFUSED and not result.template]
    if as_a_whole:
        return as_a_whole[:1]
    elsewhere = gpus_elsewhere(manifest, templates)
    if elsewhere is not None:
        resource, place = elsewhere
        message = f"asks for {resource} at {place}, in no template of pods; its pods are judged as they are created"
        return [*results, request.outcome(Outcome.UNDECIDED, message)]
    if results:
        return results
    message = "no template of pods in it; pods that it makes in another way are judged as they are created"
    return [request.outcome(Outcome.UNCONCERNED, message if is_custom(manifest) else "no pods in it, nothing to admit")]


@dataclass(frozen=True, slots=True)
class _Request:
    """The parts of a dry run's reviews that are the same for all pod templates of a manifest.

    Attributes:
        manifest: the manifest.
        namespace: the namespace in which the object would be created.
        user: the name of the user that creates the object.
        review: answers a review: takes the route and the review's body, and returns the answer's body.
        left_alone: the namespaces of which the API server sends no reviews.
    """

    manifest: Manifest
    namespace: str
    user: str
    review: Review
    left_alone: Container[str]

    def outcome(self, outcome: Outcome, message: str) -> DryRun:
        """Returns a result for the manifest's object as a whole, with the reason for the outcome as its message."""
        item = self.manifest.item
        return DryRun(self.manifest, self.namespace, outcome, item, item, [], self.manifest.repeated, message)

    def refused(self, message: str) -> DryRun:
        return self.outcome(Outcome.REFUSED, message)

    def ask(self, route: str, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        """Returns the webhook's response, as JSON, to a review of the creation of an object or a pod.

        Args:
            route: the webhook: `mutate`, `validate` or `account`.
            kind: the kind of the object, such as `Pod`.
            item: the object or the pod, as JSON.

        Raises:
            DryRunError: the webhook gave no answer.
        """
        return _ask(route, kind, item, self.namespace, self.user, self.review)


def _judge(request: _Request, template: Template) -> DryRun:
    manifest, pod = request.manifest, template.pod
    own = is_workload(manifest)
    faults = misshapen(manifest) if own else misshapen_spec(pod)
    if faults:
        message = explain(faults)
        return request.refused(message) if own else _pod_result(request, template, Outcome.REFUSED, message=message)
    if request.namespace in request.left_alone:
        message = f"in the namespace {request.namespace}, which FairGPU leaves alone"
        return _pod_result(request, template, Outcome.UNTOUCHED, message=message)
    of_object: list[str] = []
    if (manifest.kind in REVIEWED_TEMPLATES and own) or (manifest.group, manifest.kind) in REVIEWED_JOBS:
        answer = request.ask("validate", manifest.kind, manifest.item)
        if not answer["allowed"]:
            return request.refused(_message(answer))
        of_object = answer.get("warnings") or []
    mutated = request.ask("mutate", "Pod", pod)
    operations, after = _patched(pod, mutated.get("patch") or "W10=")
    warnings = [*(mutated.get("warnings") or [])]
    refusal = mutated if not mutated["allowed"] else None
    if refusal is None:
        validated = request.ask("validate", "Pod", after)
        warnings += validated.get("warnings") or []
        refusal = validated if not validated["allowed"] else None
    message = explain(faults_of_policy(after)) if refusal is None else _message(refusal)
    if message:
        refused = _pod_result(request, template, Outcome.REFUSED, message=message)
        return replace(refused, warned=bool(of_object))
    if operations:
        distinct = tuple(dict.fromkeys(warnings))
        result = _pod_result(request, template, Outcome.CHANGED, after=after, operations=operations, warnings=distinct)
        # No review of a pod says how many of them the object makes.
        of_template = [line for line in of_object if line.startswith(f"{template.place}:")]
        return replace(result, warnings=(*result.warnings, *of_template))
    return _pod_result(request, template, Outcome.UNTOUCHED, warnings=tuple(warnings), message=_untouched(pod))


def _pod_result(  # noqa: PLR0913 - the fields of a value
    request: _Request,
    template: Template,
    outcome: Outcome,
    *,
    after: dict[str, Any] | None = None,
    operations: list[dict[str, Any]] | None = None,
    warnings: tuple[str, ...] = (),
    message: str = "",
) -> DryRun:
    """Returns a dry run's result for a template's pods, whose texts name fields by their paths in the manifest.

    Args:
        request: the parts of the dry run that are the same for all templates of the manifest.
        template: the template from which the pods are made.
        outcome: the outcome for the pods.
        after: the pod as it would be stored, as JSON; None if it would not be changed.
        operations: the JSON Patch operations that change the pod; None for none.
        warnings: the warnings, which name fields by their paths in the pod.
        message: the reason for the outcome, which names fields by their paths in the pod; empty for none.
    """
    return DryRun(
        manifest=request.manifest,
        namespace=request.namespace,
        outcome=outcome,
        before=template.pod,
        after=template.pod if after is None else after,
        operations=operations or [],
        warnings=(*request.manifest.repeated, *(_in_object(warning, template) for warning in warnings)),
        message="\n".join(_in_object(line, template) for line in message.splitlines()),
        template=template.place,
        admitted=bool(template.place),
    )


def _in_object(line: str, template: Template) -> str:
    """Returns a line about a pod, in which the field path at its beginning is that in the object with the template.

    A line that begins with no field path of the pod is returned unchanged.

    Args:
        line: the line, which names a field by its path in the pod.
        template: the template from which the pod is made.
    """
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


def review_body(subject: Subject) -> bytes:
    """Returns the AdmissionReview of a request, in JSON, as the API server would send it in a dry run."""
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
                "dryRun": True,
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
        raise DryRunError(f"the webhook's answer is no AdmissionReview: {error!r}") from error
    if not isinstance(response, dict) or "allowed" not in response:
        raise DryRunError("the webhook's answer has no verdict")
    return response


def _patched(pod: dict[str, Any], encoded: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the JSON Patch operations that an answer has in base64 (`encoded`), and the pod after them.

    Raises:
        DryRunError: the text is no patch, or does not fit the pod.
    """
    try:
        operations = orjson.loads(base64.b64decode(encoded))
        return operations, jsonpatch.apply_patch(pod, operations)
    except (ValueError, TypeError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise DryRunError(f"the webhook's answer has no patch that fits: {error!r}") from error


def _message(response: dict[str, Any]) -> str:
    return str((response.get("status") or {}).get("message") or "refused without a reason")
