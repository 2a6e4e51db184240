"""Finds the API server and the credentials for it, as kubectl and pods do."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.commands import CommandError

if TYPE_CHECKING:
    from kubernetes import client


_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SAME_CONTEXT = "kubectl and fairgpu ask the API server of the kubeconfig's current context"
_HINTS = {
    0: f"\nLook whether `kubectl get --raw /version` answers: {_SAME_CONTEXT}",
    401: "\nThe API server does not know you: log in anew, until `kubectl auth whoami` names you",
}
"""Advice, keyed by the status of the API server's answer; 0 stands for none."""
MOST_KEPT_CONNECTIONS = 64
"""The most connections to the API server that are kept for later requests."""


class NoClusterError(CommandError):
    """No API server is configured, or its configuration is invalid; the message says why, and what to set."""


class UnreadableClusterError(CommandError):
    """A command cannot read the cluster; the message says why, and what to look at."""


class KubeconfigError(Exception):
    """A kubeconfig is missing, or cannot be used; the message says why."""


def connect(environ: Mapping[str, str], kubeconfig: Path | None = None) -> KubernetesAPI:
    """Returns a client of the API server.

    A kubeconfig that is named wins (the argument, else KUBECONFIG); then comes the service account of the pod that this
    process runs in, then `~/.kube/config`. The Kubernetes library reads tokens again as they rotate.

    Args:
        environ: the environment of the process, which may name a kubeconfig in KUBECONFIG.
        kubeconfig: the kubeconfig to use; None if none is named.

    Raises:
        NoClusterError: the kubeconfig or the service account that counts is missing or invalid.
    """
    # The import takes a sixth of a service's start; a service without an API server does not need it.
    from kubernetes import client, config  # noqa: PLC0415 - see above

    named = kubeconfig or (Path(environ["KUBECONFIG"]) if environ.get("KUBECONFIG") else None)
    is_in_pod = named is None and bool(environ.get("KUBERNETES_SERVICE_HOST"))
    try:
        if is_in_pod:
            configuration = _configured(config.load_incluster_config)
        else:
            configuration = read_kubeconfig(None if named is None else str(named))
    except KubeconfigError as error:
        looked = "the pod's service account" if is_in_pod else named or "~/.kube/config"
        raise NoClusterError(
            f"no Kubernetes API server: {error} (looked at {looked}; KUBECONFIG names another one)"
        ) from error
    return KubernetesAPI(client.ApiClient(configuration))


def unreadable(error: ApiError, what: str, rights: str = "") -> UnreadableClusterError:
    """Returns the error with which a command ends if it cannot read the cluster: why, and what to look at.

    Args:
        error: the API server's refusal, or its silence.
        what: the objects that the command wanted to read, such as `nodes and pods`.
        rights: the rights that the command needs; shown if the API server forbids the request.
    """
    hint = f"\n{rights}" if rights and error.status == HTTPStatus.FORBIDDEN else _HINTS.get(error.status, "")
    said = error if error.status == 0 else error.message
    return UnreadableClusterError(f"{what} cannot be read: {said}{hint}")


def namespace_of_context(environ: Mapping[str, str]) -> str:
    """Returns the namespace that kubectl takes without `-n`: that of the kubeconfig's current context.

    In a pod without KUBECONFIG, it is the pod's namespace. It is `default` if the context names no namespace, or if the
    kubeconfig cannot be read; `connect` reports the unreadable kubeconfig.

    Args:
        environ: the environment of the process, which may name a kubeconfig in KUBECONFIG.
    """
    from kubernetes import config  # noqa: PLC0415 - as in connect

    named = environ.get("KUBECONFIG")
    if not named and environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            return _POD_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
        except OSError:
            return "default"
    try:
        _, active = config.list_kube_config_contexts(named or None)
        return str(active["context"].get("namespace") or "default")
    except Exception:  # noqa: BLE001 - the library does not check what it reads, and connect states the fault
        return "default"


