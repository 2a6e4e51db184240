"""Asks the kubelet for the containers that hold slots, through its PodResources API, v1.

https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet.podresources_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIMIT_SECONDS = 5.0
TOO_MANY = "rejected by rate limit"
"""The error of a kubelet that gets more than 10 questions at once or 100 a second, questions of other programs included
(k8s.io/kubernetes, pkg/kubelet/apis/podresources, DefaultQPS and DefaultBurstTokens)."""
AGAIN_SECONDS = 0.02
"""The time after which a refused question is sent again. The kubelet takes two questions in this time."""
LARGEST_ANSWER = 16 << 20
"""The kubelet's own bound on a message (k8s.io/kubernetes/pkg/kubelet/apis/podresources, defaultMaxMsgSize)."""


T = TypeVar("T")


class KubeletError(Exception):
    """Raised if the kubelet does not answer or refuses; the message contains gRPC's."""


class Shared(Generic[T]):
    """Shares answers between threads, so that fewer questions are asked.

    One question is asked at a time. Its answer serves all callers that came before it was sent.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        """Begins without an answer; `ask` sends the question and returns its answer.

        An exception of `ask` reaches the caller whose question it was; the others ask again.
        """
        self._ask = ask
        self._changed = threading.Condition()
        self._sent = 0
        """The number of questions that were sent; one that is on its way has this number."""
        self._answers: list[tuple[int, T]] = []
        """The number and the answer of the last question that was answered; empty before the first."""
        self._asking = False

    def answer(self) -> T:
        """Returns the answer to a question that was sent after this call began, by this caller or another.

        So the answer is not older than the call.
        """
        with self._changed:
            wanted = self._sent + 1
            while True:
                if self._answers and self._answers[0][0] >= wanted:
                    return self._answers[0][1]
                if not self._asking:
                    break
                self._changed.wait()
            self._asking = True
            self._sent = number = self._sent + 1
        try:
            answer = self._ask()
            with self._changed:
                self._answers = [(number, answer)]
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()
        return answer


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
            KubeletError: the kubelet refuses, does not answer within LIMIT_SECONDS of the question, or takes no
                question in that time. A caller also waits for the answer to an earlier question, if one is on its way.
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
        resource: the name of the extended resource.
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
