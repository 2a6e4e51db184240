"""`fairgpu render` writes the manifests of deploy/ with their settings; each setting changes its own place there."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.dialects import kai
from fairgpu.existing import RESERVATIONS, Existing
from tests.unit.deploy.test_manifests import quoted
from webhook.rendering import FIXED, IN_FORCE, MANIFESTS, as_patches, changed_status, differences, render
from webhook.settings import Dialects, Priorities, Webhook, read_settings

DEPLOY = Path(__file__).parents[3] / "deploy"
ACCOUNT = DEPLOY / "overlays" / "account"
Rendered = dict[tuple[str, str], Any]


@cache
def of_the_settings(settings: Webhook) -> Rendered:
    documents = [document for text in render(settings).values() for document in yaml.safe_load_all(text)]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def variables(settings: Webhook, policy: str) -> dict[str, str]:
    spec = of_the_settings(settings)["ValidatingAdmissionPolicy", policy]["spec"]
    return {variable["name"]: variable["expression"] for variable in spec["variables"]}


def webhooks(settings: Webhook) -> dict[str, Any]:
    rendered = of_the_settings(settings)
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return {webhook["name"]: webhook for kind in kinds for webhook in rendered[kind, "zz-fairgpu"]["webhooks"]}


def modes(settings: Webhook) -> dict[str, tuple[str, list[str]]]:
    """Each webhook that asks for the mode of a namespace, with the operator and the values."""
    return {
        name: (row["operator"], row["values"])
        for name, webhook in webhooks(settings).items()
        for row in webhook.get("namespaceSelector", {}).get("matchExpressions", [])
        if row["key"] == "fairgpu.io/mode"
    }


@pytest.mark.parametrize("name", [*MANIFESTS, *FIXED])
def test_the_base_is_what_the_default_settings_make(name: str) -> None:
    file = {**MANIFESTS, **FIXED}[name]
    assert (DEPLOY / "base" / file).read_text() == render(Webhook())[name], (
        f"deploy/base/{file} is made from webhook/manifests/{name}.yaml: change that one, and then "
        "python -m tests.support.base_manifests writes it"
    )


def test_the_overlay_is_what_its_settings_make() -> None:
    settings = read_settings({}, ACCOUNT / "settings.yaml")

    assert settings.mode == "account"
    assert (ACCOUNT / "rendered.yaml").read_text() == as_patches(settings), (
        "python -m tests.support.base_manifests writes it"
    )


def test_each_new_pod_goes_to_the_route_of_its_namespaces_mode_and_to_no_other() -> None:
    share, account = (
        ("mutate.fairgpu.io", "validate.fairgpu.io", "templates.fairgpu.io", "jobs.fairgpu.io"),
        ["account.fairgpu.io"],
    )
    by_default, the_other_way = modes(Webhook()), modes(Webhook(mode="account"))

    assert by_default == {**dict.fromkeys(share, ("NotIn", ["account"])), account[0]: ("In", ["account"])}
    assert the_other_way == {**dict.fromkeys(share, ("In", ["share"])), account[0]: ("NotIn", ["share"])}
    for policy in ("fairgpu-spec", "fairgpu-metadata", "fairgpu-binding"):
        assert variables(Webhook(), policy)["accounted"].endswith(".orValue('') == 'account'")
        assert variables(Webhook(mode="account"), policy)["accounted"].endswith(".orValue('') != 'share'")


def test_a_pod_of_another_stack_is_sent_and_guarded_by_the_same_names() -> None:
    existing = Existing(resources=("example.com/npu",), prefixes=("example.com/part-",), annotations=("npu-part",))
    settings = Webhook(mode="account").beside(existing)
    extended = {f"deviceclass.resource.kubernetes.io/{name}" for name in existing.device_classes}
    of_containers = {kai.OF_CONTAINER, kai.MEMORY_REQUEST, kai.MEMORY_LIMITED}
    names = {"example.com/npu", "example.com/part-", "npu-part", *extended}

    (condition,) = webhooks(settings)["account.fairgpu.io"]["matchConditions"]
    assert quoted(condition["expression"]) == {*names, *of_containers, "fairgpu.io/", "/"}
    assert quoted(variables(settings, "fairgpu-spec")["asksElsewhere"]) == {*names, *of_containers, "/"}
    assert quoted(variables(settings, "fairgpu-metadata")["asksElsewhere"]) == {*names, "/"}
    assert quoted(variables(settings, "fairgpu-metadata")["ofContainers"]) == of_containers
    assert of_containers <= quoted(variables(settings, "fairgpu-binding")["decisions"])
    for policy in ("fairgpu-metadata", "fairgpu-binding"):
        assert "npu-part" in quoted(variables(settings, policy)["deciding"])


def test_an_account_that_writes_what_a_pod_got_may_write_its_status_too() -> None:
    writers = ("system:serviceaccount:kube-system:hami-scheduler", "kai")
    settings = Webhook().beside(Existing(writers=writers))
    subjects = of_the_settings(settings)["ClusterRoleBinding", "fairgpu-pod-status-writers"]["subjects"]

    for policy in ("fairgpu-metadata", "fairgpu-binding"):
        assert variables(Webhook(), policy)["mayDecide"] == "variables.mayEndBills"
        assert variables(settings, policy)["mayDecide"] == (
            "variables.caller in ['system:serviceaccount:kube-system:hami-scheduler', 'kai']"
        )
    assert subjects[-2:] == [
        {"kind": "ServiceAccount", "name": "hami-scheduler", "namespace": "kube-system"},
        {"kind": "User", "name": "kai", "apiGroup": "rbac.authorization.k8s.io"},
    ]


def test_settings_of_the_mode_share_reach_the_policies_as_well() -> None:
    settings = Webhook(
        priorities=Priorities(keep=("research-urgent",)),
        dialects=Dialects(hami_plain_gpu="leave"),
        scheduler="own-scheduler",
    )
    spec = variables(settings, "fairgpu-spec")
    (condition,) = webhooks(settings)["mutate.fairgpu.io"]["matchConditions"]

    assert "research-urgent" in quoted(spec["priorityClasses"])
    assert "nvidia.com/gpu" not in quoted(spec["dialectResources"]) | quoted(condition["expression"])
    assert "'own-scheduler'" in spec["faults"]


@pytest.mark.parametrize("plain_gpu", ["whole", "leave"])
def test_a_pod_that_names_the_model_of_its_gpus_is_sent_whoever_gets_pods_that_do_not(plain_gpu: str) -> None:
    """By the annotation, nvidia.com/gpu is FairGPU's also where that resource alone is another plugin's."""
    settings = Webhook.model_validate({"dialects": {"hami_plain_gpu": plain_gpu}})
    sending = {
        name: quoted(webhooks(settings)[name]["matchConditions"][0]["expression"])
        for name in (
            "mutate.fairgpu.io",
            "mutate-update.fairgpu.io",
            "validate.fairgpu.io",
            "validate-update.fairgpu.io",
            "templates.fairgpu.io",
        )
    }
    by_resource = [name for name, texts in sending.items() if "nvidia.com/gpu" in texts]
    by_annotation = [name for name, texts in sending.items() if "nvidia-gpu-scheduler/gpu.model" in texts]

    assert (by_resource, by_annotation) == ((list(sending), []) if plain_gpu == "whole" else ([], list(sending)))
    assert "nvidia-gpu-scheduler/gpu.model" not in quoted(variables(settings, "fairgpu-spec")["dialectAnnotations"])


def test_namespaces_that_are_left_alone_reach_no_webhook_and_no_demand_on_new_pods() -> None:
    settings = Webhook().beside(Existing(left_alone=("operators",)))
    binding = of_the_settings(settings)["ValidatingAdmissionPolicyBinding", "fairgpu-spec"]
    selectors = [binding["spec"]["matchResources"]["namespaceSelector"]]
    selectors += [webhook["namespaceSelector"] for name, webhook in webhooks(settings).items() if "orders" not in name]

    left_alone = ["kube-system", "kube-public", "kube-node-lease", "fairgpu-system", "operators"]
    for selector in selectors:
        assert selector["matchExpressions"][0]["values"] == left_alone
    of_namespaces = of_the_settings(settings)["ValidatingAdmissionPolicy", "fairgpu-namespace"]["spec"]["validations"]
    (by_name,) = [row["expression"] for row in of_namespaces if "metadata.name" in row["expression"]]
    assert quoted(by_name) >= {*left_alone, *RESERVATIONS}  # in these, pods cost nothing


def in_force(settings: Webhook, without: str = "") -> dict[str, Any]:
    """The objects that a cluster has whose admin rendered these settings, by their paths."""
    rendered = of_the_settings(settings)
    return {path: rendered[which] for which, path in IN_FORCE.items() if without not in path or not without}


def test_the_webhook_finds_what_is_not_as_its_settings_make_it() -> None:
    account = Webhook(mode="account")
    assert differences(account, in_force(account).get) == ()
    assert set(differences(account, in_force(Webhook()).get)) == {
        "mutatingwebhookconfigurations/zz-fairgpu",
        "validatingwebhookconfigurations/zz-fairgpu",
        "validatingadmissionpolicies/fairgpu-spec",
        "validatingadmissionpolicies/fairgpu-metadata",
        "validatingadmissionpolicies/fairgpu-binding",
        "validatingadmissionpolicybindings/fairgpu-asking",
        "validatingadmissionpolicybindings/fairgpu-timekeeper",
    }
    more = account.beside(Existing(resources=("example.com/npu",)))
    assert "validatingadmissionpolicies/fairgpu-spec" in differences(more, in_force(account).get)
    absent = differences(account, in_force(account, without="policies/fairgpu-spec").get)
    assert absent == ("validatingadmissionpolicies/fairgpu-spec",)


def test_it_finds_a_guard_that_is_not_in_force_and_writers_of_bills_that_the_settings_do_not_name() -> None:
    settings = Webhook().beside(Existing(writers=("kai",), left_alone=("operators",)))
    live = copy.deepcopy(in_force(settings))
    guard = live[IN_FORCE["ValidatingAdmissionPolicyBinding", "fairgpu-metadata"]]["spec"]
    guard["validationActions"] = ["Audit"]
    exempt = live[IN_FORCE["ValidatingAdmissionPolicyBinding", "fairgpu-spec"]]["spec"]["matchResources"]
    exempt["namespaceSelector"]["matchExpressions"][0]["values"].append("team-a")
    writers = live[IN_FORCE["ClusterRoleBinding", "fairgpu-pod-status-writers"]]
    writers["subjects"].reverse()
    bindings = ("validatingadmissionpolicybindings/fairgpu-spec", "validatingadmissionpolicybindings/fairgpu-metadata")

    assert differences(settings, live.get) == bindings
    writers["subjects"].append({"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"})
    assert differences(settings, live.get) == (*bindings, "clusterrolebindings/fairgpu-pod-status-writers")


POLICY, BINDING = ("ValidatingAdmissionPolicy", "fairgpu-spec"), ("ValidatingAdmissionPolicyBinding", "fairgpu-spec")
MUTATING, VALIDATING = (
    ("MutatingWebhookConfiguration", "zz-fairgpu"),
    ("ValidatingWebhookConfiguration", "zz-fairgpu"),
)
WRITERS = ("ClusterRoleBinding", "fairgpu-pod-status-writers")
ONE_TEAM = {"matchLabels": {"team": "a"}}
NO_PODS = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]}]
NEVER = [{"name": "never", "expression": "false"}]

IMAGE = list(variables(Webhook(), "fairgpu-spec")).index("sidecarRepository")

EDITS: dict[str, tuple[tuple[str, str], str, Any]] = {
    "a policy that lets through what it cannot judge": (POLICY, "spec.failurePolicy", "Ignore"),
    "a policy without its resources": (POLICY, "spec.matchConstraints.resourceRules.0.resources", ["pods/status"]),
    "a policy without an operation": (POLICY, "spec.matchConstraints.resourceRules.0.operations", ["UPDATE"]),
    "a policy of another group": (POLICY, "spec.matchConstraints.resourceRules.0.apiGroups", ["apps"]),
    "a policy of another version": (POLICY, "spec.matchConstraints.resourceRules.0.apiVersions", ["v2"]),
    "a policy for another scope": (POLICY, "spec.matchConstraints.resourceRules.0.scope", "Cluster"),
    "a policy for some names": (POLICY, "spec.matchConstraints.resourceRules.0.resourceNames", ["never"]),
    "a policy with an exclusion": (POLICY, "spec.matchConstraints.excludeResourceRules", NO_PODS),
    "a policy for some objects": (POLICY, "spec.matchConstraints.objectSelector", ONE_TEAM),
    "a policy for some namespaces": (POLICY, "spec.matchConstraints.namespaceSelector", ONE_TEAM),
    "a policy that sees one version": (POLICY, "spec.matchConstraints.matchPolicy", "Exact"),
    "a policy with a condition": (POLICY, "spec.matchConditions", NEVER),
    "a policy with parameters": (POLICY, "spec.paramKind", {"apiVersion": "v1", "kind": "ConfigMap"}),
    "a policy without demands": (POLICY, "spec.validations", [{"expression": "true"}]),
    "a demand that says something else": (POLICY, "spec.validations.0.messageExpression", "'ask mallory'"),
    "a policy whose variable says something else": (POLICY, "spec.variables.0.expression", "[]"),
    "a sidecar that depends on the caller": (
        POLICY,
        f"spec.variables.{IMAGE}.expression",
        "request.userInfo.username == 'mallory' ? 'example.org/none' : 'fairgpu.invalid/sidecar'",
    ),
    "a binding to another policy": (BINDING, "spec.policyName", "fairgpu-metadata"),
    "a binding that only records": (BINDING, "spec.validationActions", ["Audit"]),
    "a binding for some objects": (BINDING, "spec.matchResources.objectSelector", ONE_TEAM),
    "a binding for some labels": (BINDING, "spec.matchResources.namespaceSelector.matchLabels", {"team": "a"}),
    "a binding with an exclusion": (BINDING, "spec.matchResources.excludeResourceRules", NO_PODS),
    "a binding for some resources": (BINDING, "spec.matchResources.resourceRules", NO_PODS),
    "a binding that sees one version": (BINDING, "spec.matchResources.matchPolicy", "Exact"),
    "a binding with parameters": (BINDING, "spec.paramRef", {"name": "p", "parameterNotFoundAction": "Allow"}),
    **{
        f"{what} in the {which} webhook": (configuration, f"webhooks.0.{field}", value)
        for which, configuration in (("mutating", MUTATING), ("validating", VALIDATING))
        for what, field, value in (
            ("a failure that lets through", "failurePolicy", "Ignore"),
            ("no time", "timeoutSeconds", 1),
            ("the default time", "timeoutSeconds", 10),
            ("some objects", "objectSelector", ONE_TEAM),
            ("some labels", "namespaceSelector.matchLabels", {"team": "a"}),
            ("one version", "matchPolicy", "Exact"),
            ("another condition", "matchConditions.0.expression", "false"),
            ("one more condition", "matchConditions", NEVER),
            ("other operations", "rules.0.operations", ["DELETE"]),
            ("other resources", "rules.0.resources", ["pods/status"]),
            ("another scope", "rules.0.scope", "Cluster"),
            ("another path", "clientConfig.service.path", "/healthz"),
            ("another service", "clientConfig.service.name", "mallory"),
            ("another address", "clientConfig.url", "https://mallory.example.org"),
            ("another version of reviews", "admissionReviewVersions", ["v1beta1"]),
            ("side effects", "sideEffects", "NoneOnDryRun"),
        )
    },
    "a webhook that is called again": (MUTATING, "webhooks.0.reinvocationPolicy", "IfNeeded"),
    "the role of other rights": (WRITERS, "roleRef.name", "view"),
    "a writer's other namespace": (WRITERS, "subjects.0.namespace", "team-a"),
}


def edited(which: tuple[str, str], field: str, value: Any) -> dict[str, Any]:
    """The objects of a cluster, of which one has another value at a field; numbers in its path count in lists."""
    live = copy.deepcopy(in_force(Webhook()))
    inside: Any = live[IN_FORCE[which]]
    *path, last = [int(step) if step.isdecimal() else step for step in field.split(".")]
    for step in path:
        inside = inside.setdefault(step, {}) if isinstance(inside, dict) else inside[step]
    inside[last] = value
    return live


@pytest.mark.parametrize("edit", EDITS)
def test_each_field_that_is_changed_alone_is_named(edit: str) -> None:
    which, field, value = EDITS[edit]

    assert differences(Webhook(), edited(which, field, value).get) == ("/".join(IN_FORCE[which].split("/")[-2:]),)


def each_leaf(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields the path of each text, number and truth value inside a value."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from each_leaf(inner, (*path, key))
    else:
        yield path


def installed(settings: Webhook) -> dict[tuple[str, str], Any]:
    """Every policy, binding of one, webhook and role binding of a whole installation in a mode."""
    files = [
        *sorted((DEPLOY / "base").rglob("*.yaml")),
        DEPLOY / "nodes/policy.yaml",
        DEPLOY / "preemption/policy.yaml",
    ]
    files += [ACCOUNT / "rendered.yaml"] if settings.mode == "account" else []
    return {
        (document["kind"], document["metadata"]["name"]): document
        for file in files
        for document in yaml.safe_load_all(file.read_text())
        if document and str(document.get("apiVersion")).startswith("admissionregistration.k8s.io/")
    }


@pytest.mark.parametrize("mode", ["share", "account"])
def test_any_one_value_of_any_policy_or_webhook_of_the_mode_that_differs_is_named(mode: str) -> None:
    settings = read_settings({}, ACCOUNT / "settings.yaml") if mode == "account" else Webhook()
    wanted = installed(settings)
    live = {**in_force(settings), **{IN_FORCE[which]: document for which, document in wanted.items()}}
    assert len(wanted) == 2 + 14 + 15
    assert differences(settings, live.get) == ()

    leaves = {
        which: [
            path
            for path in each_leaf({key: document[key] for key in ("spec", "webhooks") if key in document})
            if path[-1] != "port"  # an overlay's, for its network
        ]
        for which, document in wanted.items()
    }
    assert sum(map(len, leaves.values())) > 500
    # One value of each object at a time: every object is judged by itself.
    for number in range(max(map(len, leaves.values()))):
        changed = {which: paths[number] for which, paths in leaves.items() if number < len(paths)}
        others = {IN_FORCE[which]: with_another(wanted[which], path) for which, path in changed.items()}
        named = sorted("/".join(path.split("/")[-2:]) for path in others)
        assert sorted(differences(settings, {**live, **others}.get)) == named, changed


def with_another(document: Any, path: tuple[str | int, ...]) -> Any:
    """The document with another value at a path."""
    other = inside = copy.deepcopy(document)
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = "other" if isinstance(inside[path[-1]], str) else 7
    return other


@pytest.mark.parametrize("component", ["preemption", "nodeagent"])
def test_the_policy_of_a_component_counts_where_it_or_its_binding_is_installed(component: str) -> None:
    policy = IN_FORCE["ValidatingAdmissionPolicy", f"fairgpu-{component}"]
    binding = IN_FORCE["ValidatingAdmissionPolicyBinding", f"fairgpu-{component}"]
    live = in_force(Webhook())

    assert differences(Webhook(), {**live, policy: None, binding: None}.get) == ()
    assert differences(Webhook(), {**live, policy: None}.get) == (f"validatingadmissionpolicies/fairgpu-{component}",)
    missing = (f"validatingadmissionpolicybindings/fairgpu-{component}",)
    assert differences(Webhook(), {**live, binding: None}.get) == missing


def test_a_webhook_that_is_missing_from_its_configuration_is_named() -> None:
    live = copy.deepcopy(in_force(Webhook()))
    live[IN_FORCE[MUTATING]]["webhooks"].pop()

    assert differences(Webhook(), live.get) == ("mutatingwebhookconfigurations/zz-fairgpu",)


def test_a_field_that_the_api_server_or_the_rotation_of_the_ca_adds_is_no_difference() -> None:
    live = copy.deepcopy(in_force(Webhook()))
    for kind in (MUTATING, VALIDATING):
        for webhook in live[IN_FORCE[kind]]["webhooks"]:
            webhook["clientConfig"]["caBundle"] = "LS0t"
            webhook["clientConfig"]["service"]["port"] = 8443
            webhook.setdefault("objectSelector", {})
    live[IN_FORCE[POLICY]]["status"] = {"observedGeneration": 1}
    live[IN_FORCE[POLICY]]["spec"]["matchConstraints"] |= {
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
    }
    live[IN_FORCE[POLICY]]["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = "*"
    live[IN_FORCE[BINDING]]["spec"]["matchResources"] |= {"matchPolicy": "Equivalent", "objectSelector": {}}
    live[IN_FORCE[BINDING]]["metadata"] |= {"labels": {"of": "an overlay"}, "uid": "1"}

    assert differences(Webhook(), live.get) == ()


def test_it_names_what_an_overlay_changes_to_leave_a_namespace_out() -> None:
    """docs/install.md#leave-a-namespace-out says so, with their number."""
    live = copy.deepcopy(in_force(Webhook()))
    for document in live.values():
        matching = [document.get("spec", {}).get("matchResources", {}), *document.get("webhooks", [])]
        for selector in [each["namespaceSelector"] for each in matching if "namespaceSelector" in each]:
            selector["matchExpressions"][0]["values"].append("lab")

    assert differences(Webhook(), live.get) == (
        "mutatingwebhookconfigurations/zz-fairgpu",
        "validatingwebhookconfigurations/zz-fairgpu",
        *(
            f"validatingadmissionpolicybindings/fairgpu-{name}"
            for name in ("spec", "metadata", "binding", "asking", "timekeeper", "claims", "deletion", "forced-eviction")
        ),
        "validatingadmissionpolicybindings/fairgpu-timekeeper-in-the-system",
    )


