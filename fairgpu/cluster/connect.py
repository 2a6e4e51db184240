"""Finds the API server and the credentials for it, as kubectl and pods do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairgpu.cluster.api import KubernetesAPI


class NoClusterError(RuntimeError):
    """No API server can be named; the message says where was looked and what to set."""


def connect(environ: Mapping[str, str], kubeconfig: Path | None = None) -> KubernetesAPI:
    """A client for the API server.

    A kubeconfig that is named wins (the argument, else KUBECONFIG), then the account of the pod that this process
    runs in, then `~/.kube/config`. Tokens are read again by the library as they rotate.

    Raises:
        NoClusterError: none of these is there, or one that is named cannot be used.
    """
    # A sixth of what a service takes to start, for which one without an API server has no use.
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
