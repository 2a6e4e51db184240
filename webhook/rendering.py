"""`fairgpu render`: writes the settings into the policies, webhook rules and role bindings that depend on them.

These objects cannot read settings, and CEL cannot use patterns that are known only at run time. So the settings are
written into the objects. The webhook compares the objects in the cluster with the objects that its own settings would
make, and the policies that depend on no setting with their manifests. It publishes the result in a metric and in a
condition of each policy.
"""

from __future__ import annotations

import datetime as dt
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from string import Template
from typing import Final

import structlog
import yaml

from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.dialects import hami, kai
from fairgpu.dialects.registry import FOREIGN
from fairgpu.dialects.selectors import MODEL_ANNOTATION
from fairgpu.existing import RESERVATIONS
from fairgpu.json_values import mapping, mappings
from fairgpu.keeping import Wait
from fairgpu.names import COMPONENT_POLICIES, POLICIES, RENDERED_CONDITION
from webhook.settings import Webhook

_log = structlog.get_logger(__name__)

MANIFESTS: Final = {
    "mutating": "webhook/mutating.yaml",
    "validating": "webhook/validating.yaml",
    "spec": "policies/spec.yaml",
    "metadata": "policies/metadata.yaml",
    "binding": "policies/binding.yaml",
    "asking": "policies/asking.yaml",
    "timekeeper": "policies/timekeeper.yaml",
    "namespace": "policies/namespace.yaml",
    "pod-status-writers": "access/pod-status-writers.yaml",
}
"""The names of the templates into which settings are written. Each has the file, relative to deploy/base, that holds
the result for the default settings."""
FIXED: Final = {
    "bindrequests": "policies/bindrequests.yaml",
    "claims": "policies/claims.yaml",
    "deletion": "policies/deletion.yaml",
    "eviction": "policies/eviction.yaml",
    "orders": "policies/orders.yaml",
    "nodeagent": "../nodes/policy.yaml",
    "preemption": "../preemption/policy.yaml",
}
"""The names of the manifests into which no setting is written, and the file of each, relative to deploy/base."""
_FOLDER: Final = resources.files("webhook") / "manifests"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_WRITERS: Final = "fairgpu-pod-status-writers"
_IN_THE_SYSTEM: Final = "fairgpu-timekeeper-in-the-system"
"""The second binding of the policy fairgpu-timekeeper."""
IN_FORCE: Final = {
    ("MutatingWebhookConfiguration", "zz-fairgpu"): f"{_ADMISSION}/mutatingwebhookconfigurations/zz-fairgpu",
    ("ValidatingWebhookConfiguration", "zz-fairgpu"): f"{_ADMISSION}/validatingwebhookconfigurations/zz-fairgpu",
    **{
        ("ValidatingAdmissionPolicy", name): f"{_ADMISSION}/validatingadmissionpolicies/{name}"
        for name in (*POLICIES, *COMPONENT_POLICIES)
    },
    **{
        ("ValidatingAdmissionPolicyBinding", name): f"{_ADMISSION}/validatingadmissionpolicybindings/{name}"
        for name in (*POLICIES, _IN_THE_SYSTEM, *COMPONENT_POLICIES)
    },
    ("ClusterRoleBinding", _WRITERS): f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{_WRITERS}",
}
"""The API paths of the objects that the webhook compares with those that it knows, keyed by kind and name."""
CHECK_SECONDS: Final = 300.0
_AS_RENDERED: Final = "Policies, webhook rules and role bindings are those of the webhook's version and settings."
_DIFFERS: Final = (
    "not those of the webhook's version and settings; after a change of settings write them with `fairgpu render`, "
    "then apply your overlay"
)
_IMAGE: Final = "sidecarRepository"
"""The variable of fairgpu-spec in which an overlay writes the sidecar's image."""
_LITERAL: Final = re.compile(r"'[^'\\]*'")
"""An image written as a literal name, which is not compared: a wrong name refuses all GPU pods, and is noticed. Any
other expression is compared, since its value could depend on the caller."""
_OF_THE_CLUSTER: Final = frozenset({"caBundle", "port"})
"""The fields of a webhook's address that the CA's rotation or an overlay writes; they are not compared."""
_BY_DEFAULT: Final = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "reinvocationPolicy": "Never",
    "scope": "*",
    "timeoutSeconds": 10,
}
"""The values that the API server writes into fields that a manifest leaves out
(https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/)."""
_WIDTH: Final = 120
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


def render(settings: Webhook) -> dict[str, str]:
    """Returns the policies, webhook rules and role bindings of an installation with these settings, as YAML.

    The texts are keyed by the names in MANIFESTS and FIXED. Each has the comments of its file in deploy.
    """
    values = _values(settings)
    fixed = {name: (_FOLDER / f"{name}.yaml").read_text() for name in FIXED}
    return {name: Template((_FOLDER / f"{name}.yaml").read_text()).substitute(values) for name in MANIFESTS} | fixed


