"""A kubelet's sockets in this process: it takes registrations, calls plugins back, and lists the containers of a test.

It speaks the real protocol, and treats two plugins of one resource as the kubelet does: it asks the one that registered
last, follows the slots of both, and stops the one that it asks when a call to either ends (k8s.io/kubernetes,
pkg/kubelet/cm/devicemanager). tests/node tests with a real kubelet what this one does not do.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from nodeagent.containers.resolving import Listed
from nodeagent.kubelet import deviceplugin_pb2 as plugins
from nodeagent.kubelet import podresources_pb2 as resources
from nodeagent.kubelet.device_plugin import CHECKPOINT
from tests.support.waiting import LIMIT_S

POD_RESOURCES = "pod-resources.sock"
"""The name of the socket of the kubelet's PodResources API."""


class FakeKubelet:
    """Listens on both of a kubelet's sockets, registration and PodResources, while it is entered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[plugins.RegisterRequest] = []
        self.refuse = ""
        self.before_register: Callable[[], None] = lambda: None
        """Called before a plugin that registers takes the place of the one before."""
        self.containers: Sequence[Listed] = ()
        self.takes_list: Callable[[], bool] = lambda: True
        """Returns whether one more question for the list is within the limit."""
        self.healthy: dict[str, frozenset[str]] = {}
        self._changing = threading.Lock()
        self._quick = threading.Event()
        self._quick.set()
        self._server: grpc.Server | None = None
        self._calls: list[Any] = []
        self._is_over = False
        self._followers: dict[str, threading.Thread] = {}
        self._allocated: list[dict[str, Any]] = []

    @property
    def pod_resources(self) -> Path:
        return self.folder / POD_RESOURCES

    def __enter__(self) -> Self:
        for path in self.folder.glob("*.sock"):  # as a kubelet that starts does
            path.unlink()
        self._is_over = False
        self._server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=plugins.RegisterRequest.FromString,
            response_serializer=plugins.Empty.SerializeToString,
        )
        listing = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=resources.ListPodResourcesRequest.FromString,
            response_serializer=resources.ListPodResourcesResponse.SerializeToString,
        )
        services = {"v1beta1.Registration": {"Register": register}, "v1.PodResourcesLister": {"List": listing}}
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items())
        )
        self._server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        self._server.add_insecure_port(f"unix://{self.pod_resources}")
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._server is not None
        stopped = self._server.stop(grace=0).wait(LIMIT_S)
        with self._changing:
            self._is_over = True
        self._quick.set()
        self.end_calls()
        followers = list(self._followers.values())
        for follower in followers:
            follower.join(LIMIT_S)
        assert stopped, "a registration has not ended"
        assert not any(follower.is_alive() for follower in followers), "a plugin's slots are still followed"

    def end_calls(self) -> None:
        """Ends the calls by which the slots of plugins are followed."""
        with self._changing:
            calls, self._calls = self._calls, []
        for call in calls:
            call.cancel()

    def admit(self, uid: str, container: str, resource: str, *slots: str) -> None:
        """Has the plugin that registered last allocate slots to a container; the checkpoint file gets its answer."""
        with self.plugin() as plugin:
            (answer,) = plugin.allocate(slots)
        response = plugins.ContainerAllocateResponse(cdi_devices=[plugins.CDIDevice(name=name) for name in answer])
        entry = {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {"-1": list(slots)},
            "AllocResp": base64.b64encode(response.SerializeToString()).decode(),
        }
        with self._changing:
            self._allocated.append(entry)
            self._write(self.healthy)

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Asks no plugin that registers for its slots before the end of the block."""
        self._quick.clear()
        try:
            yield
        finally:
            self._quick.set()

    def plugin(self) -> PluginClient:
        """Returns a client of the plugin that registered last, with the calls that the kubelet makes."""
        return PluginClient(self.folder / self.registered[-1].endpoint)

    def _register(self, request: plugins.RegisterRequest, context: grpc.ServicerContext) -> plugins.Empty:
        if self.refuse:
            context.abort(grpc.StatusCode.UNKNOWN, self.refuse)
        self.before_register()
        before = self._followers.pop(request.endpoint, None)
        if before is not None:
            before.join(LIMIT_S)  # the plugin has ended that call; noted any later, its end would stop the new one
            assert not before.is_alive(), "the plugin registers while its call of before goes on"
        self.registered.append(request)
        arguments = (request.endpoint, request.resource_name)
        follower = threading.Thread(target=self._follow, args=arguments, daemon=True)
        self._followers[request.endpoint] = follower
        follower.start()
        return plugins.Empty()

    def _follow(self, endpoint: str, resource: str) -> None:
        """Stores a plugin's slots until its call ends; then the resource has none, from this plugin or another."""
        self._quick.wait()
        with PluginClient(self.folder / endpoint) as plugin:
            call = plugin.devices()
            with self._changing:
                self._calls.append(call)
                if self._is_over:  # the calls of before have been ended: none ends this one
                    call.cancel()
            with contextlib.suppress(grpc.RpcError):
                for answer in call:
                    self._keep(resource, frozenset(each.ID for each in answer.devices if each.health == "Healthy"))
        self._keep(resource, frozenset(), written=False)

    def _keep(self, resource: str, slots: frozenset[str], *, written: bool = True) -> None:
        """Stores the slots of a resource; if `written`, first writes the file in which the kubelet keeps them."""
        with self._changing:
            healthy = {**self.healthy, resource: slots}
            if written:
                self._write(healthy)
            # A test that sees the slots relies on the file.
            self.healthy = healthy

    def _write(self, healthy: dict[str, frozenset[str]]) -> None:
        known = {name: sorted(each) for name, each in healthy.items()}
        new = self.folder / "checkpoint.new"
        data = {"PodDeviceEntries": self._allocated or None, "RegisteredDevices": known}
        new.write_text(json.dumps({"Data": data}))
        new.rename(self.folder / CHECKPOINT)

    def _list(self, _request: object, context: grpc.ServicerContext) -> resources.ListPodResourcesResponse:
        """Answers with an entry for each slot of a container, and with one of another resource; refuses past the limit.

        The limit is that of `takes_list`.
        """
        if not self.takes_list():
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return resources.ListPodResourcesResponse(
            pod_resources=[
                resources.PodResources(
                    name=each.pod,
                    namespace=each.namespace,
                    containers=[
                        resources.ContainerResources(
                            name=each.container,
                            devices=[
                                resources.ContainerDevices(resource_name="fairgpu.io/gpu", device_ids=[slot])
                                for slot in sorted(each.slots)
                            ]
                            + [resources.ContainerDevices(resource_name="example.com/nic", device_ids=["slot-1"])],
                        )
                    ],
                )
                for each in self.containers
            ]
        )


