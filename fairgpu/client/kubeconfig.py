"""The bearer token of the kubeconfig's current user, made by its exec plugin where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException


class KubeconfigError(RuntimeError):
    """There is no kubeconfig, or no token in it; the message continues `FAIRGPU_TOKEN is not set and`."""


def current_token(environ: Mapping[str, str]) -> str:
    """The token.

    Raises:
        KubeconfigError: there is none.
    """
    named = environ.get("KUBECONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".kube" / "config")
    configuration = client.Configuration()
    try:
        config.load_kube_config(config_file=named, client_configuration=configuration)
        header = str(configuration.auth_settings().get("BearerToken", {}).get("value") or "")
    except (ConfigException, OSError) as error:
        raise KubeconfigError(f"no kubeconfig can be used: {str(error).rstrip('.')}") from error
    scheme, _, token = header.partition(" ")  # a password stands in the same place, as Basic
    if scheme != "Bearer" or not token:
        raise KubeconfigError(f"the current user of {named} has no token")
    return token
