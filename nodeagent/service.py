"""Assembles the node agent and runs it until it is stopped; containers go on after its end."""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from fairgpu import names
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection, reflect
from fairgpu.cluster.warning_events import About, RepeatedWarnings
from fairgpu.inventory import Health, Inventory, InventoryError
from fairgpu.keeping import keep_running
from fairgpu.serving.process_probe import Progress, serve_probe
from nodeagent import faults, figures_file, handover
from nodeagent.containers import folders as files
from nodeagent.containers.config_file import LEDGER_PATH
from nodeagent.containers.folders import Folders
from nodeagent.containers.records import Record
from nodeagent.containers.refusal import PlacementRefusedError
from nodeagent.driver_figures import Figure
from nodeagent.faults import Faults
from nodeagent.foreign import ForeignSlices, foreign_resources, slices_of
from nodeagent.gpu_watch import GpuWatch, Node, end
from nodeagent.kubelet.device_plugin import Offered, Slots, keep_registered
from nodeagent.kubelet.pod_resources import KubeletError, PodResources
from nodeagent.kubelet.registration import Loss
from nodeagent.ledger_slots import MOST_SLOTS
from nodeagent.measures import Measures, NodeCollector
from nodeagent.node_object import NodeMirror, read_node, write_node
from nodeagent.node_patches import shows_slots, status_written
from nodeagent.offer import NOT_APPLIED, DriverReplacedError, Offer, RuntimeFailure, Vendor, slot_ids, withholdings
from nodeagent.owners import Owned, ProcessState
from nodeagent.pages import SCHEDULE
from nodeagent.pods import NodePods, by_kubelets_uid, kubelets_uid, read
from nodeagent.processes import is_of_node, process_names
from nodeagent.publishing import notices, schedule, to_show
from nodeagent.runtime.devices import (
    Bundles,
    Made,
    RuntimeConfiguration,
    RuntimeStatus,
    RuntimeStatusError,
    administers,
)
from nodeagent.settings import Nodeagent
from nodeagent.starting import StartEnvironment, Starter
from nodeagent.whole_gpus import WholeGpus
from nodeagent.writer_process import WriterProcess

_log = structlog.get_logger(__name__)

