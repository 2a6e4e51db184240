"""The manifests of deploy/ keep their rules, without a server."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonpatch
import pytest
import yaml

from fairgpu import names, pod_faults
from fairgpu.container_parser import MAX_CONTAINERS
from fairgpu.dialects.registry import DIALECTS, FOREIGN
from fairgpu.existing import SYSTEM, Existing
from fairgpu.permissions import Permission
from timekeeper.certificates import AUTHORITY, CERTIFICATE_KEY, STORE_LEAF
from timekeeper.controller.service import END_SECONDS
from timekeeper.settings import RedisSettings, TimekeeperSettings
from webhook.admission.checks import MAX_GATES, MAX_VOLUMES
from webhook.settings import Certificates, Sidecar

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
NODES = "fairgpu-nodes"
Manifest = dict[str, Any]


@cache
def manifests() -> list[Manifest]:
    """All of them, read once for all tests, which change none."""
    files = (file for file in sorted(BASE.rglob("*.yaml")) if str(file.relative_to(BASE)) not in generated())
    documents = (yaml.safe_load_all(file.read_text()) for file in files)
    return [document for group in documents for document in group if document and "kind" in document]


def of_kind(kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests() if manifest["kind"] == kind}


def webhooks() -> dict[str, Manifest]:
    configurations = [
        *of_kind("MutatingWebhookConfiguration").values(),
        *of_kind("ValidatingWebhookConfiguration").values(),
    ]
    return {webhook["name"]: webhook for configuration in configurations for webhook in configuration["webhooks"]}


def condition(webhook: Manifest) -> str:
    conditions = {found["name"]: found["expression"] for found in webhook["matchConditions"]}
    text: str = conditions["asks-for-gpu"]
    return text


def quoted(expression: str) -> set[str]:
    return set(re.findall(r"'([^']*)'", expression)) - {""}


def test_every_manifest_of_the_base_is_part_of_it() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    there = {str(file.relative_to(BASE)) for file in BASE.rglob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) | {name for name in generated() if name.endswith(".yaml")} == there


def generated() -> set[str]:
    """The files that become ConfigMaps, below the base."""
    generators = yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
    return {file.rpartition("=")[2] for generator in generators for file in generator.get("files", [])}


@pytest.mark.parametrize("name", ["mutate.fairgpu.io", "validate.fairgpu.io", "templates.fairgpu.io"])
def test_the_webhook_is_sent_the_keys_of_all_dialects_and_no_others(name: str) -> None:
    foreign = DIALECTS.resources - set(names.CANONICAL_RESOURCES)
    around = {part for form in DIALECTS.around_names for part in form}
    assert quoted(condition(webhooks()[name])) == {*foreign, *DIALECTS.requesting_annotations, *around, "fairgpu.io/"}
    assert all(resource.startswith("fairgpu.io/") for resource in names.CANONICAL_RESOURCES)


UPDATES = ("mutate-update.fairgpu.io", "validate-update.fairgpu.io")
GPU_PODS = {"matchExpressions": [{"key": names.POD_LABEL, "operator": "Exists"}]}


def test_a_write_of_the_timekeeper_to_pods_waits_for_no_webhook() -> None:
    account = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.TIMEKEEPER_ACCOUNT}"
    for name in UPDATES:
        (condition,) = webhooks()[name]["matchConditions"]
        assert condition["expression"].startswith(f"request.userInfo.username != '{account}' && (")


def test_a_manifest_that_is_applied_again_is_sent_with_the_keys_of_all_foreign_dialects() -> None:
    for name in UPDATES:
        (condition,) = webhooks()[name]["matchConditions"]
        known = {*FOREIGN.resources, *FOREIGN.requesting_annotations}
        assert known <= quoted(condition["expression"])


def test_changes_of_pods_are_looked_at_where_they_bear_the_label_of_gpu_pods() -> None:
    """No CEL is cheap: the API server converts the old and the new object for each evaluation."""
    rules = [(name, webhook["rules"], webhook.get("objectSelector")) for name, webhook in webhooks().items()]
    for name, policy in of_kind("ValidatingAdmissionPolicy").items():
        constraints = policy["spec"]["matchConstraints"]
        rules.append((name, constraints["resourceRules"], constraints.get("objectSelector")))
    unselected = {
        name
        for name, rows, selector in rules
        for rule in rows
        if {"UPDATE", "DELETE"} & set(rule["operations"])
        and any(resource.split("/")[0] == "pods" for resource in rule["resources"])
        and selector != GPU_PODS
    }
    # One holds the account that may patch any pod, whatever pod it patches: its condition holds for no other account.
    # The other keeps pods from asking KAI for a GPU by annotations once they exist, where the mode is account alone.
    assert unselected == {"fairgpu-timekeeper", "fairgpu-asking"}
    matched = of_kind("ValidatingAdmissionPolicyBinding")["fairgpu-asking"]["spec"]["matchResources"]
    accounted = {"key": names.NAMESPACE_MODE, "operator": "In", "values": ["account"]}
    assert accounted in matched["namespaceSelector"]["matchExpressions"]


def test_a_write_of_the_timekeeper_is_looked_at_by_one_policy() -> None:
    """By fairgpu-metadata at GPU pods, by fairgpu-asking or fairgpu-timekeeper at all others, under one condition.

    One policy looks at what others write, too, outside of the namespaces that are left alone: the API server converts
    both objects for each.
    """
    policies, bindings = of_kind("ValidatingAdmissionPolicy"), of_kind("ValidatingAdmissionPolicyBinding")
    ((of_gpu_pods,), (where_accounted,), (of_others,)) = (
        [condition["expression"] for condition in policies[name]["spec"]["matchConditions"]]
        for name in ("fairgpu-metadata", "fairgpu-asking", "fairgpu-timekeeper")
    )
    its_own = of_others.partition(" && !(")[2].strip().removesuffix(")").strip()
    for condition in (of_gpu_pods, where_accounted, of_others):
        assert condition.startswith("request.userInfo.username == 'system:serviceaccount:fairgpu-system:")
        assert its_own in condition
    assert set(names.RESERVED_ANNOTATIONS) <= quoted(its_own)
    unlabelled = {"matchExpressions": [{"key": names.POD_LABEL, "operator": "DoesNotExist"}]}
    where = {
        name: bindings[name]["spec"]["matchResources"]
        for name in ("fairgpu-metadata", "fairgpu-asking", "fairgpu-timekeeper", "fairgpu-timekeeper-in-the-system")
    }
    selectors = {
        name: [
            (row["key"], row["operator"], row["values"]) for row in resources["namespaceSelector"]["matchExpressions"]
        ]
        for name, resources in where.items()
    }
    name, system = "kubernetes.io/metadata.name", [*SYSTEM]
    left_alone = [*SYSTEM, *Existing().left_alone]
    assert selectors == {
        "fairgpu-metadata": [(name, "NotIn", system)],
        "fairgpu-asking": [(name, "NotIn", left_alone), (names.NAMESPACE_MODE, "In", ["account"])],
        "fairgpu-timekeeper": [(name, "NotIn", left_alone), (names.NAMESPACE_MODE, "NotIn", ["account"])],
        "fairgpu-timekeeper-in-the-system": [(name, "In", left_alone)],
    }
    assert where["fairgpu-timekeeper"]["objectSelector"] == unlabelled
    assert policies["fairgpu-asking"]["spec"]["matchConstraints"]["objectSelector"] == unlabelled
    assert "objectSelector" not in where["fairgpu-timekeeper-in-the-system"]
    assert policies["fairgpu-metadata"]["spec"]["matchConstraints"]["objectSelector"] == GPU_PODS


def test_no_policy_runs_once_for_each_pod_of_a_namespace() -> None:
    assert not any("paramKind" in policy["spec"] for policy in of_kind("ValidatingAdmissionPolicy").values())


def test_the_policies_hold_pods_to_the_bounds_of_admission() -> None:
    policies = of_kind("ValidatingAdmissionPolicy")
    (annotations, length) = (pod_faults.MAX_ANNOTATIONS, pod_faults.MAX_GPU_POD_ANNOTATIONS_BYTES)
    metadata = policies["fairgpu-metadata"]["spec"]
    variables = {variable["name"]: variable["expression"] for variable in metadata["variables"]}
    assert f"<= {annotations} &&" in variables["fewAnnotations"]
    assert quoted(variables["ours"]) == set(names.RESERVED_ANNOTATIONS)
    text = " ".join(validation["expression"] for validation in metadata["validations"])
    for bound in (length, pod_faults.MAX_LABELS, pod_faults.MAX_FINALIZERS):
        assert f"<= {bound} " in text
    spec = {v["name"]: v["expression"] for v in policies["fairgpu-spec"]["spec"]["variables"]}
    for field, most in (("object.spec.containers", MAX_CONTAINERS), ("initContainers.orValue([])", MAX_CONTAINERS + 1)):
        assert f"{field}) > {most} ?" in " ".join(spec["tooLong"].split())
    assert f"schedulingGates.orValue([])) > {MAX_GATES + 1} ?" in " ".join(spec["tooLong"].split())
    assert f"<= {MAX_VOLUMES + 2} " in spec["hasVolumes"]


def test_mutating_and_validating_see_the_same_pods() -> None:
    both = webhooks()["mutate.fairgpu.io"], webhooks()["validate.fairgpu.io"]
    assert both[0]["matchConditions"] == both[1]["matchConditions"]


def test_the_policy_knows_the_keys_of_all_foreign_dialects() -> None:
    variables = {
        v["name"]: v["expression"] for v in of_kind("ValidatingAdmissionPolicy")["fairgpu-spec"]["spec"]["variables"]
    }
    assert quoted(variables["dialectResources"]) == FOREIGN.resources
    assert quoted(variables["dialectAnnotations"]) == FOREIGN.requesting_annotations
    assert quoted(variables["priorityClasses"]) == {names.IN_BUDGET_CLASS, names.OVER_BUDGET_CLASS}


def test_a_webhook_that_is_down_stops_gpu_pods_and_no_rollout() -> None:
    policies = {name: webhook["failurePolicy"] for name, webhook in webhooks().items()}
    assert policies == {
        "mutate.fairgpu.io": "Fail",
        "account.fairgpu.io": "Fail",
        "mutate-update.fairgpu.io": "Fail",
        "validate.fairgpu.io": "Fail",
        "validate-update.fairgpu.io": "Fail",
        "templates.fairgpu.io": "Ignore",
        "jobs.fairgpu.io": "Ignore",
        "orders.fairgpu.io": "Ignore",
    }


def test_webhooks_have_no_side_effects_and_little_time() -> None:
    for webhook in webhooks().values():
        assert webhook["sideEffects"] == "None"
        assert webhook["timeoutSeconds"] <= 5
        assert webhook["matchPolicy"] == "Equivalent"
        assert webhook["admissionReviewVersions"] == ["v1"]


def test_namespaces_are_left_out_by_the_one_label_that_nobody_can_write() -> None:
    """All else that is read of a namespace is its mode, which fairgpu-namespace guards."""
    system = ["kube-system", "kube-public", "kube-node-lease", names.SYSTEM_NAMESPACE]
    of_orders = "orders.fairgpu.io"  # which belong to no namespace
    bindings = of_kind("ValidatingAdmissionPolicyBinding")
    selectors = {name: webhook["namespaceSelector"] for name, webhook in webhooks().items() if name != of_orders}
    of_policies = ("binding", "claims", "deletion", "forced-eviction", "metadata", "spec")
    for name in (f"fairgpu-{policy}" for policy in of_policies):
        selectors[name] = bindings[name]["spec"]["matchResources"]["namespaceSelector"]
    for name, selector in selectors.items():
        by_name, *others = selector["matchExpressions"]
        of_new_pods = name.endswith("fairgpu.io") or name == "fairgpu-spec"
        assert (by_name["key"], by_name["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert by_name["values"] == [*system, *(Existing().left_alone if of_new_pods else ())]
        assert {expression["key"] for expression in others} <= {names.NAMESPACE_MODE}


def test_the_policy_allows_on_a_namespace_the_words_that_the_webhook_reads() -> None:
    """tests/cluster/guards/test_namespace_metadata.py tries commas and white space between them."""
    validations = of_kind("ValidatingAdmissionPolicy")["fairgpu-namespace"]["spec"]["validations"]
    (words,) = [quoted(each["expression"]) for each in validations if ".trim() in " in each["expression"]]
    assert words == {names.NAMESPACE_ALLOW, ",", *Permission}


def test_each_rule_and_policy_says_what_to_write() -> None:
    """A rule whose evaluation may fail needs `message`: no messageExpression is evaluated then.

    The API server shows no message with a line break, so what was given is quoted.
    """
    rules = [rule for schema in of_kind("CustomResourceDefinition").values() for rule in rules_in(schema)]
    validations = [
        validation
        for manifest in everywhere()
        if manifest["kind"] == "ValidatingAdmissionPolicy"
        for validation in manifest["spec"]["validations"]
    ]
    assert len(rules) > 20
    assert len(validations) > 20
    assert [said for said in (*rules, *validations) if not said.keys() & {"message", "messageExpression"}] == []
    assert [rule for rule in rules if MAY_FAIL.search(rule["rule"]) and "message" not in rule] == []
    assert [
        rule for rule in rules if re.search(r"\+ (self|string\(self\)) \+", rule.get("messageExpression", ""))
    ] == []


MAY_FAIL = re.compile(r"\b(timestamp|duration|quantity|url|int|uint|double|get[A-Z]\w+)[(]")
"""CEL's functions that fail on some values, so that the rule is neither true nor false."""


