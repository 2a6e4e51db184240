"""Asks the kubelet which containers hold which slots, through its PodResources API, v1.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import grpc

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from nodeagent.kubelet.shared import Shared

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIMIT_SECONDS = 5.0
LARGEST_ANSWER = 16 << 20
"""The kubelet's own bound on a message (k8s.io/kubernetes/pkg/kubelet/apis/podresources, defaultMaxMsgSize)."""


class KubeletError(Exception):
    """Raised if the kubelet does not answer; the message contains gRPC's."""


class PodResources:
    """A client of the kubelet's PodResources API, which lists the containers with devices.

    It has one connection, which gRPC renews. Starts that wait at the same time share an answer: of a kubelet of a
    hundred pods each takes more than a millisecond of a processor, and as long again to read.
    """

    def __init__(self, socket: Path = SOCKET) -> None:
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=[
                ("grpc.max_receive_message_length", LARGEST_ANSWER),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.enable_http_proxy", 0),
            ],
        )
        self._list = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=ListPodResourcesRequest.SerializeToString,
            response_deserializer=ListPodResourcesResponse.FromString,
        )
        self._listings: dict[str, Shared[list[Listed] | KubeletError]] = {}

    def listing(self, resource: str) -> list[Listed]:
        """Returns every container of the node that holds slots of an extended resource; callers share the list.

        Args:
            resource: the resource's name, such as `fairgpu.io/gpu`.

        Raises:
            KubeletError: the kubelet does not answer in time, which is LIMIT_SECONDS, or twice as long if an earlier
                question is on its way.
        """
        shared = self._listings.setdefault(resource, Shared(partial(self._asked, resource)))
        answer = shared.answer()
        if isinstance(answer, KubeletError):
            raise KubeletError(str(answer)) from answer
        return answer

    def _asked(self, resource: str) -> list[Listed] | KubeletError:
        try:
            answer = self._list(ListPodResourcesRequest(), timeout=LIMIT_SECONDS)
        except grpc.RpcError as error:
            return KubeletError(f"the kubelet's PodResources: {error}")
        return listed(answer, resource)

    def close(self) -> None:
        """Closes the connection to the kubelet."""
        self._channel.close()


def listed(answer: ListPodResourcesResponse, resource: str) -> list[Listed]:
    """Returns the containers in an answer of the PodResources API that hold slots of an extended resource.

    Args:
        answer: the answer, in which each container has one entry a device.
    """
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            slots = frozenset(
                slot for entry in container.devices if entry.resource_name == resource for slot in entry.device_ids
            )
            if slots:
                found.append(Listed(pod.namespace, pod.name, container.name, slots))
    return found