class PluginClient:
    """The kubelet's calls to a device plugin."""

    def __init__(self, socket: Path) -> None:
        self.channel = grpc.insecure_channel(f"unix://{socket}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.channel.close()

    def options(self) -> plugins.DevicePluginOptions:
        return self._call("GetDevicePluginOptions", plugins.Empty(), plugins.DevicePluginOptions)

    def devices(self) -> Any:
        """Returns the stream of the plugin's lists of devices, until it is cancelled."""
        return self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=plugins.Empty.SerializeToString,
            response_deserializer=plugins.ListAndWatchResponse.FromString,
        )(plugins.Empty())

    def allocate(self, *containers: Sequence[str]) -> list[list[str]]:
        """Returns the names of the CDI devices of each container, given its slots."""
        requests = [plugins.ContainerAllocateRequest(devices_ids=slots) for slots in containers]
        answer = self._call("Allocate", plugins.AllocateRequest(container_requests=requests), plugins.AllocateResponse)
        return [[device.name for device in each.cdi_devices] for each in answer.container_responses]

    def pre_start(self, *slots: str) -> None:
        """Calls PreStartContainer with a container's slots; raises grpc.RpcError with the plugin's text if refused."""
        request = plugins.PreStartContainerRequest(devices_ids=slots)
        self._call("PreStartContainer", request, plugins.PreStartContainerResponse)

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=60)
