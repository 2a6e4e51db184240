"""Serves one extended resource to the kubelet: its slots, CDI devices for containers, and a call before each start.

The protocol is the kubelet's device plugin API, v1beta1 (https://kubernetes.io/docs/concepts/extend-kubernetes/
compute-storage-net/device-plugins/). The kubelet connects back to a socket that the plugin registers; a kubelet that
restarts removes all sockets in its folder and knows no plugin until each has registered again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from nodeagent.containers.cdi_name import device_name, qualified
from nodeagent.kubelet import deviceplugin_pb2 as protocol
from nodeagent.kubelet.pod_resources import KubeletError

VERSION = "v1beta1"
FOLDER = Path("/var/lib/kubelet/device-plugins")
KUBELET_SOCKET = "kubelet.sock"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
THREADS = 32
"""The threads that serve the kubelet, which starts many containers at once; each start may wait for an allocation."""
REGISTER_SECONDS = 5.0
LOOK_SECONDS = 1.0

Prepare = Callable[[frozenset[str]], None]
"""Prepares a container's files before it starts, by its slots; the kubelet shows the text of its exception."""


@dataclass(frozen=True)
class Offered:
    """The ids of slots, and whether the kubelet may give free slots to containers."""

    ids: tuple[str, ...] = ()
    open: bool = True


class Slots:
    """The slots that are offered to the kubelet. Each call of ListAndWatch follows them and gets each change."""

    def __init__(self, offered: Offered) -> None:
        self._changed = threading.Condition()
        self._offered = offered
        self._version = 0

    def replace(self, offered: Offered) -> None:
        """Offers these slots from now on."""
        with self._changed:
            if self._offered != offered:
                self._offered = offered
                self._version += 1
                self._changed.notify_all()

    def wake(self) -> None:
        """Wakes all calls that follow the slots, so that each checks whether it is to end."""
        with self._changed:
            self._changed.notify_all()

    def follow(self, goes_on: Callable[[], bool]) -> Iterator[Offered]:
        """Yields the present slots, and again after each change, for as long as the caller continues."""
        seen = -1
        while goes_on():
            with self._changed:
                while self._version == seen and goes_on():
                    self._changed.wait()
                seen, offered = self._version, self._offered
            if goes_on():
                yield offered


class Server:
    """A device plugin on its socket, until it is closed."""

    def __init__(self, socket: Path, slots: Slots, prepare: Prepare) -> None:
        self.socket = socket
        self._slots = slots
        self._prepare = prepare
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="device-plugin")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", self._methods()),)
        )
        socket.unlink(missing_ok=True)
        if self._server.add_insecure_port(f"unix://{socket}") == 0:
            raise OSError(f"{socket} cannot be listened on")
        self._server.start()

    def close(self) -> None:
        """Ends all calls and removes the socket."""
        self._closed.set()
        self._slots.wake()
        self._server.stop(grace=1.0).wait()
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
        context.add_callback(self._slots.wake)
        for offered in self._slots.follow(lambda: context.is_active() and not self._closed.is_set()):
            health = HEALTHY if offered.open else UNHEALTHY
            devices = [protocol.Device(ID=each, health=health) for each in offered.ids]
            yield protocol.ListAndWatchResponse(devices=devices)

    def _pre_start(
        self, request: protocol.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> protocol.PreStartContainerResponse:
        try:
            self._prepare(frozenset(request.devices_ids))
        except Exception as error:  # noqa: BLE001 - whatever it is: the container is not to start, and its pod says why
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return protocol.PreStartContainerResponse()


def allocated(request: protocol.AllocateRequest) -> protocol.AllocateResponse:
    """Returns one CDI device for each container, named after the container's slots.

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
    """Registers with the kubelet a plugin that already listens on `folder/endpoint`.

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
    wait: Callable[[float], bool],
    attempted: Callable[[KubeletError | OSError | None], None],
) -> None:
    """Serves the plugin, and registers it with each kubelet that starts, until `wait` returns true.

    Args:
        folder: the folder with the sockets of the kubelet and its plugins.
        endpoint: the name of the plugin's socket.
        resource: the resource whose units the slots are.
        slots: the slots that are offered.
        prepare: called before each start of a container.
        wait: sleeps between looks, and ends the loop.
        attempted: called with None after each registration, and with the error after each failure.
    """
    server: Server | None = None
    known: tuple[int, int] | None = None
    try:
        while True:
            there = _identity(folder / KUBELET_SOCKET)
            if there is not None and (there != known or server is None or not server.socket.exists()):
                try:
                    if server is not None:
                        server.close()
                        server = None
                    server = Server(folder / endpoint, slots, prepare)
                    register(folder, endpoint, resource)
                    known = there
                    attempted(None)
                except (KubeletError, OSError) as error:
                    known = None
                    attempted(error)
            if wait(LOOK_SECONDS):
                return
    finally:
        if server is not None:
            server.close()


def _identity(socket: Path) -> tuple[int, int] | None:
    """Returns the identity of a socket, which a restarted kubelet creates anew; None where there is none."""
    try:
        status = socket.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
