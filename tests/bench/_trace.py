"""The public trace on which placement is measured, read from its address or from a folder; both by digest.

It is the trace of Alibaba's GPU cluster of 2023: repository alibaba/clusterdata, folder cluster-trace-gpu-v2023/csv, at
the commit below. FAIRGPU_GPU_TRACE names a folder that holds both files, for a machine that does not reach the address.
"""

from __future__ import annotations

import csv
import hashlib
import os
import time
from pathlib import Path

import urllib3

COMMIT = "50a91c7c74abe3b658188dc78ac1dd302970d40c"
ADDRESS = f"https://raw.githubusercontent.com/alibaba/clusterdata/{COMMIT}/cluster-trace-gpu-v2023/csv"
NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"
DIGESTS = {
    NODES: "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5",
    PODS: "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
}
"""The SHA-256 of each file."""
FOLDER = "FAIRGPU_GPU_TRACE"
"""The environment variable that names a folder with both files."""
MAX_BYTES = 4 << 20
"""The most bytes that are read of a file; the larger of the two has 575,468."""
SECONDS = 60.0
"""The longest time for a file; and a sixth of it for a connection, and for each wait for more bytes."""

Line = dict[str, str]


class TraceError(Exception):
    """The trace was not read; the text says which file, from where, why, and what to do."""


def read_trace(address: str = ADDRESS) -> tuple[list[Line], list[Line]]:
    """Returns the lines of the nodes and those of the pods.

    Args:
        address: where the files are if FAIRGPU_GPU_TRACE names no folder.

    Raises:
        TraceError: a file cannot be read, or has another digest.
    """
    folder = os.environ.get(FOLDER)
    nodes, pods = (
        _checked(_of_folder(Path(folder), name) if folder else _fetched(f"{address}/{name}"), name, folder or address)
        for name in (NODES, PODS)
    )
    return nodes, pods


def _of_folder(folder: Path, name: str) -> bytes:
    try:
        with (folder / name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"{FOLDER}={folder}: {error}; it must hold the files of {ADDRESS}") from None


def _fetched(url: str) -> bytes:
    deadline, content = time.monotonic() + SECONDS, b""
    try:
        with (
            urllib3.PoolManager(timeout=urllib3.Timeout(SECONDS / 6), retries=False) as pool,
            pool.request("GET", url, preload_content=False) as answer,
        ):
            if answer.status != 200:
                raise TraceError(f"{url} is answered with HTTP {answer.status}; {_offline()}")
            for part in answer.stream(1 << 16):
                content += part
                if len(content) > MAX_BYTES or time.monotonic() > deadline:
                    raise TraceError(f"{url} gave {len(content)} bytes and no end in {SECONDS:.0f} s; {_offline()}")
    except urllib3.exceptions.HTTPError as error:
        raise TraceError(f"{url} cannot be reached ({type(error).__name__}); {_offline()}") from None
    return content


def _offline() -> str:
    return f"or name a folder with {NODES} and {PODS} by {FOLDER}"


def _checked(content: bytes, name: str, where: str) -> list[Line]:
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[name]:
        raise TraceError(f"{name} of {where} is not that of {ADDRESS}: its SHA-256 is {found}, not {DIGESTS[name]}")
    return list(csv.DictReader(content.decode().splitlines()))
