"""Claims of Dynamic Resource Allocation as the webhook knows them: the ones that are for no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.existing import Existing
from webhook.cache.admission_cache import AdmissionCache
from webhook.cache.watches import CLAIM_TEMPLATES, CLAIMS, ClaimsView

GPU, NIC = "gpu.nvidia.com", "nic.example.com"


def claim(name: str, *requests: dict[str, Any], template: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": list(requests)}}
    return {"metadata": {"namespace": "team-a", "name": name}, "spec": {"spec": spec} if template else spec}


def seen(*items: dict[str, Any], kind: str = CLAIMS) -> AdmissionCache:
    cache = AdmissionCache()
    view = ClaimsView(cache, kind, Existing().device_classes)
    view.replaced([view.read(item) for item in items])
    return cache


@pytest.mark.parametrize(
    ("request_of", "is_gpu"),
    [
        ({"exactly": {"deviceClassName": GPU}}, True),
        ({"exactly": {"deviceClassName": NIC}}, False),
        ({"deviceClassName": GPU}, True),
        ({"deviceClassName": NIC}, False),
        ({"firstAvailable": [{"deviceClassName": NIC}, {"deviceClassName": GPU}]}, True),
        ({"exactly": {"deviceClassName": GPU, "adminAccess": True}}, False),
        ({}, False),
    ],
)
def test_the_class_of_each_request_says_whether_a_claim_is_for_a_gpu(request_of: Any, *, is_gpu: bool) -> None:
    others = seen(claim("one", request_of)).knowledge.other_claims

    assert others == (frozenset() if is_gpu else {("team-a", "one", None)})


def test_claims_and_templates_are_told_apart_by_the_field_that_names_them() -> None:
    cache = AdmissionCache()
    for kind in (CLAIMS, CLAIM_TEMPLATES):
        view = ClaimsView(cache, kind, Existing().device_classes)
        nic = claim("nic", {"exactly": {"deviceClassName": NIC}}, template=kind == CLAIM_TEMPLATES)
        view.replaced([view.read(nic)])

    assert cache.knowledge.other_claims == {("team-a", "nic", None), ("team-a", None, "nic")}


def test_a_claim_that_is_deleted_is_unknown_again() -> None:
    cache = AdmissionCache()
    view = ClaimsView(cache, CLAIMS, Existing().device_classes)
    nic = view.read(claim("nic", {"exactly": {"deviceClassName": NIC}}))
    view.changed("ADDED", nic)
    assert cache.knowledge.other_claims
    view.changed("MODIFIED", nic)
    view.changed("DELETED", nic)

    assert not cache.knowledge.other_claims
