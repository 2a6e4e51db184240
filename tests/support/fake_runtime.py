"""A container runtime's socket in this process, which states its configuration as containerd does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from nodeagent.runtime.cri_pb2 import StatusRequest, StatusResponse
from tests.support.waiting import LIMIT_S


@contextmanager
def runtime_with_cdi(path: Path, cdi_folder: Path) -> Iterator[None]:
    """Runs a runtime that applies the CDI specs of a folder, until the end of the block."""
    info = {"config": json.dumps({"enableCDI": True, "cdiSpecDirs": [str(cdi_folder)]})}
    answer = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: StatusResponse(info=info),
        request_deserializer=StatusRequest.FromString,
        response_serializer=StatusResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Status": answer})
    server.add_generic_rpc_handlers((handlers,))
    with _listening(server, path):
        yield


@contextmanager
def runtime_without_cri(path: Path) -> Iterator[None]:
    """Runs a gRPC server without any service, as containerd without its CRI plugin, until the end of the block."""
    with _listening(grpc.server(ThreadPoolExecutor(1)), path):
        yield


@contextmanager
def runtime_that_hangs(path: Path) -> Iterator[None]:
    """Runs a runtime that accepts connections and answers nothing, until the end of the block."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield
    path.unlink()


@contextmanager
def _listening(server: grpc.Server, path: Path) -> Iterator[None]:
    server.add_insecure_port(f"unix://{path}")
    server.start()
    try:
        yield
    finally:
        assert server.stop(grace=0).wait(LIMIT_S), "a question has not ended"
        path.unlink(missing_ok=True)
