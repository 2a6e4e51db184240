"""Finds out how the runtime gives devices to containers: by its own statement, and by each container's configuration.

containerd answers a verbose Status of the Container Runtime Interface with the configuration that it runs with, under
`config` (https://github.com/containerd/containerd/blob/main/docs/cri/config.md). The configuration says whether the
runtime applies CDI, and whether its default runtime gives GPUs by itself. If another runtime answers in another form,
or not at all, its configuration is unknown.

The proof that a container's CDI spec was applied is the OCI configuration that the container was made from. The runtime
keeps it on the host, where no container can change it. (A look into the container itself would prove nothing: a program
may change what is mounted in a namespace of its own.)
https://github.com/opencontainers/runtime-spec/blob/main/config.md#mounts
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from nodeagent.containers.records import Record
from nodeagent.runtime.cri_pb2 import StatusRequest, StatusResponse

SOCKET = Path("/run/containerd/containerd.sock")
LIMIT_SECONDS = 5.0
INJECTING = "nvidia-container-runtime"
"""The beginning of the names of NVIDIA's runtimes that read NVIDIA_VISIBLE_DEVICES; a mode may follow."""


SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""The statuses by which gRPC says that no server answered; containerd answers UNAVAILABLE until it has started
(https://grpc.io/docs/guides/status-codes/)."""


class RuntimeStatusError(Exception):
    """Raised if the container runtime does not say how it is configured; the message is gRPC's status and text.

    Attributes:
        answers: whether what listens at the runtime's socket answered with this error; false if there was no answer.
    """

    def __init__(self, message: str, *, answers: bool) -> None:
        super().__init__(message)
        self.answers = answers


@dataclass(frozen=True)
class RuntimeConfiguration:
    """The way in which the container runtime gives devices to containers, as it states itself.

    Attributes:
        applies_cdi: whether the runtime applies the CDI specs of the agent's folder; None if it does not say.
        injects: the name and the program of the default runtime, if that gives GPUs to containers by their
            environment; empty if it does not.
    """

    applies_cdi: bool | None = None
    injects: str = ""


class RuntimeStatus:
    """A client of the container runtime's gRPC API, which asks for its configuration. gRPC renews its connection."""

    def __init__(self, socket: Path = SOCKET) -> None:
        self._channel = grpc.insecure_channel(
            f"unix://{socket}", options=[("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0)]
        )
        self._status = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/Status",
            request_serializer=StatusRequest.SerializeToString,
            response_deserializer=StatusResponse.FromString,
        )

    def ask(self, cdi_folder: Path) -> RuntimeConfiguration:
        """Returns how the container runtime gives devices to containers.

        Args:
            cdi_folder: the folder of the agent's CDI specs.

        Raises:
            RuntimeStatusError: the runtime does not answer in time, or answers with an error.
        """
        try:
            answer = self._status(StatusRequest(verbose=True), timeout=LIMIT_SECONDS)
        except grpc.RpcError as error:
            answers = error.code() not in SILENT
            raise RuntimeStatusError(f"{error.code().name}: {error.details()}", answers=answers) from error
        return configuration(answer.info, cdi_folder)

    def close(self) -> None:
        """Closes the connection to the container runtime."""
        self._channel.close()


def configuration(info: Mapping[str, str], cdi_folder: Path) -> RuntimeConfiguration:
    """Returns how the container runtime gives devices to containers, read from its verbose Status.

    If the Status is not of containerd's form, the answer is `RuntimeConfiguration()`: nothing is known.

    Args:
        info: the entry `info` of the Status.
        cdi_folder: the folder of the agent's CDI specs.
    """
    try:
        config = json.loads(info["config"])
        enabled, folders = config["enableCDI"], [_plain(Path(folder)) for folder in config["cdiSpecDirs"]]
    except (ValueError, KeyError, TypeError):
        return RuntimeConfiguration()
    return RuntimeConfiguration(bool(enabled) and _plain(cdi_folder) in folders, _injecting(config.get("containerd")))


def _plain(folder: Path) -> str:
    """Returns a folder's path without a leading /var, to compare paths: /var/run is a link to /run."""
    return str(folder).removeprefix("/var")


def _injecting(containerd: Any) -> str:
    try:
        name = str(containerd["defaultRuntimeName"])
        program = str(containerd["runtimes"][name]["options"]["BinaryName"])
    except (KeyError, TypeError):
        return ""
    return f"{name} ({program})" if Path(program).name.startswith(INJECTING) else ""


PROOFS = ("/etc/vcuda/config", "/etc/vcuda/whole")
"""The files of which the CDI spec of each container mounts one: with a shim the first, without one the second."""
SYS_ADMIN = "CAP_SYS_ADMIN"
SANDBOX_UID = "io.kubernetes.cri.sandbox-uid"
CONTAINER_NAME = "io.kubernetes.cri.container-name"
LARGEST = 16 << 20


def running(records: Iterable[Record], pods: Iterable[Mapping[str, Any]]) -> dict[str, Record]:
    """Returns the records of the containers that run now, keyed by the container's id in the runtime."""
    ids = {
        (str(pod["metadata"]["uid"]), str(status["name"])): str(status["containerID"]).rpartition("/")[2]
        for pod in pods
        for key in ("containerStatuses", "initContainerStatuses")
        for status in pod.get("status", {}).get(key) or []
        if "running" in (status.get("state") or {}) and status.get("containerID")
    }
    keyed = ((ids.get((record.uid, record.container)), record) for record in records)
    return {each: record for each, record in keyed if each}


def is_applied(bundles: Path, container_id: str) -> bool | None:
    """Returns whether a container was made with its CDI spec; None if no readable configuration of it is there.

    Args:
        bundles: the folder in which the runtime keeps the OCI configuration of each container.
        container_id: the container's id in the runtime.
    """
    try:
        return bool(_proof(_bundle(bundles, container_id)))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _proof(document: Any) -> str:
    """Returns the host's path of the file that a container's OCI configuration mounts at one of PROOFS.

    The path is empty if the configuration mounts no file there: the container was then made without its CDI spec.

    Raises:
        AttributeError, TypeError: the document has another form.
    """
    mounts = document.get("mounts") or []
    return next((str(mount.get("source")) for mount in mounts if mount.get("destination") in PROOFS), "")


def administers(bundles: Path, container_id: str) -> bool:
    """Returns whether a container was made with CAP_SYS_ADMIN on the host, as a privileged one is.

    It is false if the runtime keeps no configuration of the container. The capabilities that the kernel shows of a
    process prove no such right: in a user namespace of its own any program may have all of them.

    Args:
        bundles: the folder in which the runtime keeps the OCI configuration of each container.
        container_id: the container's id in the runtime.
    """
    try:
        document = _bundle(bundles, container_id)
        kinds = [each["type"] for each in document["linux"]["namespaces"]]
        return SYS_ADMIN in document["process"]["capabilities"]["bounding"] and "user" not in kinds
    except (OSError, ValueError, TypeError, KeyError):
        return False


Holder = tuple[str, str]
"""A pod's uid, and the name of its container."""


def made_for(bundles: Path, container_id: str) -> tuple[Holder, str] | None:
    """Returns the pod and name of a container that the runtime has made, and the start whose CDI spec it was made with.

    containerd writes the pod's uid and the container's name into each configuration as annotations
    (https://github.com/containerd/containerd/blob/v1.7.0/pkg/cri/annotations/annotations.go).

    Returns:
        The pod's uid and the container's name, which is empty for a pod's sandbox; and the folder of that start, which
        is empty if no CDI spec of the agent was used. None if the runtime's configuration cannot be read yet.

    Args:
        bundles: the folder in which the runtime keeps the OCI configuration of each container.
        container_id: the container's id in the runtime.
    """
    try:
        document = _bundle(bundles, container_id)
        said, proof = document["annotations"], _proof(document)
        return (str(said[SANDBOX_UID]), str(said.get(CONTAINER_NAME, ""))), proof.rpartition("/")[0]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


class Made:
    """Finds the containers that the runtime has made and that have not ended; reads each one's configuration once.

    The runtime removes the configuration once the container has ended: containerd first gives its folder a name that
    begins with a dot. Without configurations of containerd's form none is found. Any thread may call the methods.
    """

    def __init__(self, bundles: Path) -> None:
        self._bundles = bundles
        self._lock = threading.Lock()  # of several starts at a time, one alone reads the new configurations
        self._known: dict[str, tuple[Holder, str]] = {}
        """The answers of `made_for`, keyed by the container's id in the runtime."""

    def look(self) -> frozenset[Holder]:
        """Returns the pod's uid and the name of each container of which the runtime keeps a configuration.

        The name is empty for a pod's sandbox.
        """
        return frozenset(holder for holder, _ in self._look())

    def starts(self) -> frozenset[str]:
        """Returns the folder of each start by whose CDI spec the runtime has made a container.

        A container that was made without a CDI spec of the agent adds an empty text.
        """
        return frozenset(start for _, start in self._look())

    def _look(self) -> list[tuple[Holder, str]]:
        with self._lock:
            try:
                ids = [each for each in os.listdir(self._bundles) if not each.startswith(".")]  # noqa: PTH208 - names alone
            except OSError:
                ids = []
            found = ((each, self._known.get(each) or made_for(self._bundles, each)) for each in ids)
            self._known = {each: made for each, made in found if made is not None}
            return list(self._known.values())


def _bundle(bundles: Path, container_id: str) -> Any:
    """Returns the OCI configuration of a container.

    Raises:
        OSError, ValueError: the runtime keeps none, or one that is no JSON.
    """
    with (bundles / container_id / "config.json").open("rb") as file:
        return json.loads(file.read(LARGEST))


class Bundles:
    """Checks once for each container whether the runtime made it with its CDI spec; its OCI configuration says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._proved: frozenset[str] = frozenset()
        self.failed = False
        """Whether any container was made without its CDI spec since the agent started."""

    def look(self, records: Iterable[Record], pods: Iterable[Mapping[str, Any]]) -> list[Record]:
        """Returns the records of running containers that were made without their CDI specs.

        A container is in the answer of one call only. A container whose OCI configuration cannot be read is checked at
        the next call.

        Args:
            records: the records of all containers of the node.
            pods: the node's pods, which show what runs.
        """
        here = running(records, pods)
        applied_by_id = {each: is_applied(self._folder, each) for each in here.keys() - self._proved}
        looked_at = frozenset(each for each, applied in applied_by_id.items() if applied is not None)
        self._proved = (self._proved & here.keys()) | looked_at
        new = [here[each] for each, applied in applied_by_id.items() if applied is False]
        self.failed = self.failed or bool(new)
        return new
