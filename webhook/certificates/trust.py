"""The CAs in both webhook configurations, by which API servers trust the webhook's certificate."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from fairgpu import names
from fairgpu.certificates import published_bundle
from fairgpu.cluster.api import JSON_PATCH, ApiError, Json, KubernetesAPI
from fairgpu.serving.tls import ChainError

_log = structlog.get_logger(__name__)

_GROUP = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = (
    f"{_GROUP}/mutatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}",
    f"{_GROUP}/validatingwebhookconfigurations/{names.WEBHOOK_CONFIGURATION}",
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration of the API server as it was read.

    Attributes:
        path: the path of the configuration in the API.
        item: the configuration, as JSON.
    """

    path: str
    item: Json


class Trust(Protocol):
    """Reads and writes the CAs in FairGPU's webhook configurations, by which API servers trust the webhook's server."""

    def read(self) -> Sequence[Configuration]:
        """Returns the webhook configurations that exist, at most a mutating and a validating one.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Writes the CAs into webhook configurations; returns False if one of them has changed since it was read.

        Args:
            configurations: the configurations as they were read.
            bundle: the CAs, in PEM.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """


class Configurations:
    """Reads FairGPU's webhook configurations from the API server, and writes the webhook's CAs into them."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self) -> Sequence[Configuration]:
        """Returns the webhook configurations that exist; the API server calls no webhook through a missing one.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """
        return [item for path in CONFIGURATIONS if (item := self._read(path)) is not None]

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Writes the CAs into webhook configurations, one after the other.

        Stops and returns False at the first configuration that has changed since it was read: perhaps another process
        has published later CAs in it.

        Args:
            configurations: the configurations as they were read.
            bundle: the CAs, in PEM.

        Raises:
            ChainError: the API server refuses, or does not answer.
        """
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
            if error.outdated:
                return False
            raise ChainError(f"{path}: {error}") from error
        _log.info("CA bundle published", configuration=path)
        return True


class NoConfigurations:
    """Stands for the webhook configurations in standalone mode, where clients read the CA from the webhook's folder."""

    def read(self) -> Sequence[Configuration]:
        """Returns no webhook configurations."""
        return []

    def publish(self, configurations: Sequence[Configuration], bundle: bytes) -> bool:
        """Does nothing, and returns true."""
        del configurations, bundle
        return True


def published(configurations: Sequence[Configuration]) -> frozenset[bytes]:
    """Returns the different values of `caBundle` in the webhooks of some configurations, in PEM.

    A webhook without a `caBundle` counts as one with empty bytes.
    """
    webhooks = (webhook for each in configurations for webhook in each.item.get("webhooks") or [])
    return frozenset(published_bundle(webhook["clientConfig"].get("caBundle")) for webhook in webhooks)


def changes(configuration: Json, bundle: str) -> list[Json]:
    """Returns the JSON Patch that writes the CAs into every webhook of a configuration; empty if all have them.

    Args:
        configuration: the webhook configuration, as JSON. The patch fails if the API server has another version of it.
        bundle: the CAs, as PEM in base64.
    """
    operations: list[Json] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, webhook in enumerate(configuration.get("webhooks") or [])
        if webhook["clientConfig"].get("caBundle") != bundle
    ]
    if not operations:
        return []
    version = configuration["metadata"]["resourceVersion"]
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]
