"""The world as an API server tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from fairgpu import names
from fairgpu.cluster.api import JSON_PATCH, MERGE_PATCH, ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, reflect
from timekeeper.sources.metered import is_metered, metered_pod, slim
from timekeeper.sources.mirror import Mirror
from timekeeper.sources.source import (
    CHECKPOINT_SHARDS,
    MAX_TERMINATION_SECONDS,
    BlockedError,
    ChangedMeanwhileError,
    ExistsError,
    Mirrors,
    Notice,
    NotWrittenError,
    RefusedError,
    SourceError,
)

BUDGETS = f"/apis/{names.BUDGET_API}/gpubudgets"
GRANTS = f"/apis/{names.BUDGET_API}/gpugrants"
CORRECTIONS = f"/apis/{names.BUDGET_API}/gpucorrections"
COLLECTIONS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "node_leases": "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "namespaces": "/api/v1/namespaces",
    "budgets": BUDGETS,
    "grants": GRANTS,
    "corrections": CORRECTIONS,
}

POD_WRITE_SECONDS = 5
"""How long the API server may take for a write to a pod, and we wait for its answer.

It gives up by itself then: k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go reads `timeout`."""
_POD_WRITE = {"timeout": f"{POD_WRITE_SECONDS}s"}

CONFIG_MAPS = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/configmaps"
CHECKPOINTS_KEY = "checkpoints.json"

_log = structlog.get_logger()


class ClusterSource:
    """An API server, reached with the timekeeper's account."""

    def __init__(
        self, api: KubernetesAPI, now: Callable[[], int], random: Callable[[], float], kept_labels: Sequence[str] = ()
    ) -> None:
        """Names where the world is told from.

        Args:
            api: the API server.
            now: a clock, in nanoseconds since 1970.
            random: a source of numbers in [0, 1).
            kept_labels: the keys of those labels of pods that showback keeps.
        """
        self._api = api
        self._pods = api.within(POD_WRITE_SECONDS)
        self._read_pod = partial(metered_pod, kept_labels=tuple(kept_labels))
        self._random = random
        keeping = {"pods": is_metered}
        self._mirrors = Mirrors(**{name: Mirror(name, now, keeping.get(name, _all)) for name in COLLECTIONS})

    @property
    def mirrors(self) -> Mirrors:
        """The collections."""
        return self._mirrors

    def start(self, wait: Callable[[float], bool]) -> None:
        """Watches each collection in a thread of its own."""
        for name, path in COLLECTIONS.items():
            view: Mirror = getattr(self._mirrors, name)
            collection = Collection(path, {}, self._read_pod if name == "pods" else slim)
            arguments = (self._api, collection, view, wait, self._random)
            threading.Thread(target=reflect, args=arguments, name=f"watch-{name}", daemon=True).start()

    def lift_gate(self, pod: Json) -> None:
        """Takes the budget gate off, if the pod is still the one that was read and has the gate where it had it."""
        metadata = pod["metadata"]
        gates = (pod.get("spec") or {}).get("schedulingGates") or []
        index = next((index for index, gate in enumerate(gates) if gate.get("name") == names.BUDGET_GATE), None)
        if index is None:
            raise ChangedMeanwhileError(f"pod {metadata['namespace']}/{metadata['name']} has no budget gate")
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": f"/spec/schedulingGates/{index}/name", "value": names.BUDGET_GATE},
            {"op": "remove", "path": f"/spec/schedulingGates/{index}"},
        ]
        self._patch_pod(metadata, patch, JSON_PATCH)

    def remove_finalizer(self, pod: Json) -> None:
        """Takes the finalizer off, if the pod is still the one that was read and has it where it had it."""
        metadata = pod["metadata"]
        finalizers = metadata.get("finalizers") or []
        if names.METER_FINALIZER not in finalizers:
            raise ChangedMeanwhileError(f"pod {metadata['namespace']}/{metadata['name']} has no finalizer of the meter")
        index = finalizers.index(names.METER_FINALIZER)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": f"/metadata/finalizers/{index}", "value": names.METER_FINALIZER},
            {"op": "remove", "path": f"/metadata/finalizers/{index}"},
        ]
        self._patch_pod(metadata, patch, JSON_PATCH)

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes the annotation, or takes it away; the uid is what a merge patch cannot change, so that it guards."""
        metadata = pod["metadata"]
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {names.EVICTION_AT: at}}}
        self._patch_pod(metadata, patch, MERGE_PATCH)

    def evict(self, pod: Json) -> None:
        """Posts an Eviction (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/).

        A pod gets its own terminationGracePeriodSeconds, but no more than MAX_TERMINATION_SECONDS. The Eviction bears
        the pod's label, without which the policy fairgpu-eviction refuses it.
        """
        metadata = pod["metadata"]
        label = (metadata.get("labels") or {}).get(names.POD_LABEL)
        options: Json = {"preconditions": {"uid": metadata["uid"]}}
        seconds = _termination_seconds(pod)
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                **({"labels": {names.POD_LABEL: label}} if label else {}),
            },
            "deleteOptions": options,
        }
        try:
            self._pods.create(f"{_path_of(metadata)}/eviction", eviction, _POD_WRITE)
        except ApiError as error:
            raise _eviction_error(error) from error

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces the status; fields that are not given are removed."""
        self._write(lambda: self._replace_status(f"{BUDGETS}/{name}", status, version))

    def read_checkpoints(self) -> dict[str, Json]:
        """Reads each shard; what cannot be read as one counts as empty."""
        found: dict[str, Json] = {}
        for shard in range(CHECKPOINT_SHARDS):
            try:
                found |= _checkpoints(self._write(partial(self._api.get, _shard_path(shard))))
            except ChangedMeanwhileError:
                continue  # nothing was ever written there
        return found

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Replaces the shard, or makes it."""
        data = {CHECKPOINTS_KEY: json.dumps(checkpoints, separators=(",", ":"), sort_keys=True)}
        try:
            self._write(lambda: self._api.patch(_shard_path(shard), {"data": data}))
        except ChangedMeanwhileError:
            name = _shard_path(shard).rpartition("/")[2]
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
            self._write(lambda: self._api.create(CONFIG_MAPS, document))

    def write_grant_status(self, name: str, status: Json) -> None:
        """Replaces the status; fields that are not given are removed."""
        self._write(lambda: self._replace_status(f"{GRANTS}/{name}", status))

    def write_correction_status(self, name: str, status: Json) -> None:
        """Replaces the status; fields that are not given are removed."""
        self._write(lambda: self._replace_status(f"{CORRECTIONS}/{name}", status))

    def create_grant(self, grant: Json) -> Json:
        """Creates a GPUGrant; its name is what makes it one."""
        return self._write(lambda: self._api.create(GRANTS, grant))

    def tell(self, notice: Notice) -> None:
        """Writes an event into the object's namespace, or `default` for those without one, as Kubernetes does."""
        metadata = notice.regarding.get("metadata") or {}
        namespace = metadata.get("namespace") or "default"
        try:
            self._pods.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", _event(notice, namespace))
        except ApiError as error:
            if notice.id and error.reason == "AlreadyExists":
                return  # who led before has told it
            _log.warning("event not written", reason=notice.reason, name=metadata.get("name"), error=str(error))

    def _replace_status(self, path: str, status: Json, version: str = "") -> Json:
        unchanged = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}] if version else []
        operations = [*unchanged, {"op": "add", "path": "/status", "value": status}]
        return self._api.patch(f"{path}/status", operations, JSON_PATCH)

    def _patch_pod(self, metadata: Json, patch: Any, content_type: str) -> None:
        try:
            self._pods.patch(_path_of(metadata), patch, content_type, _POD_WRITE)
        except ApiError as error:
            raise _pod_error(error) from error

    def _write(self, request: Callable[[], Json]) -> Json:
        try:
            return request()
        except ApiError as error:
            if error.reason == "AlreadyExists":
                raise ExistsError(error.message) from error
            # 422 is how the API server answers a JSON Patch whose test fails.
            if error.not_found or error.conflict or error.status == 422:
                raise ChangedMeanwhileError(error.message) from error
            if error.status in {400, 403, 413}:
                raise RefusedError(str(error)) from error
            raise SourceError(str(error)) from error


