"""The webhook's CA and certificate are kept by a process of their own, with rights that the webhook lacks."""

from __future__ import annotations

import base64

import pytest

from fairgpu.certificates import serves
from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.journey.test_continuity import CONFIGURATION, creating
from tests.cluster.services.everything import Services
from tests.support.waiting import wait_until
from webhook.certificates.authority import certificates_in
from webhook.certificates.trust import CONFIGURATIONS

SECRETS = "/api/v1/namespaces/fairgpu-system/secrets"


def secret(plane: ControlPlane, name: str) -> dict[str, bytes]:
    data = plane.admin.api.get(f"{SECRETS}/{name}")["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def bundle(plane: ControlPlane) -> bytes:
    return base64.b64decode(plane.admin.api.get(CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"])


@pytest.mark.usefixtures("services")
def test_an_installation_keeps_the_key_of_the_authority_apart_from_the_certificate(control_plane: ControlPlane) -> None:
    leaf, trusted = secret(control_plane, "fairgpu-webhook-tls"), bundle(control_plane)
    assert set(leaf) == {"tls.crt", "tls.key"}
    assert "ca.key" in secret(control_plane, "fairgpu-webhook-ca")
    names = ["fairgpu-webhook.fairgpu-system.svc"]
    assert any(serves(leaf["tls.crt"], authority, names) for authority in certificates_in(trusted))
    for path in CONFIGURATIONS:
        webhooks = control_plane.admin.api.get(path)["webhooks"]
        assert all(webhook["clientConfig"]["caBundle"] for webhook in webhooks)


@pytest.mark.usefixtures("services")
def test_the_webhooks_own_token_reads_no_secret_and_patches_no_configuration(control_plane: ControlPlane) -> None:
    webhook = control_plane.service_account("fairgpu-system", "fairgpu-webhook").api
    for path in (SECRETS, f"{SECRETS}/fairgpu-webhook-tls", f"{SECRETS}/fairgpu-webhook-ca"):
        with pytest.raises(ApiError, match="is forbidden") as refusal:
            webhook.get(path)
        assert refusal.value.status == 403
    for path in CONFIGURATIONS:
        with pytest.raises(ApiError, match="is forbidden") as refusal:
            webhook.patch(path, {"metadata": {"labels": {"mine": "yes"}}})
        assert refusal.value.status == 403


def test_a_lost_authority_is_replaced_and_costs_no_pod(
    control_plane: ControlPlane, namespace: str, services: Services
) -> None:
    wait_until(lambda: len(services.webhook.ready) == 2, "both replicas take reviews")
    before = secret(control_plane, "fairgpu-webhook-ca")["ca.key"]
    with creating(control_plane.namespace_admin(namespace), namespace) as creations:
        wait_until(lambda: creations.whole, "pods are created")
        lost = certificates_in(bundle(control_plane))
        control_plane.admin.api.delete(f"{SECRETS}/fairgpu-webhook-ca")
        wait_until(lambda: not set(lost) & set(certificates_in(bundle(control_plane))), "another authority is trusted")
    assert secret(control_plane, "fairgpu-webhook-ca")["ca.key"] != before
    assert (creations.failed, creations.unmutated) == ([], [])
