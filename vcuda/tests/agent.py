"""The smallest writer of a schedule page that the shim's tests can do with: fixed turns, memory read from the truth."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node import Node, uuid

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

SIZE = 7296
HEAD = struct.Struct("<8sIIQQ")
BODY = struct.Struct("<QQQIIII48s")
SLOT = struct.Struct("<QQQQQIIIIQQQ")
TURN = struct.Struct("<IIII")
PERIOD_NS = 50_000_000


@dataclass(frozen=True)
class Tenant:
    """One container on the page: `turns` are (start, length) in ns within the period."""

    name: str
    slot: int
    turns: tuple[tuple[int, int], ...] = ((0, PERIOD_NS),)
    limit: int = 0
    core: int = 100
    policy: int = 0
    trim_permille: int = 0


class Agent:
    """Writes one GPU's page every few milliseconds, from a thread of its own, while it is entered.

    On a simulated GPU time passes when somebody calls it. With `drives`, that is the agent, as a node's calls NVML.
    """

    def __init__(self, node: Node, path: Path, *tenants: Tenant, drives: bool = False) -> None:
        self.node, self.path, self.tenants, self.drives = node, path, tenants, drives
        self.generation = 0
        self.done = threading.Event()
        path.touch()
        os.truncate(path, SIZE)
        with path.open("r+b") as file:
            self.page = mmap.mmap(file.fileno(), SIZE)
        self.write()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done.set()
        self.thread.join()

    def work(self) -> None:
        with self.driven() as drive:
            while not self.done.wait(0.01):
                drive()
                self.write()

    @contextmanager
    def driven(self) -> Iterator[Callable[[], object]]:
        """Yields a function that lets time pass on the simulated GPU."""
        if not self.drives:
            yield lambda: None
            return
        with self.node.container(f"{self.path.name}-agent").session() as ask:
            ask("init")
            yield lambda: ask("total 0")

    def slot(self, tenant: Tenant) -> bytes:
        """As schedule.h lays it out, with what the driver holds for the container now; the time is taken before."""
        sampled = time.monotonic_ns()
        try:
            held = self.node.truth(tenant.name)[0]
        except (KeyError, FileNotFoundError):
            held = 0
        share = sum(length for _, length in tenant.turns) * 1000 // PERIOD_NS
        return SLOT.pack(
            1000 + tenant.slot,
            tenant.limit,
            held,
            sampled,
            0,
            tenant.core,
            share,
            tenant.policy,
            1,
            tenant.trim_permille,
            0,
            0,
        )

    def write(self) -> None:
        """One writing by the protocol: odd, body, checksum, even."""
        slots, turns = [bytes(SLOT.size)] * 64, [bytes(TURN.size)] * 128
        for tenant in self.tenants:
            slots[tenant.slot] = self.slot(tenant)
        packed = [TURN.pack(t.slot, start, length, 0) for t in self.tenants for start, length in t.turns]
        turns[: len(packed)] = packed
        now = time.monotonic_ns()
        head = BODY.pack(
            now, 1_000_000_000, now // PERIOD_NS * PERIOD_NS, PERIOD_NS, len(packed), 64, len(self.tenants),
            uuid().encode(),
        )  # fmt: skip
        body = head + b"".join(slots) + b"".join(turns) + bytes(4)
        self.generation += 2
        self.page[:32] = HEAD.pack(b"FGSCHED", 1, SIZE, self.generation - 1, 0)
        self.page[32:] = body + struct.pack("<I", zlib.crc32(body))
        self.page[16:24] = struct.pack("<Q", self.generation)
