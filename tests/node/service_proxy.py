"""The API server's Service as pods of the node reach it: in place of kube-proxy, for this one Service alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

SERVICE, PORT = "10.96.0.1", 443
"""The first address of the control plane's range of Services, which the API server takes for itself."""


@contextmanager
def api_server_service(port: int) -> Iterator[None]:
    """Sends what pods send to the Service to the API server's port on loopback."""
    subprocess.run(["ip", "address", "add", f"{SERVICE}/32", "dev", "lo"], check=True)
    listening: Future[Callable[[], object]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(port, listening)), name="api-server-service")
    thread.start()
    end = listening.result()
    try:
        yield
    finally:
        end()
        thread.join()
        subprocess.run(["ip", "address", "delete", f"{SERVICE}/32", "dev", "lo"], check=True)


async def _serve(port: int, listening: Future[Callable[[], object]]) -> None:
    """Forwards connections until the function that it gives to `listening` is called, from any thread."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(asyncio.CancelledError):  # at the end
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        inner_writer.close()
        writer.close()

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(connect, SERVICE, PORT)
    listening.set_result(lambda: loop.call_soon_threadsafe(ended.set))
    await ended.wait()
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