def _path_of(metadata: Json) -> str:
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _termination_seconds(pod: Json) -> int | None:
    """What an eviction has to say of the time that a pod gets; None where the API server comes to the same by itself.

    One that is being deleted already keeps what it was given then, unless less is named.
    """
    own = int((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 0)
    if pod["metadata"].get("deletionTimestamp") is not None:
        return max(1, min(own, MAX_TERMINATION_SECONDS))
    return MAX_TERMINATION_SECONDS if own > MAX_TERMINATION_SECONDS else None


def _eviction_error(error: ApiError) -> SourceError:
    # Of a pod under two PodDisruptionBudgets the API server answers 500, whatever they allow
    # (https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/#how-api-initiated-eviction-works).
    if error.status == 429 or (error.status == 500 and "more than one PodDisruptionBudget" in error.message):
        return BlockedError(error.message)
    return _pod_error(error)


def _pod_error(error: ApiError) -> SourceError:
    """Tells what is wrong with one pod from an API server that is away for everybody.

    That one answers 401 (our credentials), 429 (too many requests), 503, or takes no connection. Any other error of
    its own may come from what this pod is like: its size, what policies have to look through, somebody's webhook.
    """
    # 422 is how the API server answers a JSON Patch whose test fails.
    if error.not_found or error.conflict or error.status == 422:
        return ChangedMeanwhileError(error.message)
    if error.status in {400, 403, 413}:
        return RefusedError(str(error))
    if error.unanswered or (error.status >= 500 and error.status != 503):
        return NotWrittenError(str(error))
    return SourceError(str(error))


def _shard_path(shard: int) -> str:
    return f"{CONFIG_MAPS}/fairgpu-timekeeper-checkpoints-{shard}"


def _checkpoints(config_map: Json) -> dict[str, Json]:
    try:
        found = json.loads((config_map.get("data") or {}).get(CHECKPOINTS_KEY, "{}"))
    except ValueError as error:
        _log.error("checkpoints cannot be read", name=config_map["metadata"]["name"], error=str(error))
        return {}
    return found if isinstance(found, dict) else {}


def _all(_item: Json) -> bool:
    return True


def _event(notice: Notice, namespace: str) -> Json:
    metadata = notice.regarding.get("metadata") or {}
    regarding = {
        "apiVersion": notice.regarding.get("apiVersion", "v1"),
        "kind": notice.regarding.get("kind", "Pod"),
        **{key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)},
    }
    named = {"name": f"fairgpu-{notice.id}"} if notice.id else {"generateName": "fairgpu-"}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {**named, "namespace": namespace},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning" if notice.warning else "Normal",
        "reason": notice.reason,
        "action": notice.reason,
        "note": notice.message[:1024],
        "regarding": regarding,
        "reportingController": "fairgpu.io/timekeeper",
        "reportingInstance": names.TIMEKEEPER_ACCOUNT,
    }
