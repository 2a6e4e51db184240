"""The lines of a watch in an event loop, over a feed that changes while it is open."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, cast

import pytest

from fairgpu.cluster.api import KubernetesAPI
from tests.support.waiting import LIMIT_S
from tests.unit.timekeeper_rest.test_gpu_feed import node, pod
from timekeeper.api import gpu_objects
from timekeeper.api.gpu_objects import GPU_NODES, GPU_PODS, ExpiredError, GPUWatches, read_node, read_pod

SECONDS = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def watches_of(*pods: str) -> GPUWatches:
    """The watches of a worker that has read one node and these pods."""
    loop = asyncio.get_running_loop()
    made = GPUWatches(cast("KubernetesAPI", None), lambda _: True, lambda: 0.5, lambda: loop)
    found = read_node(node("n0"))
    assert found is not None
    made.feed.replace_nodes([found], 10)
    made.feed.reach("nodes", 10)
    made.feed.replace_pods([read_pod(pod(name)) for name in pods], 10)
    made.feed.reach("pods", 10)
    return made


def put(watches: GPUWatches, name: str, version: int, where: str = "") -> None:
    item = pod(name, where, *([("main", 30)] if where else []))
    watches.feed.put_pod(item["metadata"]["uid"], read_pod(item), version)
    watches.feed.reach("pods", version)


async def events(lines: AsyncGenerator[bytes]) -> list[tuple[str, str, str]]:
    """The events of the next part of a stream: types, names and versions."""
    found = [json.loads(line) for line in (await anext(lines)).splitlines()]
    return [
        (one["type"], one["object"]["metadata"]["name"], one["object"]["metadata"]["resourceVersion"]) for one in found
    ]


def test_a_watch_begins_with_all_objects_and_goes_on_with_what_changes() -> None:
    async def work() -> None:
        watches = watches_of("a", "b")
        lines = watches.lines(GPU_PODS, None, "0", "", SECONDS, bookmarks=False)
        assert await events(lines) == [("ADDED", "a", "0"), ("ADDED", "b", "10")]
        put(watches, "a", 11, "n0")
        assert await events(lines) == [("MODIFIED", "a", "11")]
        put(watches, "c", 12)
        put(watches, "a", 13)
        assert await events(lines) == [("ADDED", "c", "11"), ("MODIFIED", "a", "13")]
        await lines.aclose()

    run(work())


def test_the_binding_of_a_pod_reaches_a_watch_of_nodes() -> None:
    async def work() -> None:
        watches = watches_of("a")
        number = await watches.position(GPU_NODES, "10.10")
        lines = watches.lines(GPU_NODES, number, "10.10", "", SECONDS, bookmarks=False)
        put(watches, "a", 11, "n0")
        assert await events(lines) == [("MODIFIED", "n0", "10.11")]

    run(work())


def test_a_watch_that_breaks_within_a_batch_goes_on_without_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_objects, "LINES_AT_ONCE", 2)

    async def work() -> None:
        watches = watches_of()
        for number in range(5):
            put(watches, f"p{number}", 11 + number)
        seen: list[str] = []
        version = "10"
        for _ in range(2):
            lines = watches.lines(
                GPU_PODS, await watches.position(GPU_PODS, version), version, "", SECONDS, bookmarks=False
            )
            for _ in range(2 if not seen else 3):
                got = await events(lines)
                seen += [name for _, name, _ in got]
                version = got[-1][2]
            await lines.aclose()
        assert set(seen) == {f"p{number}" for number in range(5)}
        assert version == "15"

    run(work())


def test_a_quiet_watch_names_its_version_now_and_then_where_its_client_asks_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_objects, "BOOKMARK_SECONDS", 0.05)

    async def work() -> None:
        watches = watches_of("a")
        number = await watches.position(GPU_PODS, "10")
        lines = watches.lines(GPU_PODS, number, "10", "", SECONDS, bookmarks=True)
        watches.feed.reach("pods", 40)
        assert await events(lines) == [("BOOKMARK", "", "40")]
        assert await events(lines) == [("BOOKMARK", "", "40")]

    run(work())


def test_a_watch_ends_when_its_time_is_up_and_when_the_worker_ends() -> None:
    async def work() -> None:
        watches = watches_of("a")
        number = await watches.position(GPU_PODS, "10")
        short = watches.lines(GPU_PODS, number, "10", "", 0.01, bookmarks=False)
        assert [line async for line in short] == []
        long = watches.lines(GPU_PODS, number, "10", "", SECONDS, bookmarks=False)
        waiting = asyncio.ensure_future(anext(long, None))
        await asyncio.sleep(0)
        watches.end()
        assert await waiting is None

    run(work())


def test_a_watch_that_fell_too_far_behind_is_told_to_list_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_objects, "MAX_CHANGES", 2)

    async def work() -> None:
        watches = watches_of("a")
        number = await watches.position(GPU_PODS, "10")
        for version in range(11, 20):
            put(watches, f"p{version}", version)
        lines = watches.lines(GPU_PODS, number, "10", "", SECONDS, bookmarks=False)
        (found,) = (await anext(lines)).splitlines()
        assert json.loads(found)["object"]["code"] == 410
        assert await anext(lines, None) is None

    run(work())


def test_a_worker_waits_until_it_knows_the_version_of_a_watch() -> None:
    async def work() -> None:
        watches = watches_of("a")
        position = asyncio.ensure_future(watches.position(GPU_PODS, "12"))
        await asyncio.sleep(0)
        put(watches, "b", 12)
        assert await position == 2

    run(work())


def test_a_version_that_the_worker_never_gets_to_know_is_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_objects, "CATCH_UP_SECONDS", 0.01)

    async def work() -> None:
        with pytest.raises(ExpiredError, match="list again"):
            await watches_of("a").position(GPU_PODS, "99")

    run(work())


class Following:
    """An API server with one node and pods that change, for the watches' own threads."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def get(self, path: str, query: Any, decode: Any, **_options: Any) -> Any:
        self.asked.append((path, query.get("labelSelector")))
        item = pod("a") if path.endswith("pods") else node("n0")
        return decode(json.dumps({"metadata": {"resourceVersion": "10"}, "items": [item]}).encode())

    def stream(self, path: str, _query: Any, _idle: float, decode: Any) -> Any:
        if path.endswith("nodes"):
            return
        for where in (11, 12, 13):
            item = pod("a", "n0", ("main", where))
            item["metadata"]["resourceVersion"] = str(where)
            yield decode(json.dumps({"type": "MODIFIED", "object": item}).encode())
        bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}
        yield decode(json.dumps(bookmark).encode())
        item["metadata"]["resourceVersion"] = "21"
        yield decode(json.dumps({"type": "DELETED", "object": item}).encode())


def test_the_first_question_begins_to_follow_nodes_and_gpu_pods_and_each_version_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_objects, "CATCH_UP_SECONDS", LIMIT_S)  # the two that follow are threads
    ended = threading.Event()

    async def work() -> None:
        loop, api = asyncio.get_running_loop(), Following()
        watches = GPUWatches(
            cast("KubernetesAPI", api), lambda seconds: ended.is_set() or seconds > 0, lambda: 0.5, lambda: loop
        )
        assert api.asked == []
        assert await watches.has_caught_up()
        assert await watches.has_caught_up()
        assert sorted(api.asked) == [("/api/v1/nodes", None), ("/api/v1/pods", "fairgpu.io/pod=gpu")]
        number = await watches.position(GPU_PODS, "21")
        assert watches.feed.since(GPU_PODS, number)[1] == []
        assert watches.feed.version(GPU_NODES) == "10.21"

    try:
        run(work())
    finally:
        ended.set()
