"""A source whose mirrors a test fills itself: for clusters too large for files, and for nodes that become silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tests.support.ledger.harness import NOON, LedgerHarness
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import format_instant
from timekeeper.ledger.reading import highest_fencing_token
from timekeeper.ledger.writing import take_fencing_token
from timekeeper.sources.base import Mirror, Mirrors, ObjectEvent

Json = dict[str, Any]


class MirroredCluster:
    """A source with mirrors that a test fills; it keeps everything that is written to it."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.mirrors = Mirrors(**{name: Mirror(name, now) for name in Mirrors.__slots__})
        self.budget_statuses: dict[str, Json] = {}
        self.versions_written: dict[str, str] = {}
        self.checkpoints: dict[int, dict[str, Json]] = {}
        self.grant_statuses: dict[str, Json] = {}
        self.correction_statuses: dict[str, Json] = {}
        self.notices: list[ObjectEvent] = []
        self.evicted: list[str] = []
        for name in Mirrors.__slots__:
            self.replace(name, [])

    def replace(self, collection: str, items: list[Json]) -> None:
        """Replaces a whole collection by the given objects."""
        mirror: Mirror = getattr(self.mirrors, collection)
        mirror.replaced(items)
        mirror.confirmed()

    def start(self, wait: Callable[[float], bool]) -> None:
        """Does nothing, since there is nothing to watch."""

    def lift_gate(self, pod: Json) -> None:
        """Takes all gates off in the mirror, as the API server's watch would show it."""
        self.mirrors.pods.changed("MODIFIED", {**pod, "spec": {**pod["spec"], "schedulingGates": []}})

    def remove_finalizer(self, pod: Json) -> None:
        """Takes all finalizers off in the mirror, as the API server's watch would show it."""
        metadata = {key: value for key, value in pod["metadata"].items() if key != "finalizers"}
        self.mirrors.pods.changed("MODIFIED", {**pod, "metadata": metadata})

    def label_gpu_pod(self, pod: Json) -> None:
        """Adds FairGPU's label in the mirror, as the API server's watch would show it."""
        metadata = {**pod["metadata"], "labels": {**pod["metadata"].get("labels", {}), "fairgpu.io/pod": "gpu"}}
        self.mirrors.pods.changed("MODIFIED", {**pod, "metadata": metadata})

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Sets or removes the notice of eviction in the mirror, as the API server's watch would show it."""
        metadata = pod["metadata"]
        annotations = {**metadata.get("annotations", {}), "fairgpu.io/eviction-at": at}
        kept = {key: value for key, value in annotations.items() if value is not None}
        self.mirrors.pods.changed("MODIFIED", {**pod, "metadata": {**metadata, "annotations": kept}})

    def evict(self, pod: Json) -> None:
        """Notes the eviction, and shows the pod as ending in the mirror."""
        self.evicted.append(pod["metadata"]["name"])
        ending = {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        self.mirrors.pods.changed("MODIFIED", {**pod, "metadata": ending})

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        self.versions_written[name] = version
        self.budget_statuses[name] = status

    def read_checkpoints(self) -> dict[str, Json]:
        return {name: found for shard in self.checkpoints.values() for name, found in shard.items()}

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        self.checkpoints[shard] = checkpoints

    def write_grant_status(self, name: str, status: Json) -> None:
        self.grant_statuses[name] = status

    def write_correction_status(self, name: str, status: Json) -> None:
        self.correction_statuses[name] = status

    def record_event(self, event: ObjectEvent) -> None:
        self.notices.append(event)


class LedCluster(MirroredCluster):
    """A MirroredCluster with its own clock, and with a leader that keeps its books in a real store."""

    def __init__(self, client: redis.Redis, folder: Path) -> None:
        self.now = NOON
        super().__init__(lambda: self.now)
        self.client = client
        self.harness = LedgerHarness(folder, client)
        self.lead()

    def lead(self) -> None:
        """Starts a new leader, which knows only what it reads."""
        self.reconciler = Reconciler(
            self.client,
            self,
            ControllerRules(),
            take_fencing_token(self.client, highest_fencing_token(self.client) + 1),
        )

    def reconcile(self, seconds: float = 0) -> None:
        """Lets time pass, in which the cluster stays as the mirrors have it; then the leader reconciles once."""
        self.now += int(seconds * SECOND)
        self.harness.now = self.now
        for name in Mirrors.__slots__:
            getattr(self.mirrors, name).confirmed()
        self.reconciler.reconcile(self.now)

    def notices_during(self, act: Callable[[], object]) -> list[str]:
        """Returns the reasons of the events that an act adds."""
        before = len(self.notices)
        act()
        return [notice.reason for notice in self.notices[before:]]

    def grant(self, gpu_hours: int) -> None:
        """Makes a grant for the budget `a` now, in place of all earlier grants."""
        name = f"g{gpu_hours}"
        metadata = {"name": name, "uid": name, "creationTimestamp": format_instant(self.now)}
        spec = {"budget": "a", "gpuHours": gpu_hours, "reason": "deadline"}
        self.replace("grants", [{"metadata": metadata, "spec": spec}])


def budget_object(name: str, namespaces: list[str], **spec: Any) -> Json:
    """Returns a GPUBudget, of 100 GPU-hours a month unless `spec` says otherwise."""
    base = {"namespaces": namespaces, "allowance": {"gpuHours": 100}, "period": {"every": "month"}}
    return {"metadata": {"name": name, "uid": f"budget-{name}", "generation": 1}, "spec": {**base, **spec}}
