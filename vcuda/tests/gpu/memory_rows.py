"""Is memory held to its limit on the machine's own GPU, and is none of it lost with programs that are killed?"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import shares
from crowds import churned_and_killed, race
from machine import settled_bytes, used_bytes
from node import MIB, Container, Node, Share, until

KILLS, KILLED_AT_ONCE = 100, 8
LONGEST_SECONDS = 0.02
"""A program is killed after up to so long of allocating."""
LET_GO_SECONDS = 60.0
"""In which the dead must have stopped to be charged; five are usual where no node agent says so sooner."""


def racing(folder: Path, settings: dict[str, str], seconds: int) -> Iterator[dict[str, Any]]:
    """Do many processes pass their limit together? NVML is asked every few milliseconds: a glance, not a proof."""
    uuid = os.environ["VCUDA_TEST_UUID"]
    node = Node(folder / "node", settings, driver=None)
    before = settled_bytes(uuid)
    with node.container("one").session() as ask:
        begun(ask("init"), ask("ctx"))
        context = used_bytes(uuid) - before
    until(lambda: used_bytes(uuid) <= before)
    limit = 16 * context + 2048 * MIB
    container = node.container("crowd", Share(limit, context=context))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(race, container, 16, 8, seconds)
        most = before
        while not running.done():
            most = max(most, used_bytes(uuid))
            time.sleep(0.005)
    made, refused = running.result()
    over = max(0, most - before - limit)
    context_of_row = f"{made} allocations, {refused} refused; a context has {context // MIB} MiB"
    name = f"over the limit, 16 processes x 8 threads racing {seconds} s"
    yield shares.row(name, over, "bytes", "0", met=over == 0 < refused, context=context_of_row)


def killing(folder: Path, settings: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Is anything still held, or charged to a container, after many of its programs were killed as they allocated?"""
    uuid = os.environ["VCUDA_TEST_UUID"]
    node = Node(folder / "node", settings, driver=None)
    fresh, container = node.container("fresh"), node.container("killed", Share(1 << 40))
    own = charged_with_a_context(fresh, 0.0)
    before = settled_bytes(uuid)
    chance = random.Random(7)
    moments = [chance.random() * LONGEST_SECONDS for _ in range(KILLS)]
    with ThreadPoolExecutor(KILLED_AT_ONCE) as pool:
        begun_at_all = sum(pool.map(lambda i: churned_and_killed(container, i, moments[i]), range(KILLS)))
    lost = settled_bytes(uuid) - before
    phantom = charged_with_a_context(container, LET_GO_SECONDS, own) - own
    context = f"{begun_at_all} of them allocating; {lost} bytes still held by the driver, {phantom} still charged"
    met = lost <= 0 and phantom == 0 and begun_at_all == KILLS
    yield shares.row(f"lost or phantom after {KILLS} SIGKILLs", abs(phantom) + max(0, lost), "bytes", "0", met=met,
                     context=context)  # fmt: skip


def charged_with_a_context(container: Container, seconds: float, wanted: int = 0) -> int:
    """Returns the charge of a container for one program with a context; waits until it comes to what is wanted."""
    with container.session() as ask:
        begun(ask("init"), ask("ctx"))
        limit = time.monotonic() + seconds
        while container.charged() != wanted and time.monotonic() < limit:
            time.sleep(0.1)
        return container.charged()


def begun(*answers: list[int]) -> None:
    """Raises RuntimeError: a program under the shim could not begin."""
    if any(answer[:1] != [0] for answer in answers):
        raise RuntimeError(f"a program under the shim gets no context on this GPU: it was answered {answers}")
