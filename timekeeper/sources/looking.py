"""The API server as a source in the mode look: outside FairGPU's namespace nothing is written, not even Events.

Budgets come from the ConfigMap `fairgpu-budgets`: each key is a budget's name, and its value the YAML of a GPUBudget's
spec. The ConfigMap `fairgpu-budget-statuses` holds the statuses that GPUBudgets would have, keyed by the same names. A
ConfigMap holds a million bytes, which is enough for some hundred budgets.

If the settings say that budgets are GPUBudget objects, neither ConfigMap is read. The status of GPUBudgets is then the
only thing that is written outside FairGPU's namespace.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import yaml

from fairgpu import names, yaml_text
from fairgpu.cluster.api import ApiError, Json, KubernetesAPI
from fairgpu.cluster.reflector import Collection
from fairgpu.commands import CommandError
from fairgpu.faults import Fault, explain, show
from fairgpu.json_values import mapping
from fairgpu.keeping import Wait
from timekeeper.domain.budgets import BudgetError, parse_budget, unknown_fields, with_faults
from timekeeper.domain.holdings.claims import DRIVERS
from timekeeper.sources.base import ChangedMeanwhileError, Mirror, ObjectEvent, RefusedError
from timekeeper.sources.kubernetes import BUDGETS, COLLECTIONS, CONFIG_MAPS, KubernetesSource, OwnResources

BUDGETS_MAP: Final = "fairgpu-budgets"
LINES: Final = f"{CONFIG_MAPS}/{BUDGETS_MAP}"
STATUSES_MAP: Final = "fairgpu-budget-statuses"
STATUSES: Final = f"{CONFIG_MAPS}/{STATUSES_MAP}"
WATCHED: Final = ("pods", "nodes", "node_leases", "namespaces")
"""The collections that the mode look watches as every mode does, beside claims and queues. There are no grants and
corrections in this mode, and budgets come from `watch_budgets`.
"""

_UNREADABLE = (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError)
"""The errors of PyYAML on a text that it cannot read: `2026-02-30` is a ValueError, and `!!bool maybe` a KeyError."""

_log = structlog.get_logger()


def budgets_of(config_map: Json) -> list[Json]:
    """Returns the GPUBudgets that a ConfigMap holds, without statuses, in the form in which the API server has them.

    A value that is no spec of a budget becomes a budget that carries the faults of the text, which `parse_budget`
    raises.

    Args:
        config_map: the ConfigMap: each key is a budget's name, and its value the YAML of the budget's spec.
    """
    metadata = mapping(config_map.get("metadata"))
    budgets = []
    for name, text in sorted(mapping(config_map.get("data")).items()):
        own: Json = {
            "name": name,
            "uid": f"{BUDGETS_MAP}/{name}",
            "creationTimestamp": metadata.get("creationTimestamp"),
            "generation": zlib.crc32(str(text).encode()),
        }
        spec, faults = _read(str(text))
        item: Json = {"apiVersion": names.BUDGET_API, "kind": "GPUBudget", "metadata": own, "spec": spec}
        if faults:
            _log.error("budget cannot be read", config_map=BUDGETS_MAP, name=name, error=explain(faults))
        budgets.append(with_faults(item, faults))
    return budgets


def _with_status(budget: Json, statuses: Json) -> Json:
    """Returns a GPUBudget with its status from `statuses`, keyed by budget; unchanged if `statuses` has none for it."""
    status = statuses.get(budget["metadata"]["name"])
    return budget | {"status": status} if isinstance(status, dict) else budget


def statuses_of(config_map: Json) -> Json:
    """Returns the statuses in the ConfigMap of statuses, keyed by budget; unreadable statuses are left out.

    Args:
        config_map: the ConfigMap: each key is a budget's name, and its value the JSON of the budget's status.
    """
    statuses = {}
    for name, text in mapping(config_map.get("data")).items():
        try:
            statuses[name] = json.loads(text)
        except ValueError as error:
            _log.error("status cannot be read", config_map=STATUSES_MAP, name=name, error=str(error))
    return statuses


def _alone(name: str) -> Collection:
    """Returns the collection that holds the ConfigMap of this name in FairGPU's namespace, and no other object."""
    return Collection(CONFIG_MAPS, {"fieldSelector": f"metadata.name={name}"})


