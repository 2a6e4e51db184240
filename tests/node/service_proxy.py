"""The API server's Service as pods of the node reach it: in place of kube-proxy, for this one Service alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SERVICE, PORT = "10.96.0.1", 443
"""The first address of the control plane's range of Services, which the API server takes for itself."""


@contextmanager
def api_server_service(port: int) -> Iterator[None]:
    """Sends what pods send to the Service to the API server's port on loopback."""
    subprocess.run(["ip", "address", "add", f"{SERVICE}/32", "dev", "lo"], check=True)
    loop = asyncio.new_event_loop()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    server = loop.run_until_complete(asyncio.start_server(connect, SERVICE, PORT))
    thread = threading.Thread(target=loop.run_forever, name="api-server-service", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        subprocess.run(["ip", "address", "delete", f"{SERVICE}/32", "dev", "lo"], check=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
