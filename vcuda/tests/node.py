"""A node with simulated GPUs, and containers on it: what the node agent does, for the tests of the shim."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"
SANITIZERS = [path for path in os.environ.get("VCUDA_TEST_PRELOAD", "").split(":") if path]
MIB = 1 << 20
OUT_OF_MEMORY = 2
DEVICE = struct.Struct("<48s96sQQQQIIII5Q")
CONFIG_SIZE = 4048
LEDGER_SIZE = 4 << 20
SLOTS_AT, SLOT_SIZE, SHARING_SIZE = 6528, 832, 192
SLOTS_USED_AT = 4096 + 128 + 3 * 8
HARD, ELASTIC, BEST_EFFORT = 0, 1, 2


def uuid(ordinal: int = 0) -> str:
    """The UUID of a simulated GPU, or of the real one that VCUDA_TEST_UUID names."""
    return os.environ.get("VCUDA_TEST_UUID") or f"GPU-53494d47-5055-0000-0000-{ordinal:012x}"


def machines_own() -> dict[str, str]:
    """Variables that decide which of the machine's own drivers and GPUs a program finds, and where the driver has its
    cache."""
    names = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HOME")
    return {name: os.environ[name] for name in names if name in os.environ}


def sealed(body: bytes) -> bytes:
    """The record with the CRC-32 of its bytes behind it."""
    return body + struct.pack("<I", zlib.crc32(body))


def seeded(number: int) -> random.Random:
    """One of the run's sequences of random choices, by number; `make test SEED=n` repeats a run."""
    return random.Random(f"{os.environ.get('FAIRGPU_SEED', '0')} {number}")


@dataclass(frozen=True)
class Share:
    """A container's part of one GPU."""

    memory: int = 1024 * MIB
    core: int = 100
    policy: int = HARD
    ordinal: int = 0
    context: int = 256 * MIB
    soft: int = 0
    slot: int = 0
    schedule: str = ""

    def packed(self) -> bytes:
        """As config.h lays it out."""
        key = 1000 + self.slot
        return DEVICE.pack(
            uuid(self.ordinal).encode(), self.schedule.encode(), self.memory, self.soft, self.context, key,
            self.slot, self.core, self.policy, 1, 0, 0, 0, 0, 0,
        )  # fmt: skip