class _Manifests(yaml.SafeDumper):
    """Writes YAML with quotes around texts such as `089` and `1e3`, which may be names: kubectl would read numbers."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if text[:1] in {*"+-.0123456789"} else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Manifests.add_representer(str, _represent_text)


def as_gpubudgets(config_map: Json) -> str:
    """Returns the budgets of a ConfigMap as manifests of GPUBudgets, in YAML: of the same names, with the same specs.

    They are sorted by name. Created in this order, they pay for the same namespaces as the ConfigMap's budgets: if two
    name a namespace, the older one pays; if both were created in the same second, the first one by name.

    Args:
        config_map: the ConfigMap: each key is a budget's name, and its value the YAML of the budget's spec.

    Raises:
        CommandError: a value is no valid budget; the message names all faults of all values.
    """
    manifests, faults = list[Json](), list[str]()
    for name, text in sorted(mapping(config_map.get("data")).items()):
        spec, wrong = _read(str(text))
        item: Json = {"apiVersion": names.BUDGET_API, "kind": "GPUBudget", "metadata": {"name": name}, "spec": spec}
        try:
            parse_budget(with_faults(item, wrong))
        except BudgetError as error:
            faults.append(f"{name}: {error}")
        else:
            manifests.append(item)
    if faults:
        raise CommandError(f"the ConfigMap {names.SYSTEM_NAMESPACE}/{BUDGETS_MAP}: " + "; ".join(faults))
    return str(yaml.dump_all(manifests, Dumper=_Manifests, sort_keys=False))


def _read(text: str) -> tuple[Json, tuple[Fault, ...]]:
    """Returns the spec that a text holds, and the faults of the text; with a fault, the spec may be empty."""
    allowed = "the fields of a GPUBudget's spec, in YAML"
    try:
        spec = yaml_text.load(text)
    except _UNREADABLE as error:
        return {}, (Fault("spec", show(text), allowed, f"it anew: {' '.join(str(error).split())}"),)
    if not isinstance(spec, dict):
        shown = "nothing" if spec is None else show(spec)
        return {}, (Fault("spec", shown, allowed, "namespaces, allowance and period, one a line"),)
    return spec, unknown_fields(spec)


class BudgetsView:
    """Passes the ConfigMap of budgets on to a mirror as GPUBudgets, each with the status that was written for it."""

    def __init__(self, mirror: Mirror, read_statuses: Callable[[], Json]) -> None:
        """Makes an empty view.

        Args:
            mirror: the mirror of budgets, which gets the GPUBudgets.
            read_statuses: returns the written statuses, keyed by budget; may raise ApiError.
        """
        self._mirror = mirror
        self._read_statuses = read_statuses
        self._lock = threading.Lock()
        """Guards the three fields below, and the order in which the mirror gets them."""
        self._lines: list[Json] | None = None
        """The budgets without their statuses, which change far more often; None before the first list."""
        self._statuses: Json | None = None
        self._shown: dict[str, Json] = {}

    def replaced(self, items: list[Json]) -> None:
        """Takes the ConfigMap of budgets from a list, and passes its budgets on to the mirror.

        Args:
            items: the ConfigMap alone; empty if there is none.

        Raises:
            ApiError: no statuses are known yet, and they cannot be read.
        """
        with self._lock:
            if self._statuses is None:
                self._statuses = self._read_statuses()
            self._lines = budgets_of(next(iter(items), {}))
            self._show()

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of the watch of the ConfigMap.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
        """
        with self._lock:
            self._lines = budgets_of({} if kind == "DELETED" else item)
            self._show()

    def confirmed(self) -> None:
        """Records that the mirror of budgets is current now."""
        self._mirror.confirmed()

    def failed(self, error: ApiError) -> None:
        """Logs that a request for the ConfigMap failed; the mirror of budgets stays as it is."""
        self._mirror.failed(error)

    def stated(self, name: str, status: Json) -> None:
        """Puts a budget's status into the mirror, once it was written to the API server."""
        with self._lock:
            self._statuses = {**(self._statuses or {}), name: status}
            self._show()

    def all_stated(self, statuses: Json) -> None:
        """Puts all statuses into the mirror, as the API server holds them.

        Another process may lead and have written them.

        Args:
            statuses: the statuses, keyed by budget.
        """
        with self._lock:
            self._statuses = statuses
            self._show()

    def without_budget(self) -> list[str]:
        """Returns the names, sorted, of budgets that have a status but no longer exist."""
        with self._lock:
            return sorted((self._statuses or {}).keys() - {line["metadata"]["name"] for line in self._lines or ()})

    def _show(self) -> None:
        """Puts the budgets into the mirror; a budget that has not changed stays the same object."""
        if self._lines is None:
            return
        budgets = {line["metadata"]["name"]: _with_status(line, self._statuses or {}) for line in self._lines}
        before = self._shown
        self._shown = {name: before[name] if before.get(name) == item else item for name, item in budgets.items()}
        self._mirror.replaced(list(self._shown.values()))


class StatusesView:
    """Passes the statuses in the ConfigMap of statuses on to the view of budgets, whenever they change.

    The leader writes the statuses, and it may be another process. A new leader restores an emptied store from the
    statuses, and the command `fairgpu audit` compares them with the ledger.
    """

    def __init__(self, budgets: BudgetsView) -> None:
        """Makes a view that passes the statuses on to `budgets`."""
        self._budgets = budgets

    def replaced(self, items: list[Json]) -> None:
        """Passes the statuses in the ConfigMap of statuses, as a list has it, on to the view of budgets.

        Args:
            items: the ConfigMap alone; empty if there is none.
        """
        self._budgets.all_stated(statuses_of(next(iter(items), {})))

    def changed(self, kind: str, item: Json) -> None:
        """Applies one event of the watch of the ConfigMap.

        Args:
            kind: the type of the event: ADDED, MODIFIED or DELETED.
        """
        self._budgets.all_stated({} if kind == "DELETED" else statuses_of(item))

    def confirmed(self) -> None:
        """Does nothing when the API server confirms the statuses: no decision depends on their age."""

    def failed(self, error: ApiError) -> None:
        """Logs that a request for the ConfigMap failed; the statuses stay as they are."""
        _log.warning("statuses cannot be watched", config_map=STATUSES_MAP, error=str(error))


