"""Prepares a container before the kubelet starts it: identifies it, checks that it fits, and writes its files.

All state lies on the host (nodeagent.containers.folders), where a restarted agent reads it.
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from fairgpu.choices import read_choices
from fairgpu.cluster.api import ApiError, Json
from nodeagent.containers import folders as files
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import Record, check_unread, ended, given, superseded
from nodeagent.containers.refusal import Cause, PlacementRefusedError
from nodeagent.containers.resolving import (
    Listed,
    claim,
    container_of,
    holder,
    identity_of,
    is_live,
    live_pod,
    start_is_certain,
    without_ends_before,
)
from nodeagent.offer import Offer
from nodeagent.pods import NodePods, read

_log = structlog.get_logger(__name__)

WATCH_SECONDS = 2.0
"""The time after which a pod that the watch has not shown is requested from the API server."""
DOUBT_SECONDS = 10.0
"""The longest time that the API server may lag behind the kubelet before a start is refused; the kubelet waits 30 s."""
SURE_SECONDS = 3.0
"""The time for which the API server must show that an init container has failed before that counts. The kubelet may
start the next container before it reports that the init container has since started again and completed."""
LOOK_SECONDS = 0.1
SETTLE_SECONDS = 1.0
"""The time from the removal or replacement of a CDI spec until a runtime has read the change.

