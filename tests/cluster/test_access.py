"""The rights of each account, asked of the API server's own authorizer under that account."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.support.waiting import wait_until

SYSTEM = "fairgpu-system"
BUDGETS = "gpubudgets.fairgpu.io"
INSTRUCTIONS = Path(__file__).parents[2] / "docs" / "install.md"
HOOKS = "webhookconfigurations.admissionregistration.k8s.io"

READS = ("get", "list", "watch", "update", "patch", "delete")
WRITES = ("patch", "update", "delete")

pytestmark = pytest.mark.usefixtures("installation")


class Access(NamedTuple):
    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


NEEDED = {
    "webhook": [
        Access("watch", "namespaces"),
        Access("watch", "priorityclasses.scheduling.k8s.io"),
        Access("get", "configmaps", SYSTEM, "fairgpu-timekeeper-ca"),
        Access("get", "networkpolicies.networking.k8s.io", SYSTEM, "fairgpu-webhook"),
        Access("get", "gpubudgets.fairgpu.io"),
        Access("watch", "resourceclaims.resource.k8s.io"),
        Access("watch", "resourceclaimtemplates.resource.k8s.io"),
        Access("get", f"mutating{HOOKS}", name="zz-fairgpu"),
        Access("get", f"validating{HOOKS}", name="zz-fairgpu"),
        Access("get", "validatingadmissionpolicies.admissionregistration.k8s.io", name="fairgpu-spec"),
        Access("get", "validatingadmissionpolicies.admissionregistration.k8s.io", name="fairgpu-metadata"),
    ],
    "certificates": [
        Access("patch", f"mutating{HOOKS}", name="zz-fairgpu"),
        Access("patch", f"validating{HOOKS}", name="zz-fairgpu"),
        Access("create", "secrets", SYSTEM),
        Access("update", "secrets", SYSTEM, "fairgpu-webhook-ca"),
        Access("update", "secrets", SYSTEM, "fairgpu-webhook-tls"),
    ],
    "timekeeper": [
        Access("watch", "pods"),
        Access("patch", "pods", "team-a"),
        Access("create", "pods/eviction", "team-a"),
        Access("watch", "nodes"),
        Access("watch", "namespaces"),
        Access("watch", "resourceclaims.resource.k8s.io"),
        Access("watch", "resourceslices.resource.k8s.io"),
        Access("watch", "localqueues.kueue.x-k8s.io"),
        Access("watch", "resourcequotas"),
        Access("watch", "gpubudgets.fairgpu.io"),
        Access("patch", "gpubudgets/status.fairgpu.io"),
        Access("create", "gpugrants.fairgpu.io"),
        Access("patch", "gpugrants/status.fairgpu.io"),
        Access("create", "gpucorrections.fairgpu.io"),
        Access("patch", "gpucorrections/status.fairgpu.io"),
        Access("create", "tokenreviews.authentication.k8s.io"),
        Access("create", "subjectaccessreviews.authorization.k8s.io"),
        Access("create", "events.events.k8s.io", "team-a"),
        Access("list", "leases.coordination.k8s.io", "kube-node-lease"),
        Access("update", "leases.coordination.k8s.io", SYSTEM, "fairgpu-timekeeper"),
        Access("update", "secrets", SYSTEM, "fairgpu-timekeeper-tls"),
        Access("update", "secrets", SYSTEM, "fairgpu-redis-tls"),
        Access("patch", "configmaps", SYSTEM, "fairgpu-timekeeper-ca"),
        Access("get", "configmaps", SYSTEM, "fairgpu-timekeeper-checkpoints-0"),
        Access("patch", "configmaps", SYSTEM, "fairgpu-timekeeper-checkpoints-15"),
    ],
    "scheduler": [
        Access("watch", "pods"),
        Access("watch", "nodes"),
        Access("create", "pods/binding", "team-a"),
        Access("create", "pods/eviction", "team-a"),
        Access("patch", "pods/status", "team-a"),
        Access("get", "gpubudgets.fairgpu.io"),
        Access("get", "configmaps", SYSTEM, "fairgpu-timekeeper-ca"),
        Access("create", "leases.coordination.k8s.io", SYSTEM),
        Access("update", "leases.coordination.k8s.io", SYSTEM, "fairgpu-scheduler"),
    ],
}

NOT_NEEDED = {
    ("", "pods", "delete"): "preemption, which no GPU pod's class allows",
    ("", "bindings", "create"): "the older way to bind",
    ("", "pods/status", "update"): "it patches",
    ("", "pods/finalizers", "update"): "claims made for extended resources, which is alpha",
    ("coordination.k8s.io", "leases", "create"): "of kube-system; its own is in fairgpu-system",
    ("coordination.k8s.io", "leases", "get"): "as above",
    ("coordination.k8s.io", "leases", "list"): "as above",
    ("coordination.k8s.io", "leases", "watch"): "as above",
    ("coordination.k8s.io", "leases", "update"): "as above",
    ("coordination.k8s.io", "leasecandidates", "*"): "an election among versions, which is alpha",
    ("extensions", "replicasets", "*"): "a group that is gone",
}
"""Rights of Kubernetes' own scheduler that FairGPU's does without, by group, resource and verb, with the reason."""

DANGEROUS = [
    Access("*", "*"),
    Access("create", "pods", "team-a"),
    Access("create", "pods", SYSTEM),
    Access("delete", "pods", "team-a"),
    Access("create", "pods/exec", "team-a"),
    Access("create", "pods/ephemeralcontainers", "team-a"),
    Access("create", "serviceaccounts/token", SYSTEM),
    Access("create", "serviceaccounts/token", "team-a"),
    Access("list", "secrets"),
    Access("get", "secrets", "team-a"),
    Access("list", "secrets", SYSTEM),
    Access("get", "secrets", SYSTEM, "fairgpu-redis"),
    Access("delete", "secrets", SYSTEM),
    Access("get", "configmaps", "kube-system"),
    Access("update", "configmaps", SYSTEM, "fairgpu-settings"),
    Access("impersonate", "users"),
    Access("escalate", "clusterroles.rbac.authorization.k8s.io"),
    Access("bind", "clusterroles.rbac.authorization.k8s.io"),
    Access("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    Access("create", "rolebindings.rbac.authorization.k8s.io", SYSTEM),
    Access("create", f"mutating{HOOKS}"),
    Access("patch", f"mutating{HOOKS}", name="another"),
    Access("delete", f"validating{HOOKS}", name="zz-fairgpu"),
    Access("update", "validatingadmissionpolicies.admissionregistration.k8s.io"),
    Access("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io"),
    Access("update", "gpubudgets.fairgpu.io"),
    Access("create", "gpubudgets.fairgpu.io"),
    Access("delete", "gpugrants.fairgpu.io"),
    Access("update", "gpugrants.fairgpu.io"),
    Access("delete", "gpucorrections.fairgpu.io"),
    Access("update", "gpucorrections.fairgpu.io"),
    Access("update", "namespaces", name="team-a"),
    Access("update", "resourcequotas", "team-a"),
    Access("update", "nodes"),
    Access("patch", "nodes/status"),
    Access("create", "nodes/proxy"),
    Access("update", "priorityclasses.scheduling.k8s.io"),
    Access("update", "customresourcedefinitions.apiextensions.k8s.io"),
    Access("create", "certificatesigningrequests.certificates.k8s.io"),
]


def account(control_plane: ControlPlane, part: str) -> Identity:
    return control_plane.service_account(SYSTEM, f"fairgpu-{part}")


def _may(who: Identity, access: Access) -> bool:
    return who.may(access.verb, access.resource, namespace=access.namespace, name=access.name)


@pytest.mark.parametrize("part", NEEDED)
def test_each_account_may_do_what_its_work_needs(control_plane: ControlPlane, part: str) -> None:
    who = account(control_plane, part)
    assert [access for access in NEEDED[part] if not _may(who, access)] == []


@pytest.mark.parametrize("role", ["system:kube-scheduler", "system:volume-scheduler"])
def test_the_scheduler_may_what_kubernetes_allows_its_own_but_for_what_it_does_not_need(
    control_plane: ControlPlane, role: str
) -> None:
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    ours, theirs = (_granted(control_plane.admin.api.get(f"{roles}/{name}")) for name in ("fairgpu-scheduler", role))
    lacking = {
        (group, resource, verb)
        for group, resource, verb in theirs - ours
        if (group, resource, verb) not in NOT_NEEDED and (group, resource, "*") not in NOT_NEEDED
    }
    assert lacking == set()


def _granted(role: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule.get("apiGroups", [])
        for resource in rule.get("resources", [])
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("part", NEEDED)
def test_no_account_may_do_anything_dangerous(control_plane: ControlPlane, part: str) -> None:
    who = account(control_plane, part)
    assert [access for access in DANGEROUS if _may(who, access)] == []


CERTIFICATES = [
    *(Access(verb, f"{kind}{HOOKS}", name="zz-fairgpu") for kind in ("mutating", "validating") for verb in WRITES),
    *(
        Access(verb, "secrets", SYSTEM, name)
        for name in ("fairgpu-webhook-ca", "fairgpu-webhook-tls")
        for verb in READS
    ),
]


def test_the_webhook_reads_no_secret_and_patches_no_configuration(control_plane: ControlPlane) -> None:
    assert [access for access in CERTIFICATES if _may(account(control_plane, "webhook"), access)] == []
    assert not _may(account(control_plane, "webhook"), Access("create", "secrets", SYSTEM))


def test_no_account_but_that_of_the_rotator_has_its_rights(control_plane: ControlPlane) -> None:
    for access in CERTIFICATES:
        holders = [part for part in NEEDED if _may(account(control_plane, part), access)]
        assert holders in ([], ["certificates"]), access


def test_only_the_scheduler_binds_and_only_the_timekeeper_writes_budgets_status(control_plane: ControlPlane) -> None:
    bind, patch = Access("create", "pods/binding", "team-a"), Access("patch", "gpubudgets/status.fairgpu.io")
    assert [part for part in NEEDED if _may(account(control_plane, part), bind)] == ["scheduler"]
    assert [part for part in NEEDED if _may(account(control_plane, part), patch)] == ["timekeeper"]


def test_a_default_account_of_the_system_namespace_may_do_nothing(control_plane: ControlPlane) -> None:
    who = control_plane.service_account(SYSTEM, "default")
    every = [*DANGEROUS, *(access for needed in NEEDED.values() for access in needed)]
    assert [access for access in every if _may(who, access)] == []


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_an_account_that_may_view_a_namespace_may_see_its_budget_and_change_none(
    control_plane: ControlPlane, namespace: str, role: str
) -> None:
    who = control_plane.user(f"{role}-of-{namespace}")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.name}],
    }
    control_plane.admin.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", binding)

    seen = Access("get", "gpubudgets.fairgpu.io", namespace)
    wait_until(lambda: _may(who, seen), f"the role {role} is aggregated")
    assert not _may(who, Access("get", "gpubudgets.fairgpu.io", "default"))
    assert not _may(who, Access("update", "gpubudgets.fairgpu.io", namespace))
    assert not _may(who, Access("update", "podstatuses.fairgpu.io"))


def test_a_budget_admin_hands_out_money_and_nothing_else(control_plane: ControlPlane, namespace: str) -> None:
    who = control_plane.user(f"finance-{namespace}")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": who.name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairgpu-budget-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who.name}],
    }
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    control_plane.admin.api.create(bindings, binding)
    try:
        wait_until(lambda: _may(who, Access("create", "gpugrants.fairgpu.io")), "the binding is in force")
        money = [access for access in DANGEROUS if _may(who, access)]
        assert {access.resource for access in money} == {
            "gpubudgets.fairgpu.io",
            "gpugrants.fairgpu.io",
            "gpucorrections.fairgpu.io",
        }
        assert not _may(who, Access("patch", "gpubudgets/status.fairgpu.io"))
    finally:
        control_plane.admin.api.delete(f"{bindings}/{who.name}")


def test_a_team_reads_its_own_budget_with_kubectl_as_the_instructions_say(control_plane: ControlPlane) -> None:
    section = INSTRUCTIONS.read_text().partition("### A team that has nothing but kubectl")[2].partition("\n## ")[0]
    typed = [line for line in section.splitlines() if line.startswith("$ kubectl ")]
    assert len(typed) == 2
    for line in typed:
        control_plane.admin.kubectl(*shlex.split(line)[2:])
    member = control_plane.user("member", ["team-a"])
    wait_until(lambda: _may(member, Access("get", BUDGETS, name="team-a")), "the API server knows of the rights")
    assert not _may(member, Access("get", BUDGETS, name="team-b"))
    assert not _may(member, Access("list", BUDGETS))
    assert not _may(member, Access("update", BUDGETS, name="team-a"))
    assert not _may(control_plane.user("stranger", ["team-b"]), Access("get", BUDGETS, name="team-a"))
