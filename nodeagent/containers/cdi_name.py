"""Names the CDI device of a container after the device plugin's slots that the kubelet gave the container.

The kubelet asks for a container's CDI device before it says which container that is. Its later call before the start
carries the same slots, so the name is computed from the slots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

KIND: Final = "fairgpu.io/container"
DIGITS: Final = 32


def device_name(slots: Iterable[str]) -> str:
    """Returns the name of a container's CDI device: the first 32 hexadecimal digits of a SHA-256 over its slots.

    Args:
        slots: the ids of the device plugin's slots that the container holds, in any order. The hash is over the sorted
            ids, joined by line feeds.

    Raises:
        ValueError: there is no slot.
    """
    ids = sorted(set(slots))
    if not ids:
        raise ValueError("a container without slots has no CDI device")
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:DIGITS]


def qualified(name: str) -> str:
    """Returns the full name by which a runtime requests a CDI device, such as `fairgpu.io/container=0f3a...`."""
    return f"{KIND}={name}"


def spec_file(name: str) -> str:
    """Returns the name of the file that holds a CDI device's spec.

    Args:
        name: the name that `device_name` returns; `*` makes a pattern for all such files.
    """
    return f"{KIND.replace('/', '-')}_{name}.json"