def rules_in(schema: object) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [rule for item in schema for rule in rules_in(item)]
    if not isinstance(schema, dict):
        return []
    below = [rule for value in schema.values() for rule in rules_in(value)]
    return [*schema.get("x-kubernetes-validations", ()), *below]


def test_every_policy_denies_and_fails_closed() -> None:
    policies, bindings = of_kind("ValidatingAdmissionPolicy"), of_kind("ValidatingAdmissionPolicyBinding")
    of_policies = {binding["spec"]["policyName"] for binding in bindings.values()}
    assert (
        set(policies)
        == of_policies
        == {
            f"fairgpu-{name}"
            for name in (
                "binding",
                "bindrequests",
                "asking",
                "claims",
                "deletion",
                "forced-eviction",
                "eviction",
                "metadata",
                "spec",
                "namespace",
                "timekeeper",
                "orders",
            )
        }
    )
    assert {policy["spec"]["failurePolicy"] for policy in policies.values()} == {"Fail"}
    assert [binding["spec"]["validationActions"] for binding in bindings.values()] == [["Deny"]] * len(bindings)


def test_the_spec_guard_looks_at_new_pods_alone() -> None:
    """On UPDATE it would keep finalizers on pods that are older than FairGPU."""
    (rule,) = of_kind("ValidatingAdmissionPolicy")["fairgpu-spec"]["spec"]["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE"]


