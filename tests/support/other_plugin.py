"""A device plugin of another project, in this process: it offers slots, and allocates a device of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from nodeagent.kubelet import deviceplugin_pb2 as protocol
from nodeagent.kubelet.device_plugin import Offered, Server, Slots, register

DEVICE = "example.org/gpu=0"


class OtherServer(Server):
    """A plugin's server that allocates the same device to each container."""

    def _methods(self) -> dict[str, Any]:
        allocate = grpc.unary_unary_rpc_method_handler(
            lambda request, _context: _allocated(request),
            request_deserializer=protocol.AllocateRequest.FromString,
            response_serializer=protocol.AllocateResponse.SerializeToString,
        )
        return {**super()._methods(), "Allocate": allocate}


def _allocated(request: protocol.AllocateRequest) -> protocol.AllocateResponse:
    given = protocol.ContainerAllocateResponse(cdi_devices=[protocol.CDIDevice(name=DEVICE)])
    return protocol.AllocateResponse(container_responses=[given for _ in request.container_requests])


@contextmanager
def another_plugin(
    folder: Path, resource: str, slots: tuple[str, ...], endpoint: str = "foreign.sock"
) -> Iterator[None]:
    """Runs a plugin that has registered the resource with the kubelet of this folder, until the end of the block."""
    server = OtherServer(folder / endpoint, Slots(Offered(slots)), lambda _: None)
    try:
        register(folder, endpoint, resource)
        yield
    finally:
        server.close()