def test_the_webhook_may_read_each_object_that_it_compares() -> None:
    documents = yaml.safe_load_all((DEPLOY / "base" / "access" / "webhook.yaml").read_text())
    (role,) = [one for one in documents if one["kind"] == "ClusterRole"]
    readable = {
        f"/apis/{group}/v1/{resource}/{name}"
        for rule in role["rules"]
        if "get" in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [])
    }

    assert set(IN_FORCE.values()) <= readable


def test_an_image_of_the_admins_is_no_difference() -> None:
    live = copy.deepcopy(in_force(Webhook()))
    spec = live[IN_FORCE["ValidatingAdmissionPolicy", "fairgpu-spec"]]["spec"]
    (repository,) = [one for one in spec["variables"] if one["name"] == "sidecarRepository"]
    repository["expression"] = "'registry.example.org/sidecar'"

    assert differences(Webhook(), live.get) == ()


NOW = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)
OTHER = {
    "type": "OfAnother",
    "status": "True",
    "reason": "R",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def test_a_policy_says_in_a_condition_what_differs_and_keeps_the_conditions_of_others() -> None:
    status = changed_status({"status": {"conditions": [OTHER]}}, ("validatingadmissionpolicies/fairgpu-spec",), NOW)

    assert status is not None
    other, own = status["conditions"]
    assert other == OTHER
    assert (own["type"], own["status"], own["reason"]) == ("RenderedFromSettings", "False", "Differs")
    assert own["message"].startswith(
        "validatingadmissionpolicies/fairgpu-spec: not those of the webhook's version and settings"
    )
    assert own["lastTransitionTime"] == "2026-11-24T12:00:00Z"


def test_the_condition_is_written_once_and_its_time_is_that_of_the_change() -> None:
    first = changed_status({}, ("a",), NOW)
    assert first is not None
    assert changed_status({"status": first}, ("a",), NOW + dt.timedelta(hours=1)) is None

    more = changed_status({"status": first}, ("a", "b"), NOW + dt.timedelta(hours=1))
    assert more is not None
    assert more["conditions"][0]["lastTransitionTime"] == "2026-11-24T12:00:00Z"

    right = changed_status({"status": more}, (), NOW + dt.timedelta(hours=2))
    assert right is not None
    assert (right["conditions"][0]["status"], right["conditions"][0]["lastTransitionTime"]) == (
        "True",
        "2026-11-24T14:00:00Z",
    )


def test_a_policy_that_is_missing_gets_no_condition() -> None:
    assert changed_status(None, ("validatingadmissionpolicies/fairgpu-spec",), NOW) is None