def as_patches(settings: Webhook) -> str:
    """Returns the policies, webhook rules and role bindings that follow from the settings, as patches for an overlay.

    The text is one YAML file, for an overlay over deploy/base.
    """
    rendered = render(settings)
    documents = [document for name in MANIFESTS for document in yaml.safe_load_all(rendered[name])]
    head = "# Written by `fairgpu render` from the settings beside it: patches over deploy/base.\n"
    return head + yaml.safe_dump_all(documents, sort_keys=False, width=_WIDTH)


def differences(settings: Webhook, read: Callable[[str], Json | None]) -> tuple[str, ...]:
    """Returns the names of the objects that are missing in the cluster or differ from what the settings would write.

    A name has the form `validatingadmissionpolicies/fairgpu-spec`. Fields are compared with the API server's defaults
    filled in. The sidecar's image, the webhook's port and its CA are not compared, since overlays and other processes
    write them. Labels and annotations are not compared either. An object of COMPONENT_POLICIES that is missing together
    with its binding does not differ.

    Args:
        settings: the webhook's settings.
        read: returns the object at a path of the API; None if there is none.
    """
    wanted = _wanted(settings)
    live = {which: read(path) for which, path in IN_FORCE.items()}
    installed = {name for (_, name), document in live.items() if document is not None}
    absent = frozenset(COMPONENT_POLICIES) - installed
    return tuple(
        "/".join(path.rsplit("/", 2)[1:])
        for (kind, name), path in IN_FORCE.items()
        if name not in absent
        and ((document := live[kind, name]) is None or _decisive(kind, document) != wanted[kind, name])
    )


@cache
def _wanted(settings: Webhook) -> dict[tuple[str, str], Json]:
    """Returns the objects of IN_FORCE as `render` makes them, in the form in which `_decisive` compares objects.

    The key of an object is its kind and its name.
    """
    documents = [document for text in render(settings).values() for document in yaml.safe_load_all(text)]
    keyed = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    return {(kind, name): _decisive(kind, keyed[kind, name]) for kind, name in IN_FORCE}


def follow_differences(
    settings: Webhook,
    api: KubernetesAPI,
    publish: Callable[[int], None],
    wait: Wait,
    now: Callable[[], dt.datetime],
) -> None:
    """Compares the cluster's policies, webhook rules and role bindings with the settings every CHECK_SECONDS.

    Each time, it writes the names of the objects that differ into a condition of each policy. If an object cannot be
    read, nothing is published or written. The function returns once `wait` returns true.

    Args:
        settings: the webhook's settings.
        api: the API server.
        publish: takes the number of objects that differ, for a metric.
        wait: sleeps the given seconds, and returns whether the process ends.
        now: returns the present time, with a time zone.
    """

    def read(path: str) -> Json | None:
        try:
            return api.get(path)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    while True:
        try:
            live = {path: read(path) for path in IN_FORCE.values()}
            differing = differences(settings, live.get)
            publish(len(differing))
            if differing:
                instead = "fairgpu render, then apply your overlay"
                _log.warning("rendered objects differ from the settings", objects=differing, instead=instead)
        except ApiError as error:
            _log.warning("rendered objects not read", error=str(error))
        else:
            _write_conditions(api, live, differing, now())
        if wait(CHECK_SECONDS):
            return


def _write_conditions(
    api: KubernetesAPI, live: Mapping[str, Json | None], differing: Sequence[str], now: dt.datetime
) -> None:
    for (kind, _), path in IN_FORCE.items():
        status = changed_status(live[path], differing, now) if kind == "ValidatingAdmissionPolicy" else None
        try:
            if status is not None:
                api.patch(f"{path}/status", {"status": status})
        except ApiError as error:
            _log.warning("condition of a policy not written", policy=path, error=str(error))


def changed_status(policy: Json | None, differing: Sequence[str], now: dt.datetime) -> Json | None:
    """Returns a policy's new conditions, as the status to patch; one names the objects that differ from the settings.

    Returns None if there is no policy, or if that condition need not change. Other conditions stay as they are.

    Args:
        policy: the ValidatingAdmissionPolicy in the cluster, as JSON; None if there is none.
        differing: the names of the objects that differ; empty for none.
        now: the time at which the condition changes, with a time zone.
    """
    if policy is None:
        return None
    wanted = {"type": RENDERED_CONDITION, "status": "True", "reason": "AsRendered", "message": _AS_RENDERED}
    if differing:
        wanted |= {"status": "False", "reason": "Differs", "message": f"{', '.join(differing)}: {_DIFFERS}"}
    conditions = mappings(mapping(policy.get("status")).get("conditions"))
    known = next((one for one in conditions if one.get("type") == RENDERED_CONDITION), {})
    if all(known.get(key) == value for key, value in wanted.items()):
        return None
    same = known.get("status") == wanted["status"]
    changed = known["lastTransitionTime"] if same else now.strftime("%Y-%m-%dT%H:%M:%SZ")
    others = [one for one in conditions if one.get("type") != RENDERED_CONDITION]
    return {"conditions": [*others, {**wanted, "lastTransitionTime": changed}]}


