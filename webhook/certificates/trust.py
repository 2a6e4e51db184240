"""Makes the API server trust the webhook: the bundle of CAs in both webhook configurations."""

from __future__ import annotations

import base64
from collections.abc import Callable

import structlog

from fairgpu import names
from fairgpu.cluster.api import JSON_PATCH, ApiError, Json, KubernetesAPI
from fairgpu.serving.tls import ChainError

_log = structlog.get_logger(__name__)

_GROUP = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = (
    f"{_GROUP}/mutatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}",
    f"{_GROUP}/validatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}",
)


def publisher(api: KubernetesAPI) -> Callable[[bytes], None]:
    """A function that puts a bundle into the configurations, where it is not there already.

    It raises ChainError where that cannot be done; a configuration that is missing is only told to the log, since
    without it nobody calls.
    """

    def publish(bundle: bytes) -> None:
        for path in CONFIGURATIONS:
            try:
                configuration = api.get(path)
                operations = changes(configuration, base64.b64encode(bundle).decode())
                if operations:
                    api.patch(path, operations, JSON_PATCH)
                    _log.info("CA bundle published", configuration=path)
            except ApiError as error:
                if error.not_found:
                    _log.warning("webhook configuration missing: no pod is admitted through it", configuration=path)
                elif not error.conflict:
                    raise ChainError(f"{path}: {error}") from error

    return publish


def changes(configuration: Json, bundle: str) -> list[Json]:
    """The JSON Patch that puts a bundle in base64 into every webhook of a configuration; empty if it is there."""
    operations: list[Json] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, webhook in enumerate(configuration.get("webhooks") or [])
        if webhook["clientConfig"].get("caBundle") != bundle
    ]
    if not operations:
        return []
    version = configuration["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]
