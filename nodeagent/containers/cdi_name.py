"""Names the CDI device of a container after the device plugin's slots that the kubelet gave it.

The kubelet asks for a container's CDI device before it says which container that is. Both its calls carry the same
slots, so the slots make the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

KIND: Final = "fairgpu.io/container"
DIGITS: Final = 32


def device_name(slots: Iterable[str]) -> str:
    """Returns the first 32 hexadecimal digits of the SHA-256 of the sorted slot ids, joined by line feeds.

    Raises:
        ValueError: there is no slot.
    """
    ids = sorted(set(slots))
    if not ids:
        raise ValueError("a container without slots has no CDI device")
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:DIGITS]


def qualified(name: str) -> str:
    """Returns the name by which runtimes request the device, such as `fairgpu.io/container=0f3a...`."""
    return f"{KIND}={name}"


def spec_file(name: str) -> str:
    """Returns the name of the file of the device's spec."""
    return f"{KIND.replace('/', '-')}_{name}.json"
