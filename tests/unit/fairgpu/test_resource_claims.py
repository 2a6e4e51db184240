"""The version of Dynamic Resource Allocation that is read."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.resource_claims import RESOURCE
from tests.unit.fairgpu.json_values import JSON


class Group:
    """An API server that has these versions of the group."""

    def __init__(self, versions: Any) -> None:
        self._versions = versions

    def get(self, _path: str) -> Any:
        return {"versions": self._versions}


def version_of(versions: Any) -> str:
    return RESOURCE.served_version(cast("KubernetesAPI", Group(versions)))


@pytest.mark.parametrize(
    ("versions", "newest"), [(["v1beta1", "v1"], "v1"), (["v1alpha3", "v1beta2"], "v1beta2"), (["v2"], ""), ([], "")]
)
def test_it_is_the_newest_that_both_know(versions: list[str], newest: str) -> None:
    assert version_of([{"version": version} for version in versions]) == newest


@given(JSON)
def test_a_version_of_any_type_is_passed_over(value: Any) -> None:
    assert version_of([{"version": value}, {"version": ["v1"]}, {"version": "v1beta1"}]) in {"v1", "v1beta1", "v1beta2"}
