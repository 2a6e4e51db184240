"""Keeps pairs as Secrets of type kubernetes.io/tls, and shows the authority's certificate in a ConfigMap."""

from __future__ import annotations

import base64
import binascii

from fairgpu import names
from fairgpu.certificates import Pair
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from timekeeper.tls.authority import AUTHORITY, Kept, VaultError

SECRETS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/secrets"
CONFIG_MAPS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps"
CERTIFICATE_KEY = "ca.crt"
"""The key of the ConfigMap that holds the authority's certificate, in PEM."""


class ClusterVault:
    """Secrets of FairGPU's own namespace."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api

    def read(self, name: str) -> Kept | None:
        """The pair in a Secret."""
        try:
            secret = self._api.get(f"{SECRETS}/{name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise VaultError(str(error)) from error
        data = secret.get("data") or {}
        try:
            pair = Pair(base64.b64decode(data.get("tls.crt", "")), base64.b64decode(data.get("tls.key", "")))
        except (binascii.Error, TypeError) as error:
            raise VaultError(f"Secret {name}: {error}") from error
        return Kept(pair, str(secret["metadata"]["resourceVersion"]))

    def create(self, name: str, pair: Pair) -> bool:
        """Makes a Secret."""
        try:
            self._api.create(SECRETS, _secret(name, pair))
        except ApiError as error:
            if error.conflict:
                return False
            raise VaultError(str(error)) from error
        return True

    def replace(self, name: str, pair: Pair, version: str) -> bool:
        """Replaces a Secret of that resourceVersion."""
        secret = _secret(name, pair)
        secret["metadata"]["resourceVersion"] = version
        try:
            self._api.replace(f"{SECRETS}/{name}", secret)
        except ApiError as error:
            if error.conflict or error.not_found:
                return False
            raise VaultError(str(error)) from error
        return True

    def publish(self, certificate_pem: bytes) -> None:
        """Writes the ConfigMap, unless it holds this certificate; it is read each time, since anybody may delete it."""
        wanted = certificate_pem.decode("ascii")
        try:
            if self._shown() != wanted:
                self._show({"data": {CERTIFICATE_KEY: wanted}})
        except ApiError as error:
            raise VaultError(str(error)) from error

    def _shown(self) -> object:
        try:
            return (self._api.get(f"{CONFIG_MAPS}/{AUTHORITY}").get("data") or {}).get(CERTIFICATE_KEY)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def _show(self, data: Json) -> None:
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": AUTHORITY}, **data}
        try:
            self._api.create(CONFIG_MAPS, body)
        except ApiError as error:
            if not error.conflict:
                raise
            self._api.patch(f"{CONFIG_MAPS}/{AUTHORITY}", data)


def _secret(name: str, pair: Pair) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "data": {
            "tls.crt": base64.b64encode(pair.certificate_pem).decode("ascii"),
            "tls.key": base64.b64encode(pair.key_pem).decode("ascii"),
        },
    }
