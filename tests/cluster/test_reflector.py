from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from fairgpu.cluster import reflector
from fairgpu.cluster.api import ApiError, Decode, Json, KubernetesAPI, TooLargeError
from fairgpu.cluster.reflector import Collection, reflect
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.pods import plain_pod
from tests.support.waiting import wait_until


class Names:
    """A view that knows what is there, and how it came to know."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.lists = 0
        self.confirmations = 0
        self.errors: list[ApiError] = []

    def replaced(self, items: list[Json]) -> None:
        self.present = {item["metadata"]["name"] for item in items}
        self.lists += 1

    def changed(self, kind: str, item: Json) -> None:
        change = self.present.discard if kind == "DELETED" else self.present.add
        change(item["metadata"]["name"])

    def confirmed(self) -> None:
        self.confirmations += 1

    def failed(self, error: ApiError) -> None:
        self.errors.append(error)


@contextmanager
def reflecting(api: KubernetesAPI, path: str, **selectors: str) -> Iterator[Names]:
    view, end = Names(), threading.Event()
    collection = Collection(path, selectors)
    threading.Thread(target=reflect, args=(api, collection, view, end.wait, lambda: 0.5), daemon=True).start()
    try:
        yield view
    finally:
        end.set()


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"watched": "yes"}}}


def test_a_view_holds_what_was_there_and_follows_what_changes(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, config_map("first"))
    with reflecting(api, path, labelSelector="watched=yes") as view:
        wait_until(lambda: view.present == {"first"}, "the list")
        api.create(path, config_map("second"))
        wait_until(lambda: view.present == {"first", "second"}, "the new object")
        api.delete(f"{path}/first")
        wait_until(lambda: view.present == {"second"}, "the deletion")
        wait_until(lambda: view.confirmations >= 3, "a confirmation after the list and after each event")
    assert view.lists == 1


def test_a_list_longer_than_a_page_is_whole(control_plane: ControlPlane, namespace: str) -> None:
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/configmaps"
    expected = {f"map-{number}" for number in range(510)}
    for name in expected:
        api.create(path, config_map(name))
    with reflecting(api, path, labelSelector="watched=yes") as view:
        wait_until(lambda: view.present == expected, "both pages")


def test_a_page_that_is_too_large_to_be_read_at_once_comes_in_parts(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "PAGE_BYTES", 20_000)
    api, path = control_plane.admin.api, f"/api/v1/namespaces/{namespace}/configmaps"
    expected = {f"map-{number}" for number in range(12)}
    for name in expected:
        api.create(path, config_map(name) | {"data": {"ballast": "x" * 5000}})
    with pytest.raises(TooLargeError):
        api.get(path, most_bytes=20_000)
    with reflecting(api, path, labelSelector="watched=yes") as view:
        wait_until(lambda: view.present == expected, "all of its parts")
    assert view.errors == []


def test_pages_grow_again_behind_large_pods_of_somebody_who_may_do_everything_in_one_namespace(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, a dozen large pods made a list of all other pods as many requests as there are pods."""
    monkeypatch.setattr(reflector, "PAGE_BYTES", 300_000)
    editor, path = control_plane.namespace_admin(namespace).api, f"/api/v1/namespaces/{namespace}/pods"
    large, small = {f"a-{number}" for number in range(3)}, {f"b-{number}" for number in range(60)}
    for name in large:
        pod = plain_pod(name)
        pod["metadata"]["annotations"] = {"example.org/ballast": "x" * 200_000}
        editor.create(path, pod)
    for name in small:
        editor.create(path, plain_pod(name))
    counted = Counting(control_plane.admin.api)
    with reflecting(counted, path) as view:
        wait_until(lambda: view.present == large | small, "all pods")
    assert 1 in counted.limits  # the large ones come one by one
    assert counted.limits[-1] >= 16
    assert len(counted.limits) <= 16  # of 63 pods
    assert view.errors == []


def test_a_resource_version_that_is_too_old_leads_to_a_new_list(namespace: str, control_plane: ControlPlane) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api = Expiring(control_plane.admin.api)
    with reflecting(api, path, labelSelector="watched=yes") as view:
        wait_until(lambda: view.lists == 2, "the second list")
        control_plane.admin.api.create(path, config_map("after"))
        wait_until(lambda: view.present == {"after"}, "the watch after it")
    assert view.errors == []


class Counting(KubernetesAPI):
    """The real API server, and how many objects each page of a list was to have at most."""

    def __init__(self, real: KubernetesAPI) -> None:
        self.limits: list[int] = []
        self.stream = real.stream  # type: ignore[method-assign]
        self._get = real.get

    def get(self, path: str, query: Mapping[str, str | int] | None = None, **options: Any) -> Json:
        self.limits.append(int((query or {})["limit"]))
        return self._get(path, query, **options)


class Expiring(KubernetesAPI):
    """The real API server behind one 410, which it gives by itself only once etcd was compacted (every 5 minutes)."""

    def __init__(self, real: KubernetesAPI) -> None:
        self.get = real.get  # type: ignore[method-assign]
        self._real_stream: Callable[..., Iterator[Json]] = real.stream
        self._asked = False

    def stream(
        self, path: str, query: Mapping[str, str | int], idle_seconds: float, decode: Decode = json.loads
    ) -> Iterator[Json]:
        if self._asked:
            return self._real_stream(path, query, idle_seconds, decode)
        self._asked = True
        raise ApiError(410, "Expired", "too old resource version")


def test_a_refusal_is_shown_and_tried_again(control_plane: ControlPlane, namespace: str) -> None:
    nobody = control_plane.user(f"nobody-of-{namespace}")
    with reflecting(nobody.api, f"/api/v1/namespaces/{namespace}/configmaps") as view:
        wait_until(lambda: len(view.errors) >= 2, "two refusals")
    assert {error.status for error in view.errors} == {403}
    assert view.lists == 0
