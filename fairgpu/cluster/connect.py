"""Finds the API server and the credentials for it, as kubectl and pods do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.commands import CommandError


class NoClusterError(CommandError):
    """No API server is configured; the message names the places that were searched, and what to set."""


def connect(environ: Mapping[str, str], kubeconfig: Path | None = None) -> KubernetesAPI:
    """Returns a client of the API server.

    A kubeconfig that is named wins (the argument, else KUBECONFIG); then comes the service account of the pod that this
    process runs in, then `~/.kube/config`. The library reads tokens again as they rotate.

    Raises:
        NoClusterError: none of these exists, or a named one is invalid.
    """
    # The import takes a sixth of a service's start; a service without an API server does not need it.
    from kubernetes import client, config  # noqa: PLC0415 - see above
    from kubernetes.config.config_exception import ConfigException  # noqa: PLC0415 - as above

    configuration = client.Configuration()
    named = kubeconfig or (Path(environ["KUBECONFIG"]) if environ.get("KUBECONFIG") else None)
    try:
        if named is not None:
            config.load_kube_config(config_file=str(named), client_configuration=configuration)
        elif environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        looked = str(named) if named else "the pod's service account, then ~/.kube/config"
        raise NoClusterError(
            f"no Kubernetes API server: {error} (looked at {looked}; name one with KUBECONFIG)"
        ) from error
    return KubernetesAPI(client.ApiClient(configuration))
