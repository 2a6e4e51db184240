"""Serves one extended resource to the kubelet: its slots, CDI devices for containers, and a call before each start.

The protocol is the kubelet's device plugin API, v1beta1 (https://kubernetes.io/docs/concepts/extend-kubernetes/
compute-storage-net/device-plugins/). The kubelet connects back to a socket that the plugin registers; a kubelet that
restarts removes all sockets in its folder and knows no plugin until each has registered again.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fairgpu.keeping import Wait
from nodeagent.containers.cdi_name import device_name, qualified
from nodeagent.kubelet import deviceplugin_pb2 as protocol
from nodeagent.kubelet.pod_resources import KubeletError
from nodeagent.kubelet.registration import (
    Holder,
    Identity,
    Look,
    Loss,
    Registration,
    foreign_slots,
    is_due,
    loss,
    observed,
    registered,
)

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
"""The name of the file in which the kubelet keeps what its plugins offer and have allocated (k8s.io/kubernetes,
pkg/kubelet/cm/devicemanager/checkpoint)."""
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
THREADS = 32
"""The threads that serve the kubelet, which starts many containers at once; each start may wait for an allocation."""
REGISTER_SECONDS = 5.0
LOOK_SECONDS = 1.0
GRACE_SECONDS = 1.0
"""The time in which calls may end when the plugin closes; then gRPC cancels them."""
LONGEST_STOP_SECONDS = 10.0
"""The longest wait for gRPC's end, which has no limit of its own. After it, the plugin registers again."""

Prepare = Callable[[frozenset[str]], object]
"""A function that prepares a container's files before it starts, given the ids of its slots. If it raises an exception,
of whatever type, the container does not start, and the kubelet shows the exception's text at the pod."""


@dataclass(frozen=True)
class Offered:
    """The slots that the device plugin offers to the kubelet.

    Attributes:
        ids: the ids of the slots.
        open: whether the kubelet may give free slots to containers.
    """

    ids: tuple[str, ...] = ()
    open: bool = True


class Slots:
    """The slots that are offered to the kubelet now. After a change, open calls ListAndWatch get the latest ones."""

    def __init__(self, offered: Offered) -> None:
        self._changed = threading.Condition()
        self._offered = offered
        self._version = 0

    def replace(self, offered: Offered) -> None:
        """Offers these slots from now on, in place of the earlier ones."""
        with self._changed:
            if self._offered != offered:
                self._offered = offered
                self._version += 1
                self._changed.notify_all()

    @property
    def offered(self) -> Offered:
        """The slots that are offered to the kubelet now."""
        with self._changed:
            return self._offered

    def wake(self) -> None:
        """Wakes all calls of the kubelet that follow the slots, so that each checks whether it is to end."""
        with self._changed:
            self._changed.notify_all()

    def follow(self, goes_on: Callable[[], bool]) -> Iterator[Offered]:
        """Yields the slots that are offered now, and again after each change; of several fast changes, only the last.

        Args:
            goes_on: returns whether to continue; checked after each change and each `wake`.
        """
        seen = -1
        while goes_on():
            with self._changed:
                while self._version == seen and goes_on():
                    self._changed.wait()
                seen, offered = self._version, self._offered
            if goes_on():
                yield offered


