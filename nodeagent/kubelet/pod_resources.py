"""Asks the kubelet for the containers that hold slots, through its PodResources API, v1.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import grpc

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from nodeagent.kubelet.shared import Shared

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIMIT_SECONDS = 5.0
TOO_MANY = "rejected by rate limit"
"""The kubelet's answer beyond 10 questions at once and 100 a second, those of other programs of the node among them
(k8s.io/kubernetes, pkg/kubelet/apis/podresources, DefaultQPS and DefaultBurstTokens)."""
AGAIN_SECONDS = 0.02
"""The time after which such a question is asked again: the kubelet takes two in it."""
LARGEST_ANSWER = 16 << 20
"""The kubelet's own bound on a message (k8s.io/kubernetes/pkg/kubelet/apis/podresources, defaultMaxMsgSize)."""


class KubeletError(Exception):
    """Raised if the kubelet does not answer or refuses; the message contains gRPC's."""


class PodResources:
    """A client of the kubelet's PodResources API, which lists the containers with devices.

    It has one connection, which gRPC renews. Starts that wait at the same time share an answer: the kubelet limits the
    questions, and each takes a millisecond of a processor where it has a hundred pods.
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
            KubeletError: the kubelet does not answer within LIMIT_SECONDS of the question, or takes none in that time.
                A caller also waits for the answer to an earlier question, if one is on its way.
        """
        shared = self._listings.setdefault(resource, Shared(partial(self._asked, resource)))
        answer = shared.answer()
        if isinstance(answer, KubeletError):
            raise KubeletError(str(answer)) from answer
        return answer

    def _asked(self, resource: str) -> list[Listed] | KubeletError:
        limit = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                return listed(self._list(ListPodResourcesRequest(), timeout=LIMIT_SECONDS), resource)
            except grpc.RpcError as error:
                if error.details() != TOO_MANY or time.monotonic() >= limit:
                    return KubeletError(f"the kubelet's PodResources: {error}")
            time.sleep(AGAIN_SECONDS)

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
