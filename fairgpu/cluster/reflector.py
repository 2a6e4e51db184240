"""Keeps a view of a collection current: a list, then a watch from the end of that list, again and again.

The protocol is the API server's (https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes):
lists come in pages, bookmarks move the resourceVersion on, and 410 Gone means to list anew. etcd keeps the version of a
list for five minutes; a list that takes longer ends in 410, again and again. So each new list waits as any retry does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fairgpu.cluster.api import ApiError, Decode, Json, KubernetesAPI, TooLargeError
from fairgpu.keeping import Wait

PAGE_SIZE = 500
PAGE_BYTES = 16 << 20
"""The most bytes of a page; a longer one is requested again with a quarter of the objects.

Parsed, a page takes ten times as much memory, and an author decides how large an object is, up to 1.5 MiB. After such
objects, each page has twice as many objects as the one before.
"""
WATCH_SECONDS = 240
IDLE_SECONDS = 300.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0


class View(Protocol):
    """The part of a service that `reflect` informs of one collection of the API server.

    One thread calls the methods, in the order of the API server's events.
    """

    def replaced(self, items: list[Json]) -> None:
        """Takes the whole present collection: an object of an earlier call that is not among `items` is deleted.

        Args:
            items: the objects, as the collection's `read` returned them.
        """

    def changed(self, kind: str, item: Json) -> None:
        """Takes one event of the collection.

        Args:
            kind: ADDED, MODIFIED or DELETED.
            item: the object, as the collection's `read` returned it, or whole if `read` returned None. A deleted object
                has its last version.
        """

    def confirmed(self) -> None:
        """Notes that the view is current: the API server has reported all changes so far.

        `reflect` calls it after each list, event and bookmark.
        """

    def failed(self, error: ApiError) -> None:
        """Notes that a request to the API server, or another method of this view, failed; `reflect` tries again.

        `reflect` does not call it for a resourceVersion that is too old.
        """


def whole(item: Json) -> Json:
    """Returns an object unchanged, for a collection whose view gets whole objects."""
    return item


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection of the API server to watch.

    Attributes:
        path: the collection's path, such as `/api/v1/pods`.
        selectors: the parameters that select objects of the collection, such as `{"fieldSelector": "..."}`; empty for
            all objects.
        read: returns the part of an object that the view gets, so that no list is whole in memory. If it returns None
            for an object, the view's list lacks the object; an event of such an object still reaches the view, whole.
        decode_page: decodes a page of a list. If `read` needs a few fields alone, a decoder that skips the others takes
            a tenth of the time.
        decode_event: decodes an event of a watch; a decoder that skips fields saves time here, too.
    """

    path: str
    selectors: Mapping[str, str]
    read: Callable[[Json], Json | None] = whole
    decode_page: Decode = json.loads
    decode_event: Decode = json.loads


def reflect(api: KubernetesAPI, collection: Collection, view: View, wait: Wait, random: Callable[[], float]) -> None:
    """Keeps a view of a collection current until `wait` returns true.

    Args:
        api: the API server.
        collection: the collection to list and watch.
        view: takes the lists and the events; all its methods are called in this thread.
        wait: sleeps for the given seconds between attempts, and returns whether to end; called with 0 between events.
        random: returns a number in [0, 1), by which the time between attempts varies: many clients then do not ask at
            once.
    """
    retry_seconds = FIRST_RETRY_SECONDS
    version: str | None = None
    while not wait(0):
        try:
            if version is None:
                items, version = list_collection(api, collection)
                view.replaced(items)
                view.confirmed()
            version = _watch(api, collection, view, wait, version)
            retry_seconds = FIRST_RETRY_SECONDS
        except ApiError as error:
            if not error.gone:
                view.failed(error)
            if error.status:
                version = None
            if wait(retry_seconds * (0.5 + random())):
                return
            retry_seconds = min(retry_seconds * 2, LAST_RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - without this thread the view would stay outdated
            view.failed(ApiError(0, type(error).__name__, str(error)))
            version = None
            if wait(LAST_RETRY_SECONDS * (0.5 + random()) / 2):
                return


def list_collection(api: KubernetesAPI, collection: Collection) -> tuple[list[Json], str]:
    """Lists a collection in pages; returns the parts of its objects that `read` keeps, and the list's resourceVersion.

    Raises:
        ApiError: the API server refuses, or cannot be reached.
    """
    items: list[Json] = []
    size = PAGE_SIZE
    page: dict[str, str | int] = {**collection.selectors}
    while True:
        page["limit"] = size
        try:
            most_bytes = PAGE_BYTES if size > 1 else None
            answer = api.get(collection.path, page, most_bytes=most_bytes, decode=collection.decode_page)
        except TooLargeError:
            size = max(size // 4, 1)
            continue
        read = (collection.read(item) for item in answer.get("items") or [])
        items.extend(item for item in read if item is not None)
        size = min(size * 2, PAGE_SIZE)
        metadata = answer.get("metadata") or {}
        if not metadata.get("continue"):
            return items, str(metadata.get("resourceVersion", ""))
        page["continue"] = metadata["continue"]


def _watch(api: KubernetesAPI, collection: Collection, view: View, wait: Wait, version: str) -> str:
    """Watches a collection, and passes the events to the view until the watch ends or `wait` returns true.

    Args:
        version: the resourceVersion from which the watch begins.

    Returns:
        The resourceVersion of the last event, from which the next watch continues.

    Raises:
        ApiError: the watch was refused or interrupted.
    """
    query: dict[str, str | int] = {
        **collection.selectors,
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": WATCH_SECONDS,
    }
    for event in api.stream(collection.path, query, IDLE_SECONDS, collection.decode_event):
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            raise ApiError(int(item.get("code") or 500), str(item.get("reason")), str(item.get("message")))
        version = (item.get("metadata") or {}).get("resourceVersion", version)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            view.changed(kind, collection.read(item) or item)
        view.confirmed()
        if wait(0):
            break
    return version