class Server:
    """A gRPC server on a Unix socket that answers the kubelet's calls to the device plugin, until it is closed.

    Raises:
        OSError: the socket cannot be listened on.
    """

    def __init__(self, socket: Path, slots: Slots, prepare: Prepare) -> None:
        self.socket = socket
        self._slots = slots
        self._prepare = prepare
        self._closed = threading.Event()
        self._counting = threading.Lock()
        self._followers = 0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="device-plugin")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", self._methods()),)
        )
        socket.unlink(missing_ok=True)
        try:
            self._server.add_insecure_port(f"unix://{socket}")
        except RuntimeError as error:  # gRPC's error if its C core cannot bind
            raise OSError(f"{socket} cannot be listened on: {error}") from error
        self._server.start()

    @property
    def is_followed(self) -> bool:
        """Whether the kubelet has a call ListAndWatch open, by which it follows the slots."""
        with self._counting:
            return self._followers > 0

    def close(self) -> None:
        """Ends all calls of the kubelet, and removes the socket."""
        self._closed.set()
        self._slots.wake()
        self._server.stop(GRACE_SECONDS).wait(LONGEST_STOP_SECONDS)
        self._pool.shutdown(wait=False)
        self.socket.unlink(missing_ok=True)

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: protocol.DevicePluginOptions(pre_start_required=True),
                request_deserializer=protocol.Empty.FromString,
                response_serializer=protocol.DevicePluginOptions.SerializeToString,
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=protocol.Empty.FromString,
                response_serializer=protocol.ListAndWatchResponse.SerializeToString,
            ),
            "Allocate": grpc.unary_unary_rpc_method_handler(
                lambda request, _context: allocated(request),
                request_deserializer=protocol.AllocateRequest.FromString,
                response_serializer=protocol.AllocateResponse.SerializeToString,
            ),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(
                self._pre_start,
                request_deserializer=protocol.PreStartContainerRequest.FromString,
                response_serializer=protocol.PreStartContainerResponse.SerializeToString,
            ),
        }

    def _watch(
        self, _request: protocol.Empty, context: grpc.ServicerContext
    ) -> Iterator[protocol.ListAndWatchResponse]:
        if context.add_callback(self._ended):
            with self._counting:
                self._followers += 1
        for offered in self._slots.follow(lambda: context.is_active() and not self._closed.is_set()):
            health = HEALTHY if offered.open else UNHEALTHY
            devices = [protocol.Device(ID=each, health=health) for each in offered.ids]
            yield protocol.ListAndWatchResponse(devices=devices)

    def _ended(self) -> None:
        with self._counting:
            self._followers -= 1
        self._slots.wake()

    def _pre_start(
        self, request: protocol.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> protocol.PreStartContainerResponse:
        try:
            self._prepare(frozenset(request.devices_ids))
        except Exception as error:  # noqa: BLE001 - whatever it is: the container is not to start, and its pod says why
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return protocol.PreStartContainerResponse()


def allocated(request: protocol.AllocateRequest) -> protocol.AllocateResponse:
    """Returns the answer to the kubelet's call Allocate: one CDI device for each container, named after its slots.

    The slots identify the container, since the kubelet's request does not name it.
    """
    return protocol.AllocateResponse(
        container_responses=[
            protocol.ContainerAllocateResponse(
                cdi_devices=[protocol.CDIDevice(name=qualified(device_name(container.devices_ids)))]
            )
            for container in request.container_requests
        ]
    )


def register(folder: Path, endpoint: str, resource: str) -> None:
    """Registers the device plugin with the kubelet. The plugin must already listen on its socket.

    Args:
        folder: the folder with the sockets of the kubelet and its plugins.
        endpoint: the name of the plugin's socket in the folder.
        resource: the name of the extended resource that the plugin offers.

    Raises:
        KubeletError: the kubelet does not answer, or refuses.
    """
    request = protocol.RegisterRequest(
        version=VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=protocol.DevicePluginOptions(pre_start_required=True),
    )
    with grpc.insecure_channel(f"unix://{folder / KUBELET_SOCKET}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=protocol.RegisterRequest.SerializeToString,
            response_deserializer=protocol.Empty.FromString,
        )
        try:
            call(request, timeout=REGISTER_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            raise KubeletError(f"the kubelet's registration of device plugins: {error}") from error


def keep_registered(  # noqa: PLR0913 - what a plugin is made of
    folder: Path,
    endpoint: str,
    resource: str,
    slots: Slots,
    prepare: Prepare,
    *,
    wait: Wait,
    attempted: Callable[[KubeletError | OSError | None], None],
    looked: Callable[[Loss | None], None] = lambda _: None,
    shown: Callable[[], tuple[bool, str]] = lambda: (True, ""),
    replaced: Callable[[], None] = lambda: None,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Serves the device plugin, and registers it with each kubelet that starts, until `wait` returns true.

    Args:
        folder: the folder with the sockets of the kubelet and its plugins.
        endpoint: the name of the plugin's socket in the folder.
        resource: the name of the extended resource that the plugin offers.
        slots: the slots that are offered, which are the units of the resource.
        prepare: called with the ids of a container's slots before each of its starts. It refuses a start by an
            exception of any type, whose text the kubelet shows at the pod.
        wait: called with LOOK_SECONDS between two looks; returns true once the plugin is to end.
        attempted: called with None after each registration, and with the error after each failure.
        looked: called every LOOK_SECONDS with the reason why the kubelet does not ask this plugin, or None if it does.
        shown: returns whether the Node shows the slots that are offered, and when the kubelet last wrote the Node's
            status, as a text.
        replaced: called after a registration, if the kubelet's file shows that another plugin was perhaps asked until
            then. It is not called if `looked` last got Loss.TAKEN, which says so already.
        now: returns seconds of a monotonic clock.
    """
    server: Server | None = None
    registration = Registration()
    checkpoint = Checkpoint(folder / CHECKPOINT, resource)
    try:
        while True:
            is_shown, written = shown()
            look = Look(
                _identity(folder / KUBELET_SOCKET),
                server is not None and server.socket.exists(),
                server is not None and server.is_followed,
                is_shown,
                foreign_slots(checkpoint.slots()),
                written,
                checkpoint.answered_by_others(),
            )
            registration = observed(registration, look, now())
            lost = loss(registration, look, now())
            looked(lost)
            if look.kubelet is not None and lost is not None and is_due(registration, lost, now()):
                if server is not None:
                    server.close()
                    server = None
                    # A kubelet that notes the end of its call after the registration would stop the new endpoint.
                    if look.kubelet == registration.kubelet and wait(LOOK_SECONDS):
                        return
                try:
                    server = Server(folder / endpoint, slots, prepare)
                    register(folder, endpoint, resource)
                    # Until now the kubelet may have asked another plugin. Its file may show that no more: the kubelet
                    # writes it as soon as it has this plugin's slots.
                    was_another_there = bool(look.foreign or look.answered)
                    look = replace(
                        look, foreign=foreign_slots(checkpoint.slots()), answered=checkpoint.answered_by_others()
                    )
                    registration = registered(registration, look, lost, now())
                    attempted(None)
                    if lost is not Loss.TAKEN and (was_another_there or look.foreign or look.answered):
                        replaced()
                except (KubeletError, OSError) as error:
                    registration = Registration(at_seconds=now())
                    attempted(error)
            if wait(LOOK_SECONDS):
                return
    finally:
        if server is not None:
            server.close()


class Checkpoint:
    """The kubelet's checkpoint file, which lists the slots and allocations of its device plugins.

    The kubelet writes the file after each list of slots and each allocation. A missing file, or one of an unknown form,
    counts as empty. While the file cannot be read, the content that was read last counts.
    """

    def __init__(self, path: Path, resource: str) -> None:
        self._path = path
        self._resource = resource
        self._read: Identity | None = None
        self._slots: tuple[str, ...] = ()
        self._others: frozenset[Holder] = frozenset()

    def slots(self) -> tuple[str, ...]:
        """Returns the ids of the resource's healthy slots in the file; none before the kubelet has written them."""
        self._renew()
        return self._slots

    def answered_by_others(self) -> frozenset[Holder]:
        """Returns the pod's uid and the container's name for each container whose slots another plugin allocated.

        The kubelet's file has the answer to each call Allocate; an answer of another plugin differs from that of
        `allocated`.
        """
        self._renew()
        return self._others

    def _renew(self) -> None:
        there = _identity(self._path)
        if there == self._read:
            return
        try:
            content = self._path.read_bytes() if there is not None else b""
        except OSError:
            return  # as where this process has no descriptor left: it is read again at the next look
        self._read, self._slots, self._others = there, (), frozenset()
        try:
            data = json.loads(content)["Data"]
            self._slots = tuple(map(str, (data["RegisteredDevices"] or {}).get(self._resource) or ()))
            entries = [each for each in data["PodDeviceEntries"] or () if each["ResourceName"] == self._resource]
            self._others = frozenset(
                (str(each["PodUID"]), str(each["ContainerName"])) for each in entries if not _is_ours(each)
            )
        except (ValueError, KeyError, TypeError, AttributeError, DecodeError):
            return


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Returns whether this plugin made an allocation that is in the kubelet's file.

    It did if the answer to Allocate, which the file has, names the CDI device of the allocation's slots. The entry is a
    PodDevicesEntry of the kubelet's checkpoint.go.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, DecodeError: the entry has another form.
    """
    slots = [str(each) for ids in entry["DeviceIDs"].values() for each in ids]
    answer = protocol.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"] or ""))
    return [device.name for device in answer.cdi_devices] == [qualified(device_name(slots))]


def _identity(path: Path) -> Identity | None:
    """Returns a file's inode and time of change; None without a file. A restarted kubelet's socket has others."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
