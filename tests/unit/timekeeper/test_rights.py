"""The missing rights and features of a cluster, by the API server's answers to access reviews."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from fairgpu.cluster.api import ApiError, KubernetesAPI
from timekeeper.modes import Missing, may_write_gpu_pods, missing_lines, read_missing

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


class Reviewer:
    """An API server that decides access reviews by a function of their spec, and may lack policies."""

    def __init__(
        self, allows: Callable[[Any], bool | int], *, policies: bool = True, classes: list[Any] | None = None
    ) -> None:
        self._allows = allows
        self._policies = policies
        self._classes = classes

    def create(self, path: str, body: Mapping[str, Any], _query: Any = None) -> Any:
        assert path == f"/apis/authorization.k8s.io/v1/{body['kind'].lower()}s"
        allowed = self._allows(body["spec"])
        if not isinstance(allowed, bool):
            raise ApiError(allowed, "Forbidden", path)
        return {"status": {"allowed": allowed}}

    def get(self, path: str, _query: Any = None) -> Any:
        if path == "/apis/storage.k8s.io/v1/storageclasses":
            if self._classes is None:
                raise ApiError(403, "Forbidden", path)
            return {"items": self._classes}
        assert path == POLICIES
        if not self._policies:
            raise ApiError(404, "NotFound", path)
        return {"items": []}


def missing(allows: Callable[[Any], bool | int], version: str = "v1.34.2", *, policies: bool = True) -> Missing:
    return read_missing(cast("KubernetesAPI", Reviewer(allows, policies=policies)), version)


def test_nothing_is_missing_for_a_cluster_admin() -> None:
    found = missing(lambda _: True)

    assert found == Missing()
    assert missing_lines(found) == []


def test_the_rights_that_are_refused_are_named_for_the_mode_that_needs_them() -> None:
    refused = {"clusterroles", "deployments", "mutatingwebhookconfigurations"}
    found = missing(lambda spec: spec["resourceAttributes"]["resource"] not in refused)

    assert found.rights_for_look == (
        "create clusterroles.rbac.authorization.k8s.io",
        "create deployments.apps in fairgpu-system",
    )
    assert found.rights_for_account == ("create mutatingwebhookconfigurations.admissionregistration.k8s.io",)
    assert "To install look, your account lacks the right to create clusterroles" in "\n".join(missing_lines(found))


def test_where_the_api_server_gives_no_answer_nothing_is_called_missing() -> None:
    assert missing(lambda _: 403) == Missing()


def test_an_error_of_the_api_server_is_one_of_the_command() -> None:
    with pytest.raises(ApiError):
        missing(lambda _: 500)


@pytest.mark.parametrize(("version", "fits"), [("v1.31.9", False), ("v1.32.0", True), ("v1.34.2+k3s1", True)])
def test_account_and_share_need_a_kubernetes_of_1_32(version: str, *, fits: bool) -> None:
    features = missing(lambda _: True, version).features

    assert [("look runs here" in one) for one in features] == ([] if fits else [True])


def test_an_api_server_without_policies_is_named() -> None:
    (feature,) = missing(lambda _: True, policies=False).features

    assert "does not serve" in feature


def test_an_accounts_right_is_asked_for_under_its_name_and_groups() -> None:
    asked: list[Any] = []

    def allows(spec: Any) -> bool:
        asked.append(spec)
        return True

    assert may_write_gpu_pods(cast("KubernetesAPI", Reviewer(allows)), "kube-system:hami-scheduler")
    (spec,) = asked
    assert spec["user"] == "system:serviceaccount:kube-system:hami-scheduler"
    assert "system:serviceaccounts:kube-system" in spec["groups"]
    assert spec["resourceAttributes"] == {"group": "fairgpu.io", "resource": "podstatuses", "verb": "update"}
    assert not may_write_gpu_pods(cast("KubernetesAPI", Reviewer(lambda _: 403)), "kube-system:hami-scheduler")


def storage_class(name: str, default: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}}}


@pytest.mark.parametrize(
    ("classes", "lacking"),
    [
        ([], True),
        ([{"metadata": {"name": "gp2"}}, storage_class("gp3", "false")], True),
        ([{"metadata": {"name": "gp2"}}, storage_class("gp3", "true")], False),
        (None, False),
    ],
)
def test_before_installing_it_says_that_no_storage_class_is_the_default(
    classes: list[Any] | None, *, lacking: bool
) -> None:
    api = cast("KubernetesAPI", Reviewer(lambda _: True, classes=classes))

    assert [one.partition(":")[0] for one in read_missing(api, "v1.34.2").features] == (
        ["No StorageClass is the default"] if lacking else []
    )
    assert read_missing(api, "v1.34.2", installed=True).features == ()
