"""The bundle of CAs in both webhook configurations, by which API servers trust the webhook."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
UNPROCESSABLE = 422
"""The status of the API server's answer to a JSON Patch whose `test` fails."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration as it was read from a path of the API."""

    path: str
    item: Json


class Trust(Protocol):
    """The configurations that trust the webhook's authorities."""

    def read(self) -> Sequence[Configuration]:
        """Returns the configurations as they are; raises ChainError."""

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Writes a bundle into configurations that are still as they were read.

        Returns False where one of them has changed since; raises ChainError.
        """


class Configurations:
    """The webhook configurations of an API server."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self) -> Sequence[Configuration]:
        """Returns the configurations that exist: the API server calls no webhook through a missing one."""
        return [item for path in CONFIGURATIONS if (item := self._read(path)) is not None]

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Patches each one that is still as it was read: another process may have published a later bundle."""
        encoded = base64.b64encode(bundle).decode()
        for configuration in configurations:
            operations = changes(configuration.item, encoded)
            if operations and not self._patch(configuration.path, operations):
                return False
        return True

    def _read(self, path: str) -> Configuration | None:
        try:
            return Configuration(path, self._api.get(path))
        except ApiError as error:
            if error.not_found:
                _log.warning("webhook configuration missing: no pod is admitted through it", configuration=path)
                return None
            raise ChainError(f"{path}: {error}") from error

    def _patch(self, path: str, operations: list[Json]) -> bool:
        try:
            self._api.patch(path, operations, JSON_PATCH)
        except ApiError as error:
            if error.conflict or error.not_found or error.status == UNPROCESSABLE:
                return False
            raise ChainError(f"{path}: {error}") from error
        _log.info("CA bundle published", configuration=path)
        return True


class NoConfigurations:
    """Replaces the configurations in standalone mode, where clients read the CA from the webhook's folder."""

    def read(self) -> Sequence[Configuration]:
        """Returns no configurations."""
        return []

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Does nothing."""
        del configurations, bundle
        return True


def published(configurations: Sequence[Configuration]) -> frozenset[bytes]:
    """Returns the bundles of all webhooks of configurations; empty bytes for a webhook without one."""
    webhooks = (webhook for each in configurations for webhook in each.item.get("webhooks") or [])
    return frozenset(_decoded(webhook["clientConfig"].get("caBundle")) for webhook in webhooks)


def changes(configuration: Json, bundle: str) -> list[Json]:
    """Returns the JSON Patch that puts a base64 bundle into every webhook of a configuration; empty if all have it."""
    operations: list[Json] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, webhook in enumerate(configuration.get("webhooks") or [])
        if webhook["clientConfig"].get("caBundle") != bundle
    ]
    if not operations:
        return []
    version = configuration["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]


def _decoded(bundle: object) -> bytes:
    try:
        return base64.b64decode(bundle) if isinstance(bundle, str) else b""
    except binascii.Error:
        return b""