ENDPOINT = "fairgpu.sock"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The file in which the kernel gives the id of this boot (proc(5))."""
ROUND_SECONDS = 1.0
STUCK_SECONDS = 120.0
"""The longest time that a round of the main loop takes on a machine without a free core: all in it is files in memory,
and a lock under which no thread asks a server."""
SHIM_SECONDS = 30.0
"""The time that the host has to take the shim, of less than a megabyte; after it, the host counts as not answering."""
HANDOVER_SECONDS = 0.05
"""The time between two checks whether the last agent has ended."""
END_SECONDS = 8.0
"""The longest time that the agent goes on after it was asked to end. A round that waits for the API server, or a start,
is broken off then. The next agent of the node waits for this end."""
REFUSED_REASON = "PlacementRefused"
INJECTING_REASON = "DefaultRuntimeInjects"
TAKEN_REASON = "ResourceTaken"
UNREAD_REASON = "ResourceSlicesNotRead"
UNSLOTTED_REASON = "GPUProcessWithoutSlot"
LEDGER_REASON = "LedgerTooLong"
WHY_LOST = {
    Loss.TAKEN: f"another device plugin has registered {names.GPU} with the kubelet of this node",
    Loss.UNFOLLOWED: "the kubelet has ended its call for the slots",
    Loss.HIDDEN: "the Node does not show the slots that are offered",
}
WHY_UNSLOTTED = {
    ProcessState.NOT_SHIMMED: "which the shim has not taken up: a program that is linked statically or with musl reads "
    "no /etc/ld.so.preload, and one that works by Vulkan or OpenCL goes past CUDA; what it uses is not limited",
    ProcessState.WITHOUT_SLOT: f"for which the shim's ledger has no slot left: {MOST_SLOTS} processes "
    "of the container have one; the shim refuses it memory, if it is under the shim",
    ProcessState.WITHOUT_SHARE: "of which the container has no piece: it reached the device by itself",
}


class Agent:
    """The node agent: offers the node's GPUs, prepares containers, and keeps the schedule pages current."""

    def __init__(self, settings: Nodeagent, api: KubernetesAPI, vendor: Vendor) -> None:
        self._settings = settings
        self._progress = Progress(STUCK_SECONDS)
        self._api = api
        self._vendor = vendor
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._events = RepeatedWarnings(api, "fairgpu-nodeagent", settings.node)
        self._registry = CollectorRegistry()
        self._measures = Measures()
        self._pods = NodePods(
            self._woken.set, lambda error: self._unreachable("pods", error), lambda: self._measures.confirmed("pods")
        )
        self._node = NodeMirror(
            self._woken.set, lambda error: self._unreachable("node", error), lambda: self._measures.confirmed("nodes")
        )
        self._slices = ForeignSlices(
            self._woken.set, self._slices_not_read, lambda: self._measures.confirmed("resourceslices")
        )
        self._folders = Folders(settings.run_folder, settings.shim_folder, settings.cdi_folder)
        self._slots = Slots(Offered())
        self._lost: Loss | None = None
        self._resources = PodResources(settings.kubelet.pod_resources)
        self._offer: Offer | None = None
        self._known: tuple[Json, Inventory, list[Json]] | None = None
        """The Node, inventory and pods of the last round, which say what the Node must have; None before the first."""
        self._right: tuple[Json, Inventory, list[Json]] | None = None
        """The Node, inventory and pods for which nothing was left to write on the Node; None before the first time."""
        self._node_due = threading.Event()
        self._collection_due = threading.Event()
        self._answered_at = time.monotonic()
        self._look_now = threading.Event()
        self._published: tuple[list[Record], Mapping[str, int]] | None = None
        """The records and notices of which the page writer's input is made; None while that is not known."""
        self._publishing = threading.Lock()
        self._writer = WriterProcess(self._folders.root, self._measures.writer_ends.inc)
        made = Made(settings.bundles)
        environment = StartEnvironment(
            settings.node,
            lambda: self._resources.listing(names.GPU),
            self._pods,
            lambda namespace, name: api.get(f"/api/v1/namespaces/{namespace}/pods/{name}"),
            lambda: self._offer,
            self._publish,
            made.look,
            made.starts,
        )
        self._starter = Starter(environment, self._folders)
        self._shim_error = ""
        """Why the shim is not on the host, by the last try that ended."""
        self._shim_since: float | None = None
        """The instant at which the present try to write the shim began; None while there is none."""
        self._shim_error_logged = ""
        self._shim_tried = threading.Event()
        node = Node(self._starter.records, self._pods.all, self._uuids, vendor.sample, self._starter.unread)
        self._gpu_watch = GpuWatch(node, self._folders)
        self._bundles = Bundles(settings.bundles)
        self._runtime: RuntimeConfiguration | None = None
        self._runtime_failure: RuntimeFailure | None = None
        """Why the runtime does not say how it is configured; it counts until it has said so once."""
        self._whole_gpus = WholeGpus(settings.kubelet.pods)
        self._lock = -1
        """The descriptor that holds the acting agent's lock; -1 before this agent acts."""
        self._collector = NodeCollector(
            lambda: self._gpu_watch.seen,
            self._starter.records,
            lambda: self._offer.inventory.devices if self._offer else (),
            lambda: self._offer.withheld if self._offer else {},
            self._writer,
        )

    def run(self) -> None:
        """Runs the agent until `stop` is called; first waits for the end of another agent of this node, if one runs.

        Raises:
            OSError: the host refuses the agent's files, or the port of the metrics is taken.
        """
        files.void_after_boot(self._folders, BOOT_ID.read_text().strip())
        settings = self._settings
        probe = serve_probe(settings.metrics_host, settings.metrics_port, self._registry, self._progress.lasts)
        try:
            self._writer.keep()
            lock = self._take_over()
            if lock is not None:
                self._lock = lock
                self._act()
                self._lock = -1  # a look that still runs must not write into another file of this number
                os.close(lock)
        finally:
            self._writer.end()
            probe.shutdown()
            probe.server_close()

    def _take_over(self) -> int | None:
        """Waits until no other agent acts; returns a descriptor that holds the acting agent's lock, None if stopped."""
        path = self._folders.root / handover.AGENT
        lock = handover.lock(path)
        if lock is not None:
            return lock
        _log.info("another agent runs", node=self._settings.node)
        return handover.wait_for(path, lambda: self._stop.wait(HANDOVER_SECONDS))

    def _act(self) -> None:
        self._measures.show(self._registry, time.time())
        self._registry.register(self._collector)
        # A watch waits for the API server's next event, for minutes: the agent's end does not wait for it.
        watched = (
            self._install_shim,
            self._watch_pods,
            self._watch_node,
            self._watch_slices,
            self._watch_runtime,
            self._watch_gpus,
            self._watch_faults,
            self._watch_processes,
            self._write_events,
            self._write_node,
            self._collect,
        )
        for part in (*watched, self._serve):
            self._measures.part_failures.labels(_name(part))
        watches = [threading.Thread(target=self._keep, args=(watch,), daemon=True) for watch in watched]
        plugin = threading.Thread(target=self._keep, args=(self._serve,), name="device-plugin")
        self._answered_at = time.monotonic()
        self._progress.note()
        try:
            self._starter.recover()
        except OSError as error:
            self._not_published(error)
        counted_ns = handover.noted_ns(self._folders.root / handover.AGENT)
        self._whole_gpus.go_on(self._starter.records(), counted_ns, time.monotonic_ns(), time.time_ns())
        for thread in (*watches, plugin):
            thread.start()
        try:
            while not self._stop.is_set():
                self._round()
                self._progress.note()
                self._woken.wait(ROUND_SECONDS)
                self._woken.clear()
        finally:
            self.stop()
            plugin.join()
            self._starter.end()  # a start that waits for a server outlasts the plugin
            self._events.end()
            self._resources.close()

    def _keep(self, part: Callable[[], None]) -> None:
        """Runs a part of the agent in its thread, and again after an error that the part does not handle itself.

        Such an error ends neither the other parts nor the writer of the pages, without which containers wait.
        """
        name = _name(part)
        keep_running(name, part, self._stop.wait, self._measures.part_failures.labels(name).inc)

    def stop(self) -> None:
        """Makes `run` return soon. Containers go on with the turns of the last schedule pages."""
        self._stop.set()
        self._woken.set()
        self._node_due.set()
        self._collection_due.set()

    def _round(self) -> None:
        """Runs one round: keeps the page writer running, and cuts ledgers that are too long.

        Once the node's pods are known, it also checks what the node offers, publishes the containers with their
        notices, and finds ended ones.

        The round waits for no server and not for the driver: other threads ask these, write the Node, and remove the
        files of ended containers.
        """
        self._writer.keep()
        self._log_why_no_shim()
        for record, is_cut in files.cut_ledgers(self._folders, self._starter.records()):
            self._warn_of_ledger(record, is_cut=is_cut)
        if not self._pods.known.is_set():
            return
        for record in self._bundles.look(self._starter.records(), self._pods.all()):
            self._warn_of_runtime(record)
        node = self._node.node
        if node is not None:
            self._open_or_withhold(node)
        for step in (self._starter.show, self._starter.remove_used_specs):
            try:
                step()
            except OSError as error:
                self._not_published(error)
        if self._starter.has_ended_ones():
            self._collection_due.set()

    def _collect(self) -> None:
        """Removes the records and files of ended containers whenever a round finds some, until the agent stops.

        It runs in a thread of its own, so that a silent API server delays no round.
        """
        while not self._stop.is_set():
            self._collection_due.wait()
            if not self._stop.is_set():
                try:
                    self._starter.collect()
                except OSError as error:
                    self._not_published(error)
            # What has ended meanwhile is found by the next round.
            self._collection_due.clear()

    def _open_or_withhold(self, node: Json) -> None:
        """Offers the kubelet the GPUs that the driver last named, and has inventory and capacity written into the Node.

        If `withholdings` gives reasons, no GPU is offered, and a warning event is written for each reason. No GPU is
        offered in three further cases: after the start, until the runtime, other drivers' offers and the shim are
        known; once a container was made without its CDI spec; and while another device plugin has taken the resource.
        """
        silent_seconds = time.monotonic() - self._answered_at
        foreign = [*foreign_resources(node), *self._slices.offers]
        runtime, failure = self._runtime, self._runtime_failure
        withheld = withholdings(
            foreign,
            silent_seconds,
            self._settings.look_seconds,
            applies_cdi=runtime is None or runtime.applies_cdi is not False,
            runtime_failure=failure if runtime is None else None,
            shim_error=self._why_no_shim(),
        )
        for reason in withheld:
            self._warn_node(reason.event, reason.message)
        if runtime is not None and runtime.injects:
            self._warn_of_injection(runtime.injects)
        offer = self._offer
        is_known = offer is not None and self._slices.known.is_set() and runtime is not None
        is_ours = self._lost is not Loss.TAKEN
        can_limit = self._starter.shim is not None and not self._bundles.failed
        is_open = is_known and is_ours and can_limit and not withheld
        self._measures.offering.set(is_open)
        if offer is None:
            return
        self._slots.replace(Offered(slot_ids(len(offer.inventory.devices)), open=is_open))
        self._known = node, offer.inventory, self._pods.all()
        if self._known != self._right:
            self._node_due.set()

    def _write_node(self) -> None:
        """Writes into the Node what each round finds missing there, until the agent stops.

        It runs in a thread of its own, so that a silent API server delays no round.
        """
        while not self._stop.is_set():
            self._node_due.wait()
            if not self._stop.is_set():
                self._write_what_is_left()
            # What came meanwhile waits for the next round, which may see the Node as it was written.
            self._node_due.clear()

    def _write_what_is_left(self) -> None:
        known = self._known
        # As in most rounds: what the Node must say took a third of a round to compute.
        if known is None or known == self._right:
            return
        try:
            written = write_node(self._api, *known)
        except (ApiError, InventoryError) as error:
            _log.warning("node not written", node=self._settings.node, error=str(error))
            return
        for what in written:
            _log.info("node written", node=self._settings.node, what=what)
        if not written:
            self._right = known

    def _look(self) -> None:
        """Reads the node's GPUs from the driver; if it does not answer, those that were read before stay.

        If the driver was replaced, the agent stops, so that the kubelet starts it again with the driver's new library.
        """
        try:
            offer = self._vendor.offer()
            self._answered_at = time.monotonic()
            self._measures.driver_answered()
        except DriverReplacedError as error:
            _log.error("driver replaced", error=str(error))
            self.stop()
            return
        except OSError as error:
            _log.warning("driver silent", error=str(error))
            return
        if self._offer is None or offer.inventory != self._offer.inventory:
            _log.info(
                "GPUs read",
                offered=[device.uuid for device in offer.inventory.devices],
                withheld=dict(offer.withheld),
            )
        self._offer = offer
        for device in offer.inventory.devices:
            if device.health is Health.FENCED:
                self._warn_node("GPUFenced", f"GPU {device.uuid} takes no new containers: {device.why}")
        for uuid, why in offer.withheld.items():
            self._warn_node("GPUNotOffered", f"GPU {uuid} is not offered: {why}")

    def _uuids(self) -> list[str]:
        return [device.uuid for device in self._offer.inventory.devices] if self._offer is not None else []

    def _prepare(self, slots: frozenset[str]) -> None:
        """Prepares the start of the container with these slots; counts, logs and reports a refusal, and raises it."""
        began = time.monotonic()
        try:
            self._pods.known.wait(ROUND_SECONDS)
            self._shim_tried.wait(ROUND_SECONDS)
            self._starter.prepare(slots)
            self._measures.started("prepared", time.monotonic() - began)
        except PlacementRefusedError as error:
            self._measures.started("refused", time.monotonic() - began)
            _log.warning("placement refused", cause=error.cause, pods=error.pods, error=str(error))
            for namespace, name, uid in error.pods:
                pod = by_kubelets_uid(self._pods.all(), uid)
                about = About("Pod", name, uid if pod is None else kubelets_uid(pod), namespace)
                self._events.warn(about, REFUSED_REASON, str(error), dt.datetime.now(dt.UTC))
            raise
        except KubeletError as error:
            self._measures.started("kubelet_silent", time.monotonic() - began)
            _log.warning("kubelet silent", error=str(error))
            raise
        except Exception:
            self._measures.started("refused", time.monotonic() - began)
            _log.exception("container not prepared")
            raise

    def _publish(self, records: Iterable[Record]) -> None:
        """Writes the page writer's input, `schedule.json`, if the containers' records or notices have changed.

        Raises:
            OSError: the host has no room.
        """
        known = list(records), notices(self._pods.all(), dt.datetime.now(dt.UTC), time.monotonic_ns())
        with self._publishing:
            if known == self._published:
                return
            self._published = None  # until all of it is published: what was published before may be known again next
            pages = to_show(*known)
            self._writer.is_to_show(pages)
            self._folders.root.mkdir(parents=True, exist_ok=True)
            files.put(self._folders.root / SCHEDULE, schedule(*known, self._folders), 0o600)
            self._writer.set_gpus(pages)
            self._published = known

    def _not_published(self, error: OSError) -> None:
        """Logs that the host refuses to write the page writer's input, or to remove a file; the next round tries again.

        The writer uses its last input until then.
        """
        _log.warning("schedule not written", error=str(error))

    def _serve(self) -> None:
        settings = self._settings.kubelet
        try:
            keep_registered(
                settings.device_plugins,
                ENDPOINT,
                names.GPU,
                self._slots,
                self._prepare,
                wait=self._stop.wait,
                attempted=self._log_registration,
                looked=self._note_loss,
                shown=self._shown,
                replaced=self._warn_of_another_plugin,
            )
        finally:
            self._measures.registered.set(0)

    def _shown(self) -> tuple[bool, str]:
        """Returns whether the Node shows the slots that are offered, and when the kubelet last wrote the Node's status.

        The first value is also True while the Node is unknown or no slot is offered. The time is a text that the Node
        has, and is empty while the Node is unknown.
        """
        node, offered = self._node.node, self._slots.offered
        if node is None:
            return True, ""
        return not offered.open or shows_slots(node, len(offered.ids)), status_written(node)

    def _note_loss(self, lost: Loss | None) -> None:
        """Stores why the kubelet does not ask this plugin, None if it does, and warns of a new reason."""
        before, self._lost = self._lost, lost
        if lost is before:
            return
        self._measures.registered.set(lost is None)
        self._woken.set()
        if lost in WHY_LOST:
            _log.warning("registration lost", reason=str(lost), error=WHY_LOST[lost])
        if lost is Loss.TAKEN:
            self._warn_node(
                TAKEN_REASON,
                f"{WHY_LOST[lost]}: FairGPU registers again, and offers nothing new here until the kubelet asks it; "
                "find the other plugin's pod, and remove it from this node",
            )

    def _warn_of_another_plugin(self) -> None:
        """Warns that another device plugin had registered the same resource before this one replaced it."""
        _log.warning("another plugin had the resource", resource=names.GPU)
        self._warn_node(
            TAKEN_REASON,
            f"another device plugin had registered {names.GPU} with the kubelet of this node before FairGPU did: the "
            "kubelet asks FairGPU now, and would stop at the other plugin's end; if it still runs, find its pod, and "
            "remove it from this node",
        )

    def _install_shim(self) -> None:
        """Writes the shim to the host; tries again every `look_seconds` of the settings while the host refuses.

        No GPU is offered before the shim is written. A shim of an earlier version on the host does not count: it may
        read another form of the containers' files.
        """
        while not self._stop.is_set():
            self._shim_since = time.monotonic()
            try:
                shim = files.install_shim(self._folders, self._settings.shim)
            except OSError as error:
                self._shim_error = str(error)
            else:
                self._measures.shim_installed.set(1)
                self._starter.shim, self._shim_error = shim, ""
            self._shim_since = None
            self._shim_tried.set()
            self._woken.set()
            if not self._shim_error:
                return
            self._stop.wait(self._settings.look_seconds)

    def _why_no_shim(self) -> str:
        """Returns why the shim is not on the host; empty if it is, or in the first SHIM_SECONDS of the first try."""
        since = self._shim_since
        if since is None or time.monotonic() - since <= SHIM_SECONDS:
            return self._shim_error
        return f"it has not answered for more than {SHIM_SECONDS:g} seconds"

    def _log_why_no_shim(self) -> None:
        """Logs why the shim is not on the host, if the reason differs from that of the last call."""
        error = self._why_no_shim()
        if error and error != self._shim_error_logged:
            _log.error("shim not installed", error=error)
        self._shim_error_logged = error

    def _watch_pods(self) -> None:
        selectors = {"fieldSelector": f"spec.nodeName={self._settings.node}"}
        reflect(self._api, Collection("/api/v1/pods", selectors, read), self._pods, self._stop.wait, random.random)

    def _watch_node(self) -> None:
        selectors = {"fieldSelector": f"metadata.name={self._settings.node}"}
        reflect(
            self._api, Collection("/api/v1/nodes", selectors, read_node), self._node, self._stop.wait, random.random
        )

    def _watch_slices(self) -> None:
        """Follows the ResourceSlices by which NVIDIA's driver for Dynamic Resource Allocation offers the node's GPUs.

        An API server without that API has no ResourceSlices. If it gets the API later, the agent follows them after its
        next start. While the API server does not say whether it has the API, it is asked again every ROUND_SECONDS.
        """
        while not self._stop.is_set():
            try:
                collection = slices_of(self._api, self._settings.node)
            except ApiError as error:
                self._slices_not_read(error)
                self._stop.wait(ROUND_SECONDS)
                continue
            if collection is None:
                self._measures.not_watched("resourceslices")
                self._slices.replaced([])
            else:
                reflect(self._api, collection, self._slices, self._stop.wait, random.random)
            return

    def _watch_runtime(self) -> None:
        """Asks the runtime every `look_seconds` for its configuration; while it is silent, the last answer counts.

        Until the runtime first states its configuration, it is asked every ROUND_SECONDS: before that, no GPU is
        offered.
        """
        status = RuntimeStatus(self._settings.runtime_socket)
        while not self._stop.is_set():
            try:
                found = status.ask(self._settings.cdi_folder)
                self._measures.runtime_answered()
                self._runtime, self._runtime_failure = found, None
            except RuntimeStatusError as error:
                before = self._runtime_failure
                if before is None or before.answers is not error.answers:
                    if error.answers:
                        _log.warning("runtime refuses", error=str(error))
                    else:
                        _log.warning("runtime silent", error=str(error))
                self._runtime_failure = RuntimeFailure(str(error), error.answers)
            self._woken.set()
            self._stop.wait(self._settings.look_seconds if self._runtime is not None else ROUND_SECONDS)

    def _watch_faults(self) -> None:
        """Makes the agent read the GPUs as soon as the driver reports a fault, or stops reporting faults.

        NVML stops reporting once a GPU is lost. After ROUND_SECONDS it is asked for reports again, since other GPUs may
        fail, too.
        """
        logged = ""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._vendor.watch(lambda: not self._stop.is_set(), self._look_soon)
            except OSError as error:
                # Where events came for a while in between, this is a new failure, even with the same text.
                if str(error) != logged or time.monotonic() - began > ROUND_SECONDS:
                    _log.warning("no events of faults", error=str(error))
                    self._look_soon()
                logged = str(error)
            self._stop.wait(ROUND_SECONDS)

    def _watch_gpus(self) -> None:
        """Reads the GPUs every `look_seconds` and after faults; a driver that hangs delays nothing else."""
        while not self._stop.is_set():
            self._look()
            self._woken.set()
            self._look_now.wait(self._settings.look_seconds)
            self._look_now.clear()

    def _watch_processes(self) -> None:
        """Asks the driver what each container uses, at an interval until the agent stops, and publishes the figures.

        It warns of processes that no share limits, and kills them if the settings say so.
        """
        while not self._gpu_watch.stops_before_the_next_look(self._stop.wait):
            before = self._gpu_watch.seen
            seen = self._gpu_watch.look(time.monotonic())
            if self._stop.is_set():
                return  # the driver may have taken long, and the next agent of the node writes these files already
            for uuid in seen.silent.keys() - before.silent.keys():
                _log.warning("driver silent", uuid=uuid, error=seen.silent[uuid])
            self._publish_figures()
            now_ns = time.monotonic_ns()
            self._whole_gpus.write(self._starter.records(), seen, now_ns, time.time_ns())
            handover.note(self._lock, now_ns)
            for uuid, stray in self._gpu_watch.reportable():
                self._warn_of(uuid, stray)
            if self._settings.unslotted_processes == "kill":
                self._end_overdue()

    def _publish_figures(self) -> None:
        gpus: dict[str, dict[tuple[int, int], Figure]] = {}
        figures = self._gpu_watch.seen.figures
        for record in self._starter.records():
            for device in record.devices:
                figure = figures.get((record.uid, record.container, device.uuid))
                if figure is not None and not record.whole:
                    gpus.setdefault(device.uuid, {})[device.slot, device.key] = figure
        try:
            files.put(self._folders.root / figures_file.NAME, figures_file.encode(gpus), 0o600)
        except OSError as error:
            _log.warning("figures not written", error=str(error))

    def _warn_of_runtime(self, record: Record) -> None:
        message = f"the runtime made container {record.container} without its CDI device: nothing limits it"
        _log.error("CDI not applied", namespace=record.namespace, pod=record.pod, container=record.container)
        about = About("Pod", record.pod, record.uid, record.namespace)
        self._events.warn(about, NOT_APPLIED, message, dt.datetime.now(dt.UTC))
        self._warn_node(
            NOT_APPLIED,
            f"the runtime made container {record.container} of pod {record.namespace}/{record.pod} without its CDI "
            "device: FairGPU offers nothing new here until CDI is switched on and the agent has restarted",
        )

    def _warn_of_ledger(self, record: Record, *, is_cut: bool) -> None:
        outcome = (
            "the file was cut back to its length"
            if is_cut
            else "it also gave the file to another user, so that the node agent cannot cut it; delete the pod"
        )
        message = (
            f"container {record.container} wrote beyond the end of {LEDGER_PATH}, which lies in the node's memory: "
            f"{outcome}"
        )
        about = About("Pod", record.pod, record.uid, record.namespace)
        if self._events.warn(about, LEDGER_REASON, message, dt.datetime.now(dt.UTC)):
            where = {"namespace": record.namespace, "pod": record.pod, "container": record.container}
            if is_cut:
                _log.warning("ledger cut", **where)
            else:
                _log.warning("ledger not cut", **where)

    def _warn_of_injection(self, runtime: str) -> None:
        self._warn_node(
            INJECTING_REASON,
            f"the default runtime {runtime} gives GPUs to each container whose image or environment has "
            "NVIDIA_VISIBLE_DEVICES: make another one the default, and name this one by a RuntimeClass",
        )

    def _warn_of(self, uuid: str, stray: Owned) -> None:
        process = stray.process
        pod = by_kubelets_uid(self._pods.all(), process.pod_uid)
        if pod is None:
            return
        name, namespace = str(pod["metadata"]["name"]), str(pod["metadata"]["namespace"])
        container = (
            f"container {stray.container}" if stray.container else "a container that the pod's status does not name"
        )
        message = f"a process of {container} works on GPU {uuid}, {WHY_UNSLOTTED[stray.state]}"
        about = About("Pod", name, process.pod_uid, namespace)
        if self._events.warn(about, UNSLOTTED_REASON, message, dt.datetime.now(dt.UTC)):
            _log.warning(
                "unslotted process",
                pid=process.pid,
                namespace=namespace,
                pod=name,
                uid=process.pod_uid,
                container=stray.container,
                container_id=process.container_id,
                uuid=uuid,
                state=stray.state,
            )

    def _end_overdue(self) -> None:
        for process in self._gpu_watch.overdue():
            if end(process):
                self._measures.processes_ended.inc()
                _log.warning(
                    "unslotted process ended", pid=process.pid, uid=process.pod_uid, container_id=process.container_id
                )

    def _write_events(self) -> None:
        """Writes the events by which the agent warns, in a thread: a silent API server delays no other part."""
        self._events.write()

    def _look_soon(self) -> None:
        self._look_now.set()

    def _warn_node(self, reason: str, message: str) -> None:
        name = self._settings.node
        # The kubelet's own events of a Node bear its name as uid, and kubectl describe looks for that.
        self._events.warn(About("Node", name, name), reason, message, dt.datetime.now(dt.UTC))

    def _log_registration(self, error: KubeletError | OSError | None) -> None:
        """Logs the outcome of an attempt to register with the kubelet, and sets its metric.

        `error` is why the attempt failed; None if it succeeded.
        """
        self._measures.registered.set(error is None)
        if error is None:
            _log.info("registered with the kubelet", resource=names.GPU)
        else:
            _log.warning("not registered with the kubelet", error=str(error))

    def _unreachable(self, what: str, error: ApiError) -> None:
        _log.warning("watch of the node's objects failed", what=what, error=str(error))

    def _slices_not_read(self, error: ApiError) -> None:
        """Logs that ResourceSlices cannot be read.

        If they have never been read, it also warns by an event of the Node that no GPU is offered until they are.
        """
        self._unreachable("resourceslices", error)
        if not self._slices.known.is_set():
            self._warn_node(
                UNREAD_REASON,
                f"whether another driver offers this node's GPUs by ResourceSlices cannot be read: {error}; "
                "FairGPU offers nothing new here until it can",
            )


def _name(part: Callable[[], None]) -> str:
    return part.__name__.lstrip("_")


def vendor_of(settings: Nodeagent) -> Vendor:
    """Returns the access to the driver of this node's GPUs that the agent's settings choose."""
    from nodeagent.vendors.nvidia import Nvidia, mps_on_node  # noqa: PLC0415 - another vendor's needs other libraries

    folders: tuple[Path, ...] = settings.vendor_cdi_folders
    is_trusted = partial(is_of_node, administers=partial(administers, settings.bundles))
    return Nvidia(
        Faults(settings.run_folder / faults.NAME),
        folders,
        settings.recover_seconds,
        refused=lambda: mps_on_node(process_names(), is_trusted),
    )