containerd reads all specs anew after each change: a hundred of 17 KB, as NVIDIA's toolkit writes them, took it half a
second. Until then it makes a container by the earlier spec, whose files are gone: the container fails to start, and its
pod with it where it is not restarted."""


def host_booted() -> dt.datetime:
    """Returns when the host booted, by its present clock."""
    return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))


@dataclass(frozen=True)
class StartEnvironment:
    """The functions by which `Starter` learns of the node, and one that it calls after each change of a record.

    Attributes:
        node: this node's name.
        listing: returns the containers that hold slots of `fairgpu.io/gpu`, as the kubelet lists them; raises
            KubeletError if the kubelet does not answer.
        pods: the mirror of the node's pods, which a watch keeps; it may lag behind the API server.
        read_pod: requests a pod from the API server, given its namespace and its name; returns it whole, as JSON, and
            raises ApiError if the server lacks it or does not answer.
        offer: returns the GPUs that the node offers now; None until the driver has answered once.
        changed: called with the records of all containers after each change; raises OSError if the host has no room for
            the page writer's input, which is made of them.
        made: returns the pod's uid and the name of each container that the runtime has made and that has not ended, as
            far as the runtime shows it; the name is empty for a pod's sandbox.
        made_starts: returns the folder of each start by whose CDI spec the runtime has made a container.
        wait: sleeps for a number of seconds.
        booted: returns when the host booted, by its present clock.
    """

    node: str
    listing: Callable[[], list[Listed]]
    pods: NodePods
    read_pod: Callable[[str, str], Json]
    offer: Callable[[], Offer | None]
    changed: Callable[[Iterable[Record]], None]
    made: Callable[[], frozenset[tuple[str, str]]] = frozenset
    made_starts: Callable[[], frozenset[str]] = frozenset
    wait: Callable[[float], object] = time.sleep
    booted: Callable[[], dt.datetime] = host_booted


class Starter:
    """Prepares the starts of containers, several at a time, and keeps the containers' records until their pods end.

    Attributes:
        shim: the shim's file on the host; None until it is written there. Any thread may replace it.
    """

    def __init__(self, environment: StartEnvironment, folders: Folders, shim: Path | None = None) -> None:
        self._environment = environment
        self._folders = folders
        self.shim = shim
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], Record] = {}
        self._unread: set[tuple[str, str]] = set()
        """The uid and container of each record that cannot be read; the container may run."""
        self._outliving: frozenset[tuple[str, str]] = frozenset()
        """The uid and container of each container that went on after its pod at the last `collect`."""
        self._has_ended = False
        self._changed_specs: dict[str, float] = {}
        """The name of each CDI spec that was removed or replaced in the last SETTLE_SECONDS, and when: in seconds of a
        monotonic clock."""

    def recover(self) -> None:
        """Reads the records that an earlier agent left on the host, and removes the files of containers without one.

        If a record cannot be read, its container's GPUs get no new container until that container starts again, or its
        pod has ended.

        Raises:
            OSError: the host has no room for the page writer's input, or refuses to remove a file; the records are read
                nevertheless.
        """
        with self._lock:
            for found in files.read_records(self._folders):
                if isinstance(found, Record):
                    self._records[found.uid, found.container] = found
                else:
                    path, error = found
                    self._unread.add((path.parent.parent.name, path.parent.name))
                    _log.warning("record unreadable", path=str(path), error=str(error))
            unread = [self._folders.of_container(*each) for each in self._unread]
            removed = files.remove_unknown(self._folders, list(self._records.values()), unread)
            if removed:
                _log.info("files of no container removed", paths=[str(path) for path in removed])
            self._environment.changed(list(self._records.values()))

    def prepare(self, slots: frozenset[str]) -> Record:
        """Writes all files that the container with these slots needs to start; returns its record.

        If another spec had the name of the container's CDI spec a moment ago, the runtime may still use that other
        spec: the call then waits until SETTLE_SECONDS have passed since.

        Args:
            slots: the ids of the device plugin's slots that the kubelet gave to the container.

        Raises:
            PlacementRefusedError: the container must not start.
            KubeletError: the kubelet does not answer.
            ValueError: the record does not fit the container's configuration file.
        """
        listing = self._environment.listing()
        namespace, name = holder(listing, slots, self._environment.pods.all())
        pod = self._pod(namespace, name)
        if not self._has_prepared(pod, slots):
            pod = without_ends_before(pod, self._environment.booted())
        container = container_of(pod, listing, slots)
        if self._was_prepared(pod, container):
            pod, container = self._certain(pod, container, listing, slots)
        wanted = claim(pod, container, slots, self._environment.node)
        choices = read_choices(pod["metadata"]["annotations"], ("metadata",)).choices
        offer = self._environment.offer()
        if offer is None:
            raise PlacementRefusedError(
                Cause.UNUSABLE_DEVICE,
                "the node's GPUs are not known: their driver has not answered since the node agent started",
                wanted.identity,
            )
        with self._lock:
            if self._has_ended:
                raise PlacementRefusedError(
                    Cause.NOT_PREPARED, "the node agent ends: the next one prepares the container", wanted.identity
                )
            known = list(self._records.values())
            check_unread(wanted, self._unread, self._environment.pods.all())
            record = given(wanted, choices, known, offer.devices, _new_key)
            vendor = [offer.edits[device.uuid] for device in record.devices]
            if self._folders.spec(record).exists():
                self._note_changed_spec(record)
            try:
                files.write(self._folders, record, vendor, self.shim)
                self._replace(record, superseded(record, known))
            except (OSError, ValueError) as error:
                raise PlacementRefusedError(
                    Cause.NOT_PREPARED, f"the node cannot write the container's files: {error}", wanted.identity
                ) from error
            settled_seconds = self._changed_specs.get(record.cdi_device, float("-inf")) + SETTLE_SECONDS
        self._environment.wait(max(settled_seconds - time.monotonic(), 0.0))
        _log.info(
            "container prepared",
            namespace=namespace,
            pod=name,
            uid=record.uid,
            container=container,
            start=record.start,
            devices=[device.uuid for device in record.devices],
        )
        return record

    def remove_used_specs(self) -> None:
        """Removes the CDI spec of each container that the runtime has made with it; the next start writes another.

        After `end`, nothing is removed.

        There are two reasons. A runtime reads all specs anew after each change, so that many specs delay each start.
        And a kubelet that has restarted starts containers again without asking the agent, until the device plugin has
        registered with it: without the spec, such a start fails.

        Raises:
            OSError: the host refuses to remove a spec; those of other containers are removed nevertheless.
        """
        unused = files.with_spec(self._folders, self.records())
        if not unused:
            return
        made = self._environment.made_starts()
        refusals = list[OSError]()
        with self._lock:
            for record in unused:
                is_present = self._records.get(_holder(record)) == record and not self._has_ended
                if is_present and str(self._folders.start(record)) in made:
                    try:
                        files.remove_spec(self._folders, record)
                    except OSError as error:
                        refusals.append(error)
                        continue
                    self._note_changed_spec(record)
        if refusals:
            raise refusals[0]

    def show(self) -> None:
        """Passes the records of all containers to `StartEnvironment.changed`; does nothing after `end`.

        A start that comes meanwhile waits, and then passes on newer records: the older records never come after the
        newer ones.

        Raises:
            OSError: the host has no room for the page writer's input.
        """
        with self._lock:
            if not self._has_ended:
                self._environment.changed(list(self._records.values()))

    def has_ended_ones(self) -> bool:
        """Returns True if a container's pod has ended or is not known, so that `collect` must run; else False."""
        pods = self._environment.pods.all()
        return bool(ended(self.records(), pods) or self._unread_of_ended(pods))

    def collect(self) -> None:
        """Removes the records and files of containers whose pods are deleted or have ended; nothing after `end`.

        A container that goes on after its pod keeps its record and files until it ends. There are such containers: a
        deletion by force leaves containers their grace period, and a node that comes back may still run containers of
        pods that were removed meanwhile.

        The records that stay are passed to `StartEnvironment.changed`. A pod that the watch has not shown is read
        from the API server, since the watch may lag behind. While the server is silent, this takes half a minute for
        each pod, and the records stay. For a container whose record cannot be read, the watch alone counts.

        Raises:
            OSError: the host has no room for the page writer's input; the ended containers' files are removed
                nevertheless. Or the host refuses to remove a CDI spec: record and files of its container then stay
                until the next call, and those of the others are removed.
        """
        made = self._environment.made()
        candidates = ended(self.records(), self._environment.pods.all())
        self._log_outliving([record for record in candidates if _holder(record) in made])
        over = [record for record in candidates if _holder(record) not in made and not self._lives(record)]
        with self._lock:
            if self._has_ended:
                return
            over = [record for record in over if self._records.get((record.uid, record.container)) == record]
            refusals = list[OSError]()
            for record in over:
                has_spec = self._folders.spec(record).exists()
                try:
                    files.remove(self._folders, record)
                except OSError as error:
                    refusals.append(error)
                    continue
                del self._records[record.uid, record.container]
                if has_spec:
                    self._note_changed_spec(record)
            for uid, container in self._unread_of_ended(self._environment.pods.all()):
                if (uid, container) in made:
                    continue
                self._unread.discard((uid, container))
                files.remove_unread(self._folders, uid, container)
            self._environment.changed(list(self._records.values()))
        if refusals:
            raise refusals[0]

    def end(self) -> None:
        """Makes this object write no more files, since the next agent writes from now on.

        A start that is still being prepared is refused.
        """
        with self._lock:
            self._has_ended = True

    def records(self) -> list[Record]:
        """Returns the records of the node's containers that are alive or starting."""
        with self._lock:
            return list(self._records.values())

    def unread(self) -> list[tuple[str, str]]:
        """Returns the pod's uid and the name of each container whose record cannot be read, and which may run."""
        with self._lock:
            return list(self._unread)

    def _log_outliving(self, records: Iterable[Record]) -> None:
        """Logs, once for each container, that it goes on after its pod has ended."""
        outliving = list(records)
        for record in outliving:
            if _holder(record) not in self._outliving:
                _log.warning(
                    "container outlives its pod",
                    namespace=record.namespace,
                    pod=record.pod,
                    uid=record.uid,
                    container=record.container,
                )
        self._outliving = frozenset(map(_holder, outliving))

    def _unread_of_ended(self, pods: Iterable[Json]) -> list[tuple[str, str]]:
        live = {str(pod["metadata"]["uid"]) for pod in pods if is_live(pod)}
        return [each for each in list(self._unread) if each[0] not in live]

    def _lives(self, record: Record) -> bool:
        for known in self._environment.pods.all():
            if known["metadata"]["uid"] == record.uid:
                return is_live(known)
        try:
            pod = self._environment.read_pod(record.namespace, record.pod)
        except ApiError as error:
            return not error.not_found
        return not ended([record], [pod])

    def _note_changed_spec(self, record: Record) -> None:
        """Stores that a container's CDI spec is being removed or replaced now; the caller holds the lock.

        Before a container starts with a spec of that name, `prepare` waits until SETTLE_SECONDS have passed since: the
        runtime notices such a change late.
        """
        now = time.monotonic()
        recent = {name: at for name, at in self._changed_specs.items() if now - at < SETTLE_SECONDS}
        self._changed_specs = {**recent, record.cdi_device: now}

    def _replace(self, record: Record, over: list[Record]) -> None:
        for each in over:
            if each.container != record.container:
                files.remove(self._folders, each, keep=record)
            elif each.cdi_device != record.cdi_device:
                files.remove_spec(self._folders, each)
            del self._records[each.uid, each.container]
        self._records[record.uid, record.container] = record
        self._unread.discard((record.uid, record.container))
        files.remove_earlier_starts(self._folders, record)
        self._environment.changed(list(self._records.values()))

    def _pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Returns the pod with this name that is about to start a container, as JSON.

        The watch may lag behind the kubelet, and still have an earlier pod of this name. The runtime shows that: it
        makes a pod's sandbox before the pod's containers start, and it has none of the earlier pod any more, unless
        that pod was deleted by force and still ends. A pod without a sandbox is read from the API server, and so is
        one that the watch has not shown.

        Raises:
            PlacementRefusedError: the pod cannot be read or has ended, or several pods of this name are alive.
        """
        found = self._environment.pods.wait_for(namespace, name, WATCH_SECONDS)
        uids = {uid for uid, _ in self._environment.made()}
        is_known = found is not None and (not uids or found["metadata"]["uid"] in uids)
        return found if found is not None and is_known else self._asked(namespace, name)

    def _asked(self, namespace: str, name: str) -> Mapping[str, Any]:
        try:
            found = read(self._environment.read_pod(namespace, name))
        except ApiError as error:
            raise PlacementRefusedError(
                Cause.UNKNOWN_CONTAINER, f"pod {namespace}/{name} cannot be read: {error}"
            ) from error
        pod = live_pod([found], namespace, name)
        if pod is None:
            raise PlacementRefusedError(
                Cause.UNKNOWN_CONTAINER, f"pod {namespace}/{name} has ended", identity_of(found)
            )
        return pod

    def _has_prepared(self, pod: Mapping[str, Any], slots: frozenset[str]) -> bool:
        """Returns whether a container of a pod was prepared with some of these slots since the boot, or may have been.

        If none was, the ends of init containers from before the boot, which the pod's status still shows, do not count.
        """
        uid = pod["metadata"]["uid"]
        with self._lock:
            return any(each.uid == uid and each.slots & slots for each in self._records.values()) or any(
                each[0] == uid for each in self._unread
            )

    def _was_prepared(self, pod: Mapping[str, Any], container: str) -> bool:
        ordinary = any(each["name"] == container for each in pod["spec"].get("initContainers") or [])
        with self._lock:
            return ordinary and (pod["metadata"]["uid"], container) in self._records

    def _certain(
        self, pod: Mapping[str, Any], container: str, listing: list[Listed], slots: frozenset[str]
    ) -> tuple[Mapping[str, Any], str]:
        """Asks the API server until it is certain which container of a pod starts; returns the pod and that container.

        Args:
            pod: the pod so far, as JSON.
            container: the name of the init container that starts, by the pod's status so far.
            listing: the containers that the kubelet lists.
            slots: the ids of the slots of the container that starts.

        Raises:
            PlacementRefusedError: it is not certain after DOUBT_SECONDS, or the pod cannot be read or has ended, or
                `container_of` refuses.
        """
        metadata = pod["metadata"]
        limit = time.monotonic() + DOUBT_SECONDS
        sure_at: float | None = None
        while time.monotonic() < limit:
            pod = self._asked(metadata["namespace"], metadata["name"])
            now = container_of(pod, listing, slots)
            if now != container:
                return pod, now
            if not start_is_certain(pod, container):
                sure_at = None
            elif sure_at is None:
                sure_at = time.monotonic() + SURE_SECONDS
            elif time.monotonic() >= sure_at:
                return pod, now
            time.sleep(LOOK_SECONDS)
        raise PlacementRefusedError(
            Cause.AMBIGUOUS,
            f"the API server does not say whether init container {container} has ended",
            identity_of(pod),
        )


def _holder(record: Record) -> tuple[str, str]:
    return record.uid, record.container


def _new_key() -> int:
    """Returns a random key for a slot of a schedule page; never 0, which marks a free slot."""
    return secrets.randbits(64) or 1
