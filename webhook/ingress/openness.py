"""Whether the webhook's NetworkPolicy lets everybody connect, for the metric that says so."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI

_log = structlog.get_logger(__name__)

POLICY = f"/apis/networking.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/networkpolicies/{names.WEBHOOK_SERVICE}"
CHECK_SECONDS = 300.0
EVERYWHERE = ("0.0.0.0/0", "::/0")


def is_open(policy: Json | None) -> bool:
    """Whether any rule for ingress lets in every address; so does a policy that is not there."""
    if policy is None:
        return True
    spec = policy.get("spec") or {}
    if "Ingress" not in (spec.get("policyTypes") or ["Ingress"]):
        return True
    return any(_lets_all_in(rule) for rule in spec.get("ingress") or [])


def follow(api: KubernetesAPI, told: Callable[[bool], None], wait: Callable[[float], bool]) -> None:
    """Tells whether the policy is open, until `wait` says that everything is to end."""
    while True:
        try:
            told(is_open(_read(api)))
        except ApiError as error:
            _log.warning("network policy not read", policy=POLICY, error=str(error))
        if wait(CHECK_SECONDS):
            return


def _read(api: KubernetesAPI) -> Json | None:
    try:
        return api.get(POLICY)
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _lets_all_in(rule: Json) -> bool:
    peers = rule.get("from") or []
    return not peers or any((peer.get("ipBlock") or {}).get("cidr") in EVERYWHERE for peer in peers)