def workloads() -> list[Manifest]:
    return [*of_kind("Deployment").values(), *of_kind("StatefulSet").values()]


WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicaSet", "Pod")


@cache
def everywhere() -> list[Manifest]:
    """All manifests of deploy/, those that only some installations have among them.

    The overlays are left out: those of the project change manifests and have none, and there may be a developer's own.
    """
    files = [
        file
        for file in sorted(DEPLOY.rglob("*.yaml"))
        if file.name != "kustomization.yaml" and DEPLOY / "overlays" not in file.parents
    ]
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [document for document in documents if isinstance(document, dict) and "kind" in document]


def test_the_kubelet_waits_longer_than_the_jobs_go_on_whose_store_is_silent() -> None:
    spec = of_kind("Deployment")["fairgpu-timekeeper"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > END_SECONDS


def pods() -> list[Manifest]:
    """Everything of deploy/ that runs pods."""
    return [manifest for manifest in everywhere() if manifest["kind"] in WORKLOADS]


def is_agent(workload: Manifest) -> bool:
    metadata = workload["metadata"]
    return (metadata.get("namespace"), metadata["name"]) == (NODES, "fairgpu-nodeagent")


def named(workload: Manifest) -> str:
    return f"{workload['kind']}-{workload['metadata']['name']}"


def test_the_workloads_of_all_kinds_are_known() -> None:
    """A kind that is new here keeps the rules below, or has a test that says which it cannot keep."""
    assert {each["kind"] for each in pods()} == {"Deployment", "StatefulSet", "DaemonSet"}
    assert [named(each) for each in pods() if each["kind"] == "DaemonSet"] == ["DaemonSet-fairgpu-nodeagent"]


@pytest.mark.parametrize("workload", pods(), ids=named)
def test_a_workload_has_no_capability_and_is_watched(workload: Manifest) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        security = container["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security.get("privileged")
        assert "memory" in container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    for container in pod["containers"]:
        assert {"startupProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize("workload", pods(), ids=named)
def test_the_node_agent_alone_runs_as_root_and_sees_the_node(workload: Manifest) -> None:
    pod = workload["spec"]["template"]["spec"]
    of_the_node = [name for name in ("hostPID", "hostIPC", "hostNetwork") if pod.get(name)]
    of_the_node += [volume["name"] for volume in pod.get("volumes", []) if "hostPath" in volume]
    of_the_node += ["root" for container in pod["containers"] if container["securityContext"].get("runAsUser") == 0]
    if is_agent(workload):
        assert {"hostPID", "root", "run"} <= set(of_the_node)
        assert not {"hostIPC", "hostNetwork"} & set(of_the_node)
    else:
        assert of_the_node == []
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0


@pytest.mark.parametrize("workload", pods(), ids=named)
def test_a_pod_says_whether_it_has_a_token_of_the_api_server(workload: Manifest) -> None:
    pod = workload["spec"]["template"]["spec"]
    accounts = {each["metadata"]["name"] for each in everywhere() if each["kind"] == "ServiceAccount"}
    assert pod.get("automountServiceAccountToken") is False or pod["serviceAccountName"] in accounts


def test_pod_security_is_privileged_in_the_node_agents_namespace_and_restricted_in_all_others() -> None:
    """Each namespace of ours says so three times: what is refused, warned of and audited."""
    levels = {
        manifest["metadata"]["name"]: {
            label.rpartition("/")[2]: level
            for label, level in manifest["metadata"].get("labels", {}).items()
            if label.startswith("pod-security.kubernetes.io/")
        }
        for manifest in everywhere()
        if manifest["kind"] == "Namespace"
    }
    modes = ("enforce", "warn", "audit")
    assert levels == {
        names.SYSTEM_NAMESPACE: dict.fromkeys(modes, "restricted"),
        NODES: dict.fromkeys(modes, "privileged"),
    }
    in_nodes = [named(each) for each in pods() if each["metadata"].get("namespace") == NODES]
    assert in_nodes == ["DaemonSet-fairgpu-nodeagent"]


@pytest.mark.parametrize("name", ["fairgpu-webhook", "fairgpu-timekeeper", "fairgpu-scheduler"])
def test_two_replicas_survive_a_drain(name: str) -> None:
    assert of_kind("Deployment")[name]["spec"]["replicas"] >= 2
    budget = of_kind("PodDisruptionBudget")[name]
    assert budget["spec"]["maxUnavailable"] == 1
    labels = of_kind("Deployment")[name]["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("service", of_kind("Service").values(), ids=lambda service: service["metadata"]["name"])
def test_a_service_leads_to_ports_that_its_workload_opens(service: Manifest) -> None:
    selector = service["spec"]["selector"]
    (workload,) = [w for w in workloads() if selector.items() <= w["spec"]["template"]["metadata"]["labels"].items()]
    containers = workload["spec"]["template"]["spec"]["containers"]
    opened = {port["name"] for container in containers for port in container.get("ports", [])}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == opened


@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: workload["metadata"]["name"])
def test_a_mounted_secret_can_be_read_by_the_group_that_the_pod_runs_as(workload: Manifest) -> None:
    pod = workload["spec"]["template"]["spec"]
    for volume in pod["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440
            assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_the_webhook_mounts_the_certificate_where_it_looks_for_it_and_not_the_key_of_its_authority() -> None:
    settings = Certificates()
    pods = {name: of_kind("Deployment")[name]["spec"]["template"]["spec"] for name in of_kind("Deployment")}
    volumes = pods["fairgpu-webhook"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == [settings.secret]
    (container,) = pods["fairgpu-webhook"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "certificate"]
    assert Path(mount["mountPath"]) == settings.folder
    assert settings.authority_secret not in str([*of_kind("Deployment").values(), *of_kind("StatefulSet").values()])


def test_one_process_without_a_port_keeps_the_certificates() -> None:
    deployment = of_kind("Deployment")["fairgpu-certificates"]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "ports" not in container
    policy = of_kind("NetworkPolicy")["fairgpu-certificates"]["spec"]
    assert "ingress" not in policy
    assert policy["egress"] == [{"ports": [{"port": port, "protocol": "TCP"} for port in (443, 6443)]}]


def test_only_the_keeper_of_certificates_may_touch_them() -> None:
    """All that another may do is read the configurations, in which there is no key."""
    settings = Certificates()
    for role in [*of_kind("ClusterRole").values(), *of_kind("Role").values()]:
        rules = [rule for rule in role["rules"] if rule["verbs"] != ["get"] or "secrets" in rule["resources"]]
        named = {name for rule in rules for name in rule.get("resourceNames", [])}
        touched = named & {settings.authority_secret, settings.secret, names.WEBHOOK_CONFIGURATION}
        assert not touched or role["metadata"]["name"] == "fairgpu-certificates"


def test_no_rule_uses_a_wildcard_and_none_reads_all_secrets() -> None:
    for role in [*of_kind("ClusterRole").values(), *of_kind("Role").values()]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"] or rule.get("resourceNames")


def test_redis_is_spoken_to_over_tls_alone_under_the_timekeepers_authority() -> None:
    configuration = dict(
        line.split(" ", 1)
        for line in (BASE / "redis" / "redis.conf").read_text().splitlines()
        if line and line[0] != "#"
    )
    assert (configuration["port"], configuration["tls-port"]) == ("0", "6379")
    settings = RedisSettings()
    assert urlsplit(settings.url).scheme == "rediss"
    assert settings.username == "timekeeper"
    volumes = {
        volume["name"]: volume for workload in workloads() for volume in workload["spec"]["template"]["spec"]["volumes"]
    }
    assert volumes["certificate"]["secret"]["secretName"] == STORE_LEAF
    assert volumes["authority"]["configMap"] == {"name": AUTHORITY, "optional": True}
    pod = of_kind("Deployment")["fairgpu-timekeeper"]["spec"]["template"]["spec"]
    for container in pod["containers"]:
        (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "authority"]
        assert settings.tls.ca_file == Path(mounted) / CERTIFICATE_KEY


def test_no_manifest_holds_a_secret() -> None:
    assert of_kind("Secret") == {}
    text = "".join(file.read_text() for file in BASE.rglob("*") if file.is_file())
    assert "stringData" not in text


def test_accounts_and_services_carry_the_fixed_names() -> None:
    accounts = {"fairgpu-certificates", "fairgpu-webhook", names.TIMEKEEPER_ACCOUNT, "fairgpu-scheduler"}
    assert set(of_kind("ServiceAccount")) == accounts
    assert {names.WEBHOOK_SERVICE, names.TIMEKEEPER_SERVICE} <= set(of_kind("Service"))
    assert set(of_kind("MutatingWebhookConfiguration")) == {names.WEBHOOK_CONFIGURATION}
    assert set(of_kind("ValidatingWebhookConfiguration")) == {names.WEBHOOK_CONFIGURATION}


def test_no_image_of_the_base_can_be_pulled_from_anybody() -> None:
    """RFC 2606 keeps the domain .invalid from ever being registered."""
    containers = [
        container
        for workload in workloads()
        for group in ("containers", "initContainers")
        for container in workload["spec"]["template"]["spec"].get(group, [])
    ]
    (sidecar,) = [
        literal.partition("=")[2]
        for generator in yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
        for literal in generator.get("literals", [])
        if literal.startswith("repository=")
    ]
    of_nodes = [container["image"] for each in pods() for container in each["spec"]["template"]["spec"]["containers"]]
    images = [*(container["image"] for container in containers), *of_nodes, sidecar, Sidecar().image]
    assert [image for image in images if not image.startswith("fairgpu.invalid/")] == []


def test_the_overlay_in_the_instructions_names_a_foreign_image_by_its_digest() -> None:
    (redis,) = [image for image in in_the_instructions("resources: [../../base]")["images"] if "redis" in image["name"]]
    assert redis["digest"].startswith("sha256:")
    assert "newTag" not in redis


def test_the_overlay_in_the_instructions_shows_the_policy_of_the_image_as_the_base_does() -> None:
    example, newer = in_the_instructions("resources: [../../base]"), in_the_instructions("newTag: 0.2.0")
    base = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert example["replacements"] == base["replacements"]
    generated = {generator["name"] for generator in base["configMapGenerator"]}
    assert {generator["name"] for generator in example["configMapGenerator"]} <= generated
    used = {c["image"].partition(":")[0] for w in workloads() for c in w["spec"]["template"]["spec"]["containers"]}
    assert {image["name"] for image in example["images"]} == used
    assert {image["name"] for image in newer["images"]} == used - {
        "fairgpu.invalid/redis",
        "fairgpu.invalid/kube-scheduler",
    }
    assert {image["name"]: image["newName"] for image in newer["images"]}.items() <= {
        image["name"]: image["newName"] for image in example["images"]
    }.items()
    (sidecar,) = newer["configMapGenerator"]
    assert sidecar["literals"][0] == example["configMapGenerator"][0]["literals"][0]


def in_the_instructions(word: str) -> Manifest:
    """The one example of the instructions that has a word."""
    text = (ROOT / "docs" / "install.md").read_text()
    (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if word in block]
    found: Manifest = yaml.safe_load(example)
    return found


def test_the_address_for_people_leads_to_the_timekeeper_under_a_name_in_its_certificate() -> None:
    service = in_the_instructions("LoadBalancer")["spec"]
    inside = of_kind("Service")[names.TIMEKEEPER_SERVICE]["spec"]
    assert service["selector"] == inside["selector"]
    assert service["ports"] == [port for port in inside["ports"] if port["name"] == "https"]
    settings = TimekeeperSettings.model_validate(in_the_instructions("certificate_names")["timekeeper"])
    assert settings.serve.certificate_names == ("gpus.example.org",)


def test_another_place_of_dns_is_added_to_what_pods_may_reach() -> None:
    (patch,) = in_the_instructions("169.254.20.10")["patches"]
    policy = of_kind(patch["target"]["kind"])[patch["target"]["name"]]
    reached = jsonpatch.apply_patch(policy, yaml.safe_load(patch["patch"]))["spec"]["egress"]
    dns = [rule["ports"] for rule in reached if {"port": 53, "protocol": "UDP"} in rule["ports"]]
    assert len(dns) == 2
    assert dns[0] == dns[1]


def test_the_dns_of_openshift_is_added_beside_that_of_kube_system() -> None:
    (patch,) = in_the_instructions("openshift-dns")["patches"]
    policy = of_kind(patch["target"]["kind"])[patch["target"]["name"]]
    *before, added = jsonpatch.apply_patch(policy, yaml.safe_load(patch["patch"]))["spec"]["egress"]
    assert before == policy["spec"]["egress"]
    assert {(port["port"], port["protocol"]) for port in added["ports"]} == {(5353, "UDP"), (5353, "TCP")}


def test_a_storage_class_is_named_for_the_one_claim_of_redis() -> None:
    (patch,) = in_the_instructions("storageClassName")["patches"]
    redis = of_kind(patch["target"]["kind"])[patch["target"]["name"]]
    (claim,) = jsonpatch.apply_patch(redis, yaml.safe_load(patch["patch"]))["spec"]["volumeClaimTemplates"]
    assert claim["spec"].pop("storageClassName") == "gp3"
    assert [claim] == redis["spec"]["volumeClaimTemplates"]


def test_another_place_of_containerd_replaces_the_folder_that_the_agent_reads_of_it() -> None:
    (patch,) = in_the_instructions("/run/k3s/containerd")["patches"]
    given = yaml.safe_load(patch["patch"])
    (agent,) = [each for each in on_nodes() if each["kind"] == "DaemonSet"]
    assert {key: agent["metadata"][key] for key in ("name", "namespace")} == given["metadata"]
    shipped = {each["name"]: each["hostPath"]["path"] for each in volumes(agent) if "hostPath" in each}
    elsewhere = {each["name"]: each["hostPath"]["path"] for each in volumes(given)}
    (name,) = [name for name, path in shipped.items() if path == "/run/containerd"]
    assert elsewhere == {name: "/run/k3s/containerd"}


def on_nodes() -> list[Manifest]:
    return list(yaml.safe_load_all((DEPLOY / "nodes" / "daemonset.yaml").read_text()))


def volumes(workload: Manifest) -> list[Manifest]:
    found: list[Manifest] = workload["spec"]["template"]["spec"]["volumes"]
    return found


@pytest.mark.parametrize("kind", ["gpubudgets", "gpugrants", "gpucorrections"])
def test_the_reference_names_every_field_of_a_spec(kind: str) -> None:
    crd = of_kind("CustomResourceDefinition")[f"{kind}.fairgpu.io"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    reference = (ROOT / "docs" / "reference" / "crds.md").read_text()
    for part in ("spec", "status"):
        for name in schema[part]["properties"]:
            assert name in reference, f"{part}.{name}"


def silent(schema: Manifest, path: str) -> list[str]:
    """The fields of which `kubectl explain` would say nothing."""
    found = []
    for name, field in schema.get("properties", {}).items():
        found += [] if "description" in field else [f"{path}.{name}"]
        found += silent(field, f"{path}.{name}")
    return found


@pytest.mark.parametrize("kind", ["gpubudgets", "gpugrants", "gpucorrections"])
def test_kubectl_explains_every_field_that_people_write_and_each_part_of_the_status(kind: str) -> None:
    crd = of_kind("CustomResourceDefinition")[f"{kind}.fairgpu.io"]
    fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    assert silent({"properties": {"spec": fields["spec"]}}, kind) == []
    assert [name for name, field in fields["status"]["properties"].items() if "description" not in field] == []
