"""A folder of one machine in place of the API server and its Lease: for the demonstration, tests and a first look.

    budgets.yaml        GPUBudget objects, and GPUGrant and GPUCorrection objects beside them, as a YAML stream
    pods/UID.json       Pod objects as the API server would return them; removing the file deletes the pod
    nodes/NAME.json     Node objects, by whose labels pods of other stacks are metered
    claims/NAME.json    ResourceClaim objects, and in slices/ ResourceSlice objects, for the same purpose
    quotas/NAME.json    ResourceQuota objects
    grants/NAME.json    GPUGrant objects that were made through the REST API, and in corrections/ GPUCorrection objects
    status/*.json       statuses that the timekeeper writes, and reads back with the objects
    events.jsonl        events that the timekeeper writes

Claims, slices and quotas are read only if pods of other stacks are metered.

A file is read again when it changes. Writers must write a new file and rename it, so that no file is read half-written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import structlog
import yaml

from fairgpu import names, yaml_text
from fairgpu.cluster.api import Json
from fairgpu.keeping import Wait, start_thread
from fairgpu.leadership import Term
from timekeeper.domain.timestamps import Instant
from timekeeper.sources.base import ChangedMeanwhileError, Mirror, Mirrors, ObjectEvent, uid_of
from timekeeper.sources.kubernetes import OwnResources, keeps

POLL_SECONDS = 0.1

_NAME = re.compile(r"[a-z0-9][-.a-z0-9]{0,252}")

_log = structlog.get_logger()


class FolderSource:
    """A folder of one machine in place of the API server: its files are the objects that are watched and written.

    A write may also raise OSError.
    """

    def __init__(self, folder: Path, now: Callable[[], Instant], own: OwnResources = None) -> None:
        """Makes a source that has read nothing yet.

        Args:
            now: returns the local time in nanoseconds since 1970.
            own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other
                stacks are not metered.
        """
        self._folder = folder
        self._is_kept = keeps(own)
        self._read: dict[Path, tuple[tuple[int, int, int], list[Json]]] = {}
        self._stated: dict[Path, tuple[Json, Json, Json]] = {}
        """Keyed by a status's file: an object, its status, and both joined. The joined object stays the same until
        either changes, so that readers notice changes by identity.
        """
        self._mirrors = Mirrors(
            pods=Mirror("pods", now, self._is_kept),
            nodes=Mirror("nodes", now),
            node_leases=Mirror("node_leases", now),
            namespaces=Mirror("namespaces", now),
            budgets=Mirror("budgets", now),
            grants=Mirror("grants", now),
            corrections=Mirror("corrections", now),
            claims=Mirror("claims", now),
            slices=Mirror("slices", now),
            quotas=Mirror("quotas", now),
        )
        self._holds_elsewhere = own is not None

    @property
    def mirrors(self) -> Mirrors:
        """The mirrors of the watched collections; the mirrors of the nodes' Leases and of namespaces stay empty."""
        return self._mirrors

    def start(self, wait: Wait) -> None:
        """Reads the folder now, and then again and again in a thread, until `wait` returns that the process ends."""
        self.refresh()

        def follow() -> None:
            while not wait(POLL_SECONDS):
                self.refresh()

        start_thread("watch-folder", follow, wait)

    def refresh(self) -> None:
        """Updates the mirrors from the folder's files.

        An object whose file is missing or unreadable counts as deleted.
        """
        objects = self._objects([self._folder / "budgets.yaml"])
        orders = self._objects(
            file for folder in ("grants", "corrections") for file in sorted((self._folder / folder).glob("*.json"))
        )
        pods = self._objects(sorted((self._folder / "pods").glob("*.json")))
        for kind, mirror in (
            ("GPUBudget", self._mirrors.budgets),
            ("GPUGrant", self._mirrors.grants),
            ("GPUCorrection", self._mirrors.corrections),
        ):
            items = [item for item in (*objects, *orders) if item.get("kind") == kind]
            _update(mirror, [self._stating(item) for item in items])
        held = self._mirrors.pods
        _update(held, [pod for pod in pods if held.get(uid_of(pod)) is not None or self._is_kept(pod)])
        _update(self._mirrors.nodes, self._objects(sorted((self._folder / "nodes").glob("*.json"))))
        for kind in ("claims", "slices", "quotas"):
            files = sorted((self._folder / kind).glob("*.json")) if self._holds_elsewhere else []
            _update(getattr(self._mirrors, kind), self._objects(files))
        for mirror in (self._mirrors.node_leases, self._mirrors.namespaces):
            _update(mirror, [])

    def lift_gate(self, pod: Json) -> None:
        """Removes the budget's scheduling gate from the pod's file.

        Raises:
            ChangedMeanwhileError: there is no such file, or the pod has no such gate.
        """
        file = self._folder / "pods" / f"{uid_of(pod)}.json"
        documents = _load(file)
        gates = [gate for item in documents for gate in item["spec"].get("schedulingGates", [])]
        if not any(gate.get("name") == names.BUDGET_GATE for gate in gates):
            raise ChangedMeanwhileError(f"pod {uid_of(pod)} is gone or has no budget gate")
        documents[0]["spec"]["schedulingGates"] = [gate for gate in gates if gate.get("name") != names.BUDGET_GATE]
        write_json(file, documents[0])

    def remove_finalizer(self, pod: Json) -> None:
        """Removes the meter's finalizer from the pod's file.

        The file is deleted if no other finalizer is left and the pod is being deleted with a grace period of 0.

        Raises:
            ChangedMeanwhileError: there is no such file, or the pod has no such finalizer.
        """
        file = self._folder / "pods" / f"{uid_of(pod)}.json"
        document = next(iter(_load(file)), {})
        metadata: Json = document.get("metadata") or {}
        finalizers = metadata.get("finalizers") or []
        if names.METER_FINALIZER not in finalizers:
            raise ChangedMeanwhileError(f"pod {uid_of(pod)} is gone or has no finalizer of the meter")
        left = [name for name in finalizers if name != names.METER_FINALIZER]
        if not left and metadata.get("deletionGracePeriodSeconds") == 0:
            file.unlink(missing_ok=True)
        else:
            write_json(file, {**document, "metadata": {**metadata, "finalizers": left}})

    def label_gpu_pod(self, pod: Json) -> None:
        """Writes the label of GPU pods to the pod's file, and removes the reserved annotations.

        Raises:
            ChangedMeanwhileError: there is no such file.
        """
        file, document = self._pod(pod)
        metadata = document["metadata"]
        metadata.setdefault("labels", {})[names.POD_LABEL] = names.POD_LABEL_VALUE
        for key in names.RESERVED_ANNOTATIONS:
            metadata.get("annotations", {}).pop(key, None)
        write_json(file, document)

    def announce_eviction(self, pod: Json, at: str | None) -> None:
        """Writes the time of a pod's eviction to an annotation in the pod's file, or removes the annotation.

        Args:
            at: the time as an RFC 3339 timestamp; None removes the annotation.

        Raises:
            ChangedMeanwhileError: there is no such file.
        """
        file, document = self._pod(pod)
        annotations = document["metadata"].setdefault("annotations", {})
        annotations.pop(names.EVICTION_AT, None)
        if at is not None:
            annotations[names.EVICTION_AT] = at
        write_json(file, document)

    def evict(self, pod: Json) -> None:
        """Deletes the pod's file; a folder has no PodDisruptionBudgets.

        Raises:
            ChangedMeanwhileError: there is no such file.
        """
        try:
            (self._folder / "pods" / f"{uid_of(pod)}.json").unlink()
        except FileNotFoundError as error:
            raise ChangedMeanwhileError(f"pod {uid_of(pod)} is gone") from error

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:  # noqa: ARG002 - files have none
        """Writes the status of a GPUBudget to the file status/budget-NAME.json.

        Args:
            version: ignored, since files have no version.
        """
        write_json(self._status_file("budget", name), status)

    def read_checkpoints(self) -> dict[str, Json]:
        """Returns the checkpoint documents in the files status/checkpoints-SHARD.json, keyed by name."""
        files = sorted((self._folder / "status").glob("checkpoints-*.json"))
        return {name: checkpoint for shard in self._objects(files) for name, checkpoint in shard.items()}

    def write_checkpoints(self, shard: int, checkpoints: dict[str, Json]) -> None:
        """Writes the checkpoint documents of one shard to status/checkpoints-SHARD.json."""
        write_json(self._folder / "status" / f"checkpoints-{shard}.json", checkpoints)

    def write_grant_status(self, name: str, status: Json) -> None:
        """Writes a GPUGrant's status to status/grant-NAME.json."""
        write_json(self._status_file("grant", name), status)

    def write_correction_status(self, name: str, status: Json) -> None:
        """Writes a GPUCorrection's status to status/correction-NAME.json."""
        write_json(self._status_file("correction", name), status)

    def record_event(self, event: ObjectEvent) -> None:
        """Appends an event to the file events.jsonl; a failure is logged and not raised."""
        line = {
            "regarding": uid_of(event.regarding),
            "reason": event.reason,
            "message": event.message,
            "warning": event.warning,
            "id": event.id,
        }
        try:
            with (self._folder / "events.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            name = (event.regarding.get("metadata") or {}).get("name")
            _log.warning("event not written", reason=event.reason, name=name, error=str(error))

    def _pod(self, pod: Json) -> tuple[Path, Json]:
        """Returns a pod's file, and the pod as the file shows it now.

        Raises:
            ChangedMeanwhileError: there is no such file.
        """
        file = self._folder / "pods" / f"{uid_of(pod)}.json"
        documents = _load(file)
        if not documents:
            raise ChangedMeanwhileError(f"pod {uid_of(pod)} is gone")
        return file, documents[0]

    def _status_file(self, kind: str, name: str) -> Path:
        return self._folder / "status" / f"{kind}-{name}.json"

    def _stating(self, item: Json) -> Json:
        """Returns an object with the status in the object's status file; unchanged if the timekeeper wrote none."""
        kind = str(item.get("kind")).removeprefix("GPU").lower()
        metadata = item.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return item  # the reader of its spec reports the fault
        file = self._status_file(kind, name)
        statuses = self._objects([file])
        if not statuses:
            return item
        (status,) = statuses
        stated = self._stated.get(file)
        if stated is None or stated[0] is not item or stated[1] is not status:
            stated = self._stated[file] = (item, status, {**item, "status": status})
        return stated[2]

    def _objects(self, files: Iterable[Path]) -> list[Json]:
        """Returns the objects in these files; reads only files that have changed, and skips files that are missing."""
        objects: list[Json] = []
        for file in files:
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if file not in self._read or self._read[file][0] != version:
                self._read[file] = (version, _load(file))
            objects.extend(self._read[file][1])
        return objects


def write_json(file: Path, document: Json) -> None:
    """Writes a JSON document to a file in one step, so that no reader sees the file half-written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    beside.write_text(json.dumps(document))
    beside.replace(file)


def _load(file: Path) -> list[Json]:
    """Returns the objects in a file of JSON or a YAML stream; none if the file is missing or unreadable.

    An unreadable file is logged.
    """
    try:
        data = file.read_bytes()
        documents: list[Any] = [json.loads(data)] if file.suffix == ".json" else yaml_text.load_all(data)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        _log.error("file not read", file=str(file), error=str(error))
        return []
    return [document for document in documents if isinstance(document, dict)]


def _update(mirror: Mirror, items: list[Json]) -> None:
    """Makes a mirror hold exactly these objects, by the events that a watch would have sent for the changes."""
    if mirror.confirmed_at is None:
        mirror.replaced(items)
    present = {uid_of(item): item for item in items}
    for item in mirror.items():
        if uid_of(item) not in present:
            mirror.changed("DELETED", item)
    for uid, item in present.items():
        if mirror.get(uid) is not item:
            mirror.changed("MODIFIED", item)
    mirror.confirmed()


FOREVER = float("inf")


def campaign_by_lock(file: Path, term: Term, floor: Callable[[], int], wait: Wait, retry_seconds: float = 0.2) -> None:
    """Leads as soon as no other process holds the lock on a file, until the process ends.

    The kernel releases the lock when the process ends. The term's number is higher than the last number in the file and
    than the highest one in the store.

    Args:
        file: the file, which also keeps the number of the last term.
        term: the term that begins when the lock is taken.
        floor: returns the highest number of a term that the store has recorded.
        wait: sleeps for a number of seconds; returns whether the process ends.
        retry_seconds: the seconds between two attempts to take the lock.

    Raises:
        OSError: the file cannot be opened or written.
        ValueError: the file contains no number.
        Exception: any error that `floor` raises. After an error, this process does not lead.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _locked(descriptor):
            if wait(retry_seconds):
                return
        number = max(int(os.pread(descriptor, 32, 0) or b"0"), floor()) + 1
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(number).encode(), 0)
        term.hold(number, FOREVER)
        while not wait(retry_seconds):
            if term.number() is None:  # the store refused this term, and the lock is still held
                term.hold(number, FOREVER)
    finally:
        term.lose()
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