@dataclass
class Container:
    """Files of one container, and programs run in it."""

    node: Node
    folder: Path
    shares: tuple[Share, ...]
    library: Path = Path(os.environ.get("VCUDA_TEST_LIBRARY", BUILD / "testing" / "libvcuda.so.1"))
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.ledger.write_bytes(b"")
        os.truncate(self.ledger, LEDGER_SIZE)
        self.config.write_bytes(self.packed())

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def usage(self) -> Path:
        return self.folder / "usage"

    def packed(self) -> bytes:
        """As config.h lays it out."""
        head = struct.pack("<8sIIII", b"FGCONFG", 1, CONFIG_SIZE, len(self.shares), 0)
        names = struct.pack("<64s40s96s96s", self.folder.name.encode(), b"uid", bytes(self.ledger), bytes(self.usage))
        devices = b"".join(share.packed() for share in self.shares)
        return sealed((head + names + devices).ljust(CONFIG_SIZE - 4, b"\0"))

    def environment(self) -> dict[str, str]:
        """With the shim before everything and the simulated driver found by name."""
        return {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": ":".join([*SANITIZERS, str(self.library)]),
            "ASAN_OPTIONS": "detect_leaks=0",
            **(machines_own() if self.node.driver is None else {"LD_LIBRARY_PATH": str(self.node.driver)}),
            "VCUDA_CONFIG": str(self.config),
            "SIMGPU_DIR": str(self.node.folder / "gpu"),
            "SIMGPU_LABEL": self.folder.name,
            "SIMGPU_CALL_COSTS": "0",
            **self.node.settings,
            **self.settings,
        }

    def put_on_a_virtual_clock(self) -> None:
        """From now on its programs run on a clock that only they move, and come out the same on a busy machine."""
        libraries = [*SANITIZERS, str(BUILD / "bench" / "virtual_time.so"), str(self.library)]
        self.settings |= {"VIRTUAL_TIME": str(self.node.folder / "clock"), "LD_PRELOAD": ":".join(libraries)}

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Starts a program with pipes to its input, output and errors."""
        pipe = subprocess.PIPE
        program = str(BUILD / "tests" / command[0])
        return subprocess.Popen(
            [program, *command[1:]], env=self.environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *lines: str) -> list[list[int]]:
        """Lets an actor do the lines and returns its answers."""
        actor = self.start("actor")
        out, errors = actor.communicate("".join(f"{line}\n" for line in lines), timeout=240)
        assert errors == "", errors
        return [[int(word) for word in line.split()] for line in out.splitlines()]

    @contextmanager
    def session(self) -> Iterator[Callable[[str], list[int]]]:
        """An actor that is asked one line at a time."""
        with ended(self.start("actor")) as actor:
            yield lambda line: asked(actor, line)

    def charged(self, device: int = 0) -> int:
        """Bytes charged now, as the node agent reads them in the ledger."""
        with self.ledger.open("rb") as ledger:
            return int.from_bytes(ledger.read(4096)[64 + 64 * device + 40 :][:8], "little")

    def unsettled(self, device: int = 0) -> int:
        """Bytes that some process is about to allocate or to free, by the slots that the ledger has used."""
        data = self.ledger.read_bytes()[SLOTS_AT : SLOTS_AT + 1024 * SLOT_SIZE]
        words = (data[at + 192 + 8 * device :][:8] for at in range(0, len(data), SLOT_SIZE))
        return sum(int.from_bytes(word, "little") for word in words)

    def living(self) -> int:
        """Processes that have a slot of the living in the ledger."""
        data = self.ledger.read_bytes()[SLOTS_AT : SLOTS_AT + 1024 * SLOT_SIZE]
        return sum(int.from_bytes(data[at:][:8], "little") == 1 for at in range(0, len(data), SLOT_SIZE))

    def slots_used(self) -> int:
        """Returns the number of slots of the ledger that were ever taken."""
        return int.from_bytes(self.ledger.read_bytes()[SLOTS_USED_AT:][:8], "little")

    def processes(self) -> frozenset[bytes]:
        """Returns the identities that its slots have or had last: one that ended empty leaves its slot free."""
        data = self.ledger.read_bytes()[SLOTS_AT : SLOTS_AT + 1024 * SLOT_SIZE]
        identities = (data[at + 8 :][:24] for at in range(0, len(data), SLOT_SIZE))
        return frozenset(each for each in identities if any(each))

    def shared(self, device: int = 0) -> tuple[int, int]:
        """Bytes that others may go on holding, and how many allocations of others are open, over all processes."""
        data = self.ledger.read_bytes()[SLOTS_AT + 1024 * SLOT_SIZE :][: 1024 * SHARING_SIZE]
        rows = [data[at:][:SHARING_SIZE] for at in range(0, len(data), SHARING_SIZE)]
        exported = sum(int.from_bytes(row[8 * device :][:8], "little") for row in rows)
        return exported, sum(int.from_bytes(row[128:][:8], "little", signed=True) for row in rows)


@dataclass
class Node:
    """A directory in which the simulated GPUs live; with no driver named, the machine's own GPU is used."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    driver: Path | None = BUILD / "simgpu" / "13"

    def container(self, name: str, *shares: Share, **settings: str) -> Container:
        """Makes a container's files; the settings are environment variables of its programs."""
        return Container(self, self.folder / name, shares or (Share(),), settings=settings)

    def truth(self, name: str, device: int = 0) -> tuple[int, int]:
        """Bytes that the GPU really holds for a container now, and the most that it ever held."""
        size = 64 + 8 * 8 * 2
        with (self.folder / "gpu" / "truth").open("rb") as truth:
            data = truth.read(32 + 64 * size)
        for group in range(64):
            at = 32 + group * size
            if data[at : at + 64].rstrip(b"\0") == name.encode():
                values = struct.unpack_from("<16Q", data, at + 64)
                return values[device], values[8 + device]
        raise KeyError(name)


def asked(actor: subprocess.Popen[str], line: str) -> list[int]:
    """Returns an actor's answer to one line."""
    assert actor.stdin is not None
    assert actor.stdout is not None
    actor.stdin.write(line + "\n")
    actor.stdin.flush()
    return [int(word) for word in actor.stdout.readline().split()]


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kills what is still running at the end."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def begin_at_once(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Waits until each says that it is ready, then lets all begin.

    Raises:
        RuntimeError: one ended instead; the message is what it said.
    """
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(process.communicate()[1])
    for process in processes:
        give_line(process)


def give_line(process: subprocess.Popen[str]) -> None:
    """Gives a program the line that it waits for to begin."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits for a condition to hold."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come about in time"
        time.sleep(0.01)