class LookingSource(KubernetesSource):
    """Watches a cluster in the mode look: it writes only in FairGPU's namespace."""

    def __init__(
        self,
        api: KubernetesAPI,
        now: Callable[[], int],
        random: Callable[[], float],
        kept_labels: Sequence[str] = (),
        own: OwnResources = None,
        drivers: frozenset[str] = DRIVERS,
    ) -> None:
        """Makes a source that watches nothing yet.

        Args:
            now: returns the local time in nanoseconds since 1970.
            random: returns a number in [0, 1), by which retries are spread.
            kept_labels: the keys of the pods' labels that are kept with usage.
            own: the extended resources of other stacks that the admin lists, keyed by name; None if pods of other
                stacks are not metered.
            drivers: the drivers of Dynamic Resource Allocation whose claims are metered.
        """
        super().__init__(api, now, random, kept_labels, own, drivers)
        self._budgets = BudgetsView(self.mirrors.budgets, self._read_statuses)

    def start(self, wait: Wait) -> None:
        """Watches each collection of the mode look in its own thread, until `wait` says that the process ends."""
        self.watch_queues(wait)
        for name in WATCHED:
            self.watch(name, COLLECTIONS[name], wait)
        self.watch_claims(wait)
        self.watch_budgets(wait)
        self.leave_empty(self.mirrors.grants, self.mirrors.corrections, self.mirrors.quotas)

    def watch_budgets(self, wait: Wait) -> None:
        """Watches the ConfigMaps of budgets and statuses in a thread each, until `wait` says that the process ends."""
        self.reflect("budgets", _alone(BUDGETS_MAP), self._budgets, wait)
        self.reflect("budget-statuses", _alone(STATUSES_MAP), StatusesView(self._budgets), wait)

    def lift_gate(self, _pod: Json) -> None:
        """Raises RefusedError: in the mode look no pod is written."""
        raise _refused()

    def remove_finalizer(self, _pod: Json) -> None:
        """Raises RefusedError: in the mode look no pod is written."""
        raise _refused()

    def label_gpu_pod(self, _pod: Json) -> None:
        """Raises RefusedError: in the mode look no pod is written."""
        raise _refused()

    def announce_eviction(self, _pod: Json, _at: str | None) -> None:
        """Raises RefusedError: in the mode look no pod is written."""
        raise _refused()

    def evict(self, _pod: Json) -> None:
        """Raises RefusedError: in the mode look no pod is evicted."""
        raise _refused()

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:  # noqa: ARG002 - lines have none
        """Writes a budget's status to the ConfigMap of statuses, and removes the statuses of budgets that are gone.

        The ConfigMap is created if there is none.

        Args:
            version: ignored, since budgets in a ConfigMap have no version.
        """
        data = dict.fromkeys(self._budgets.without_budget()) | {name: json.dumps(status, separators=(",", ":"))}
        try:
            self.request(lambda: self.api.patch(STATUSES, {"data": data}))
        except ChangedMeanwhileError:
            kept = {key: text for key, text in data.items() if text is not None}
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": STATUSES_MAP}, "data": kept}
            self.request(lambda: self.api.create(CONFIG_MAPS, document))
        self._budgets.stated(name, status)

    def write_grant_status(self, _name: str, _status: Json) -> None:
        """Raises RefusedError: in the mode look there are no grants."""
        raise _refused()

    def write_correction_status(self, _name: str, _status: Json) -> None:
        """Raises RefusedError: in the mode look there are no corrections."""
        raise _refused()

    def record_event(self, _event: ObjectEvent) -> None:
        """Does nothing: in the mode look no Event is written."""

    def _read_statuses(self) -> Json:
        try:
            return statuses_of(self.api.get(STATUSES))
        except ApiError as error:
            if error.not_found:
                return {}
            raise


class LookingAtGPUBudgets(LookingSource):
    """Watches a cluster in the mode look, with budgets that are GPUBudgets and not lines of a ConfigMap.

    Outside FairGPU's namespace it writes the status of GPUBudgets alone.
    """

    def watch_budgets(self, wait: Wait) -> None:
        """Watches the GPUBudgets in a thread of its own, until `wait` returns that the process ends."""
        self.watch("budgets", BUDGETS, wait)

    def write_budget_status(self, name: str, status: Json, version: str = "") -> None:
        """Replaces the status of a GPUBudget; fields that are not given are removed.

        Args:
            version: the resourceVersion in which the object must still be; empty for any.
        """
        KubernetesSource.write_budget_status(self, name, status, version)


def _refused() -> RefusedError:
    return RefusedError("mode: look changes no pod, and takes no orders")