def read_kubeconfig(file: str | None) -> client.Configuration:
    """Returns the address of the API server and the credentials that a kubeconfig gives.

    The exec plugin of the kubeconfig's current user is run, if the user has one.

    Args:
        file: the kubeconfig's path; None for `~/.kube/config`.

    Raises:
        KubeconfigError: the file is missing or cannot be used, or its exec plugin makes no credentials.
    """
    from kubernetes import config  # noqa: PLC0415 - as in connect

    said = _LibraryErrors()
    logging.getLogger().addFilter(said)
    try:
        configuration = _configured(
            lambda client_configuration: config.load_kube_config(file, None, client_configuration)
        )
    except KubeconfigError as error:
        raise KubeconfigError(_missing(file) or str(error)) from error
    finally:
        logging.getLogger().removeFilter(said)
    if said.errors:
        raise KubeconfigError(_plugin_error(file, said.errors[0]))
    return configuration


class _LibraryErrors(logging.Filter):
    """Collects in `errors` the errors that the Kubernetes library only logs, before it goes on without credentials."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Stores the message of an error, and returns false for it: no handler gets it."""
        if record.levelno < logging.ERROR:
            return True
        self.errors.append(record.getMessage())
        return False


def _missing(file: str | None) -> str:
    """Returns what is missing of a kubeconfig, the file or its current context, as a message; empty if both exist.

    The message says what to do. For a file that cannot be read, the message is empty.

    Args:
        file: the kubeconfig's path; None for `~/.kube/config`.
    """
    from kubernetes.config import kube_config  # noqa: PLC0415 - as in connect

    named = file or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    if not any(Path(one).expanduser().exists() for one in named.split(os.pathsep) if one):
        return "there is no kubeconfig"
    try:
        merged: Any = kube_config.KubeConfigMerger(named).config
        contexts = [str(one["name"]) for one in merged["contexts"]]
        current = merged.safe_get("current-context")
    except Exception:  # noqa: BLE001 - the library does not check what it reads; its own error stands
        return ""
    if current in contexts:
        return ""
    allowed = ", ".join(contexts) or "none: the file has no context"
    return f"current-context: given {current or 'nothing'}; allowed: {allowed}; write `kubectl config use-context NAME`"


def _plugin_error(file: str | None, reason: str) -> str:
    """Returns a message about a kubeconfig's exec plugin: its field and command, why it fails, and what to do.

    Args:
        file: the kubeconfig's path; None for `~/.kube/config`.
        reason: the library's message.
    """
    from kubernetes.config import kube_config  # noqa: PLC0415 - as in connect

    merged: Any = kube_config.KubeConfigMerger(file or kube_config.KUBE_CONFIG_DEFAULT_LOCATION).config
    name = merged["contexts"].get_with_name(merged["current-context"])["context"]["user"]
    plugin = merged["users"].get_with_name(name)["user"]["exec"]
    command, field = plugin.safe_get("command"), f"users[name={name}].user.exec"
    if reason.startswith("[Errno "):  # Linux's reason why the program does not start
        return (
            f"{field}.command is {command!r}, a program that cannot be started ({reason}): install it, or write its "
            "full path"
        )
    return (
        f"{field} runs {command!r}, which gives no credentials ({reason.removeprefix('exec: ')}): log in anew, until "
        "`kubectl get --raw /version` answers"
    )


def _configured(load: Callable[..., object]) -> client.Configuration:
    from kubernetes import client  # noqa: PLC0415 - as in connect
    from kubernetes.config.config_exception import ConfigException  # noqa: PLC0415 - as in connect
    from yaml import YAMLError  # noqa: PLC0415 - as in connect

    configuration = client.Configuration()
    # The library keeps five for each CPU, and each further request at once would open one of its own.
    configuration.connection_pool_maxsize = MOST_KEPT_CONNECTIONS
    try:
        load(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise KubeconfigError(str(error).rstrip(".")) from error
    except (YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The library does not check what it reads: these are its faults at a file that is no YAML or has other fields.
        # Only YAML's own faults say where in the file they are.
        place = f": {error}" if isinstance(error, YAMLError) else ""
        raise KubeconfigError(
            f"the file is no kubeconfig{place}; allowed: YAML with the lists clusters, contexts and users"
        ) from error
    return configuration
