"""A TCP balancer on loopback that sends connections to the replicas that say they are ready.

It stands in for a Service with kube-proxy: replicas are probed at /readyz, a new connection goes to the next ready one,
and connections that are open stay with the replica that they went to.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import threading
from collections.abc import Iterator, Sequence

from tests.support.waiting import LIMIT_S

PROBE_SECONDS = 0.2
PROBE_LIMIT_SECONDS = 15.0
CONNECT_LIMIT_SECONDS = 15.0


class Balancer:
    """Listens on one port for a fixed set of replicas' ports, all on 127.0.0.1."""

    def __init__(self, port: int, replicas: Sequence[int]) -> None:
        self.port = port
        self._replicas = tuple(replicas)
        self._ready: tuple[int, ...] = ()
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"balancer-{port}", daemon=True)
        self._listening = threading.Event()

    @property
    def ready(self) -> tuple[int, ...]:
        """The replicas that new connections go to now."""
        return self._ready

    def start(self) -> None:
        self._thread.start()
        if not self._listening.wait(LIMIT_S):
            raise TimeoutError(f"the balancer does not listen on {self.port}")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        probing = [self._loop.create_task(self._probe(replica)) for replica in self._replicas]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for task in {*probing, *asyncio.all_tasks(self._loop)}:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self._loop), return_exceptions=True))
        self._loop.close()

    async def _probe(self, replica: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the kubelet's probes
        while True:
            ready = await _answers_ready(replica, context)
            others = tuple(port for port in self._ready if port != replica)
            self._ready = (*others, replica) if ready else others
            await asyncio.sleep(PROBE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = await self._connect()
        if upstream is None:
            writer.transport.abort()
            return
        upstream_reader, upstream_writer = upstream
        try:
            await asyncio.gather(_pump(reader, upstream_writer), _pump(upstream_reader, writer))
        finally:
            upstream_writer.transport.abort()
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The next ready replica that takes the connection."""
        ready = self._ready
        for _ in ready:
            port = ready[next(self._turn) % len(ready)]
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_LIMIT_SECONDS):
                    return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


async def _answers_ready(port: int, context: ssl.SSLContext) -> bool:
    try:
        async with asyncio.timeout(PROBE_LIMIT_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]


@contextlib.contextmanager
def balancing(port: int, replicas: Sequence[int]) -> Iterator[Balancer]:
    """A balancer for the length of a with statement."""
    balancer = Balancer(port, replicas)
    balancer.start()
    try:
        yield balancer
    finally:
        balancer.stop()