def _decisive(kind: str, document: Json) -> Json:
    """Returns the parts of an object that decide what it does, in a form in which equal objects compare as equal.

    These are the spec of a policy or its binding, the rules of a webhook configuration, and a role binding's role and
    subjects.
    """
    if kind == "ClusterRoleBinding":
        subjects = mappings(document.get("subjects"))
        named = sorted([str(one.get(key)) for key in ("kind", "namespace", "name")] for one in subjects)
        return {"role": _plain(document.get("roleRef")), "subjects": named}
    return {key: _plain(document.get(key)) for key in ("spec", "webhooks")}


def _plain(value: object) -> object:
    """Returns a part of an object in a form in which equal parts compare as equal.

    Defaults, empty fields and white space in expressions are left out, and lists of named items are keyed by name.
    """
    if isinstance(value, dict):
        left = {key: _plain(each) for key, each in value.items() if key not in _OF_THE_CLUSTER}
        if left.get("name") == _IMAGE and _LITERAL.fullmatch(str(left.get("expression"))):
            del left["expression"]
        return {key: each for key, each in left.items() if each not in (None, {}, []) and _BY_DEFAULT.get(key) != each}
    if isinstance(value, list):
        plain = [_plain(each) for each in value]
        names = [each["name"] for each in plain if isinstance(each, dict) and "name" in each]
        return dict(zip(names, plain, strict=True)) if plain and len(names) == len(plain) else plain
    return " ".join(value.split()) if isinstance(value, str) else value


def _values(settings: Webhook) -> dict[str, str]:
    existing, priorities = settings.existing, settings.priorities
    accounts = settings.mode == "account"
    leaves = settings.dialects.hami_plain_gpu == "leave"
    left = {hami.COUNT} if leaves else set()
    # With this annotation the resource is a request all the same. A pod that has it and asks for no GPU is sent, too.
    sent = FOREIGN.requesting_annotations | ({MODEL_ANNOTATION} if leaves else set())
    deciding = (*existing.annotations, *existing.schedulers_annotations)
    stack = sorted(existing.names.resources)
    return {
        "dialect_resources": _listed(sorted(FOREIGN.resources - left), 14),
        "dialect_annotations": _listed(sorted(FOREIGN.requesting_annotations), 10),
        "sent_annotations": _listed(sorted(sent), 10),
        "stack_resources": _listed(stack, 14),
        "stack_annotations": _listed(existing.annotations, 10),
        "of_container": kai.OF_CONTAINER,
        "own_memory": _listed((kai.MEMORY_REQUEST, kai.MEMORY_LIMITED), 10),
        "stack_prefixes": "".join(f" || k.startsWith('{prefix}')" for prefix in existing.prefixes),
        "deciding_annotations": _listed(sorted(deciding), 8),
        "schedulers_annotations": _listed(sorted(existing.schedulers_annotations), 8),
        "may_decide": _may_decide(existing.writers),
        "writers": _listed(existing.writers, 8),
        "who_decides": "an account in existing.writers"
        if existing.writers
        else 'an account that may "update podstatuses.fairgpu.io" in the whole cluster',
        "account_comparison": "!= 'share'" if accounts else "== 'account'",
        "other_mode": "share" if accounts else "account",
        "share_operator": "In" if accounts else "NotIn",
        "account_operator": "NotIn" if accounts else "In",
        "left_alone": f"[{', '.join(existing.unseen_namespaces)}]",
        "unpaid_namespaces": _listed(dict.fromkeys((*existing.unseen_namespaces, *RESERVATIONS)), 8),
        "priority_classes": _listed((priorities.in_budget_class, priorities.over_budget_class, *priorities.keep), 8),
        "scheduler": settings.scheduler,
        "timekeepers_own": _expression("timekeepers_own", 10),
        "changed_fields": _expression("changed_fields", 8),
        "writers_subjects": "".join(f"  - {_subject(writer)}\n" for writer in existing.writers),
    }


def _may_decide(writers: Sequence[str]) -> str:
    if writers:
        return f"variables.caller in {_listed(writers, 8)}"
    return "variables.mayEndBills"


def _expression(name: str, indent: int) -> str:
    """Returns an expression in CEL that several policies have; its lines after the first begin with `indent` spaces."""
    return (_FOLDER / f"{name}.cel").read_text().rstrip().replace("\n", f"\n{' ' * indent}")


def _listed(given: Iterable[str], indent: int) -> str:
    """Returns a list of texts in CEL, wrapped; its lines after the first begin with `indent` spaces."""
    quoted = [f"'{name}'" for name in given]
    lines = textwrap.wrap(", ".join(quoted), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return f"[{(chr(10) + ' ' * indent).join(lines)}]"


def _subject(user: str) -> str:
    """Returns the entry of a role binding's `subjects` for a user or a service account, in YAML.

    Args:
        user: the user name; of a service account, `system:serviceaccount:NAMESPACE:NAME`.
    """
    namespace, _, account = user.removeprefix(_SERVICE_ACCOUNT).partition(":")
    if user.startswith(_SERVICE_ACCOUNT) and account:
        return f"{{kind: ServiceAccount, name: {account}, namespace: {namespace}}}"
    return f'{{kind: User, name: "{user}", apiGroup: rbac.authorization.k8s.io}}'
