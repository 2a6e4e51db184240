"""Kueue's LocalQueues as the timekeeper follows them: the ClusterQueue of a pod that names its queue alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from fairgpu.cluster.api import ApiError, KubernetesAPI
from fairgpu.cluster.optional_groups import KUEUE
from tests.support.waiting import wait_until
from timekeeper.settings import UsageSettings
from timekeeper.sources import kubernetes
from timekeeper.sources.kubernetes import (
    ASK_AGAIN_SECONDS,
    CLUSTER_QUEUE,
    QUEUE_NAME,
    KubernetesSource,
    LocalQueues,
    OptionalCollection,
    OptionalView,
    follow_optional,
    read_local_queue,
    with_cluster_queue,
)
from timekeeper.sources.looking import LookingSource

LABELS = UsageSettings().labels
GROUP = "/apis/kueue.x-k8s.io"
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


def local_queue(namespace: str, name: str, cluster_queue: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterQueue": cluster_queue}}


def pod(**labels: str) -> dict[str, Any]:
    keys = {"queue": QUEUE_NAME, "cluster_queue": CLUSTER_QUEUE}
    metadata = {
        "name": "train",
        "namespace": "vision",
        "uid": "u1",
        "labels": {keys[key]: text for key, text in labels.items()},
    }
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    return {"metadata": metadata, "spec": {"containers": containers}}


def labels_of(item: Any) -> dict[str, str]:
    found: dict[str, str] = item["metadata"]["labels"]
    return found


@pytest.fixture
def queues() -> LocalQueues:
    found = LocalQueues(lambda: 1)
    found.replaced([local_queue("vision", "gpu", "research"), local_queue("speech", "gpu", "products")])
    return found


def test_a_pod_gets_the_cluster_queue_of_its_namespaces_local_queue(queues: LocalQueues) -> None:
    given = pod(queue="gpu")

    assert labels_of(with_cluster_queue(given, queues.cluster_queue)) == {QUEUE_NAME: "gpu", CLUSTER_QUEUE: "research"}
    assert given == pod(queue="gpu")


@pytest.mark.parametrize(
    "given",
    [
        pod(queue="gpu", cluster_queue="written-by-kueue"),
        pod(queue="of-no-local-queue"),
        pod(),
        {"metadata": {"namespace": "vision", "labels": {QUEUE_NAME: ["gpu"]}}},
        {"metadata": {"namespace": "vision", "labels": None}},
        {"metadata": None},
        {},
    ],
)
def test_any_other_pod_stays_as_it_is(queues: LocalQueues, given: dict[str, Any]) -> None:
    assert with_cluster_queue(given, queues.cluster_queue) == given


def test_queues_that_come_change_and_go_are_followed(queues: LocalQueues) -> None:
    queues.changed("ADDED", local_queue("vision", "late", "research"))
    queues.changed("MODIFIED", local_queue("vision", "gpu", "shared"))
    queues.changed("DELETED", local_queue("speech", "gpu", "products"))

    assert [queues.cluster_queue(*key) for key in (("vision", "late"), ("vision", "gpu"), ("speech", "gpu"))] == [
        "research",
        "shared",
        "",
    ]


@pytest.mark.parametrize("item", [{}, {"metadata": None, "spec": None}, {"spec": {"clusterQueue": 7}}])
def test_a_queue_of_another_form_names_no_cluster_queue(item: dict[str, Any]) -> None:
    found = LocalQueues(lambda: 1)
    found.replaced([read_local_queue(item)])

    assert found.cluster_queue("", "") == ""


class Cluster:
    """An API server with one pod, and Kueue where `kueue` says so: its versions, or the status of a refusal.

    It says nothing of Kueue before it was asked for nodes, which a source watches after pods.
    """

    def __init__(self, kueue: list[str] | int) -> None:
        self.kueue = kueue
        self.asked: list[str] = []
        self.asked_for_nodes = threading.Event()
        self.ending = threading.Event()

    def within(self, _seconds: float) -> Cluster:
        return self

    def get(self, path: str, _query: Any = None, **_arguments: Any) -> Any:
        if path == NODES:
            self.asked_for_nodes.set()
        if path == GROUP:
            assert self.asked_for_nodes.wait(60)
        self.asked.append(path)
        if path.startswith(GROUP) and isinstance(self.kueue, int):
            raise ApiError(self.kueue, "", "")
        if path == GROUP:
            return {"versions": [{"version": version} for version in cast("list[str]", self.kueue)]}
        if path.startswith(GROUP):
            return {"metadata": {"resourceVersion": "1"}, "items": [local_queue("vision", "gpu", "research")]}
        return {"metadata": {"resourceVersion": "1"}, "items": [pod(queue="gpu")] if path == PODS else []}

    def stream(self, *_arguments: Any) -> Iterator[Any]:
        self.ending.wait()
        return iter(())


@pytest.fixture(params=[KubernetesSource, LookingSource])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kubernetes, "FIRST_QUEUES_SECONDS", 60.0)  # a loaded machine
    return request.param


def first_pod(kind: type[KubernetesSource], cluster: Cluster, labels: tuple[str, ...] = LABELS) -> Any:
    source = kind(cast("KubernetesAPI", cluster), lambda: 1, lambda: 0.5, labels, {})
    try:
        source.start(cluster.ending.wait)
        wait_until(lambda: source.mirrors.pods.confirmed_at is not None, "the pods are read")
        return source.mirrors.pods.get("u1")
    finally:
        cluster.ending.set()


@pytest.mark.parametrize(("versions", "read"), [(["v1beta1", "v1beta2"], "v1beta2"), (["v1beta1"], "v1beta1")])
def test_the_first_pods_have_their_cluster_queue(kind: type[KubernetesSource], versions: list[str], read: str) -> None:
    cluster = Cluster(versions)

    assert labels_of(first_pod(kind, cluster))[CLUSTER_QUEUE] == "research"
    asked = [path for path in cluster.asked if path.startswith(GROUP) or path == PODS]
    assert asked == [GROUP, f"{GROUP}/{read}/localqueues", PODS]


@pytest.mark.parametrize("status", [0, 403, 404, 500])
def test_pods_are_read_where_kueue_is_not_there_forbidden_or_silent(kind: type[KubernetesSource], status: int) -> None:
    assert labels_of(first_pod(kind, Cluster(status))) == {QUEUE_NAME: "gpu"}


def test_kueue_is_not_asked_for_where_use_is_not_kept_by_its_label(kind: type[KubernetesSource]) -> None:
    cluster = Cluster(["v1beta2"])

    assert labels_of(first_pod(kind, cluster, (QUEUE_NAME,))) == {QUEUE_NAME: "gpu"}
    assert [path for path in cluster.asked if path.startswith(GROUP)] == []


def test_a_list_of_queues_that_does_not_end_delays_pods_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "FIRST_QUEUES_SECONDS", 0.01)
    cluster = Cluster(["v1beta2"])
    answers = cluster.get

    def slow(path: str, *arguments: Any, **more: Any) -> Any:
        if path.startswith(GROUP):
            cluster.ending.wait()
        return answers(path, *arguments, **more)

    monkeypatch.setattr(cluster, "get", slow)

    assert labels_of(first_pod(KubernetesSource, cluster)) == {QUEUE_NAME: "gpu"}


def test_queues_are_followed_again_after_an_error_that_the_source_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(["v1beta2"])
    answers, errors = cluster.get, [OSError("the file of the service account's token is away")]

    def fail_once(path: str, *arguments: Any, **more: Any) -> Any:
        if path == GROUP and errors:
            raise errors.pop()
        return answers(path, *arguments, **more)

    monkeypatch.setattr(cluster, "get", fail_once)
    cluster.asked_for_nodes.set()
    source = KubernetesSource(cast("KubernetesAPI", cluster), lambda: 1, lambda: 0.5, LABELS, {})
    try:
        source.watch_queues(cluster.ending.wait)
        wait_until(lambda: f"{GROUP}/v1beta2/localqueues" in cluster.asked, "the queues are listed")
    finally:
        cluster.ending.set()


def test_kueue_that_is_installed_later_is_found() -> None:
    """The cluster installs Kueue while the follower waits to ask again."""
    cluster = Cluster(404)
    cluster.asked_for_nodes.set()

    def wait(seconds: float) -> bool:
        if seconds == ASK_AGAIN_SECONDS:
            cluster.kueue = ["v1beta2"]
        return cluster.ending.is_set()

    queues = LocalQueues(lambda: 1)
    api = cast("KubernetesAPI", cluster)
    collection = OptionalCollection(KUEUE, "localqueues", read_local_queue)
    arguments = (api, collection, OptionalView(queues), wait, lambda: 0.5)
    following = threading.Thread(target=follow_optional, args=arguments, daemon=True)
    following.start()
    try:
        wait_until(lambda: queues.cluster_queue("vision", "gpu") == "research", "the queue is known")
    finally:
        cluster.ending.set()
    following.join()
