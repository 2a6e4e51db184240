"""A standalone folder, a real Redis and the test's own clock: everything that a leading timekeeper works with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.ledger.steps import Hook, stepping
from tests.support.servers import redis_binaries
from tests.support.servers.redis_server import RedisServer
from timekeeper.controller.reconcile.reconciler import Reconciler
from timekeeper.controller.state.books import ControllerRules
from timekeeper.controller.state.observing import Clocks
from timekeeper.domain.money import SECOND
from timekeeper.domain.reports import Counter
from timekeeper.domain.timestamps import format_exact, format_instant, parse_instant
from timekeeper.ledger import keys, reading
from timekeeper.ledger.reading import highest_fencing_token, load_accounts
from timekeeper.ledger.reports import IntakeOutcome, ReportIntake, Submission
from timekeeper.ledger.totals import Summary, decode_summary
from timekeeper.ledger.usage import accounts_usage
from timekeeper.ledger.writing import Kind, take_fencing_token
from timekeeper.sources.folder import FolderSource, write_json

NOON = parse_instant("2026-01-15T12:00:00Z")
MONTH = parse_instant("2026-01-01T00:00:00Z")
MAX_AMOUNT = 10**24 - 1
"""The largest amount that the store holds."""
EACH_REDIS = ("Redis 6.2", "Redis 7")
KINDS_OF_MONEY = {Kind.GRANT, Kind.CARRY, Kind.EXPIRY}
"""The kinds of ledger entries that change the available money, and not the spending."""


class LedgerHarness:
    """The objects of one cluster in a folder, and the leaders of a timekeeper one after another."""

    def __init__(self, folder: Path, client: redis.Redis) -> None:
        self.folder = folder
        self.client = client
        self.now = NOON
        self.ahead = 0
        """The time by which the leader's clock is ahead of `now`, in nanoseconds; below 0 if it is behind."""
        self.source = FolderSource(folder, self.leaders_time)
        self.reconciler: Reconciler | None = None
        (folder / "pods").mkdir(exist_ok=True)
        self.budgets: list[dict[str, Any]] = []
        self.renewed: dict[str, str] = {}
        """The time at which each node last renewed its Lease, in RFC 3339."""

    def lead(self, rules: ControllerRules | None = None, step: Hook | None = None, **options: Any) -> Reconciler:
        """Starts a new leader, which knows only what it reads; `step` is called before each step that it makes."""
        self.source = FolderSource(self.folder, self.leaders_time, rules.own_resources if rules else None)
        self.refresh()
        self.reconciler = Reconciler(
            self.client,
            self.source,
            rules or ControllerRules(),
            take_fencing_token(self.client, highest_fencing_token(self.client) + 1),
            **{"clocks": Clocks(lambda: 0, lambda: self.now), **options},
        )
        if step is not None:
            self.reconciler.reconcile = stepping(step)(self.reconciler.reconcile)  # type: ignore[method-assign]
        return self.reconciler

    def reconcile(self, seconds: float = 0, **options: Any) -> None:
        """Lets time pass, shows the folder to the leader, and has it reconcile once."""
        self.pass_time(seconds)
        reconciler = self.reconciler or self.lead()
        reconciler.reconcile(self.leaders_time(), **options)

    def leaders_time(self) -> int:
        """Returns the time on the leader's clock, in nanoseconds since 1970."""
        return self.now + self.ahead

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, and the leader's view with it."""
        self.now += int(seconds * SECOND)
        self.refresh()

    def silence(self, node: str, renewed: int | None) -> None:
        """Shows a node whose kubelet last renewed its Lease at the instant `renewed`; with None the node is back."""
        (self.folder / "nodes").mkdir(exist_ok=True)
        status, since = ("True", self.now) if renewed is None else ("Unknown", self.now)
        condition = {"type": "Ready", "status": status, "lastTransitionTime": format_instant(since)}
        item = {"metadata": {"name": node, "uid": f"node-{node}"}, "status": {"conditions": [condition]}}
        write_json(self.folder / "nodes" / f"{node}.json", item)
        self.renewed[node] = format_exact(self.now if renewed is None else renewed)
        self.refresh()

    def refresh(self) -> None:
        """Shows the leader the folder, and the Leases of nodes, which a folder does not have."""
        self.source.refresh()
        leases = [
            {"metadata": {"name": node, "uid": f"lease-{node}"}, "spec": {"renewTime": renewed}}
            for node, renewed in self.renewed.items()
        ]
        self.source.mirrors.node_leases.replaced(leases)

    def budget(self, name: str, namespaces: list[str], gpu_hours: Any = 100, **spec: Any) -> None:
        """Writes a budget, with a period of a month unless `spec` says otherwise."""
        item = {
            "apiVersion": "fairgpu.io/v1alpha1",
            "kind": "GPUBudget",
            "metadata": {"name": name, "uid": f"budget-{name}", "creationTimestamp": "2025-12-01T00:00:00Z"},
            "spec": {
                "namespaces": namespaces,
                "allowance": {"gpuHours": gpu_hours},
                "period": {"every": "month"},
                **spec,
            },
        }
        self.budgets = [known for known in self.budgets if known["metadata"]["name"] != name] + [item]
        self.write_budgets()

    def write_budgets(self) -> None:
        """Writes the budgets in `budgets` into the folder."""
        self._replace(self.folder / "budgets.yaml", "\n---\n".join(map(json.dumps, self.budgets)))

    def grant(self, name: str, budget: str, gpu_hours: Any, created: int | None = None, **spec: Any) -> None:
        """Writes a grant, which is made at `created`, or now by default."""
        stamp = format_instant(self.now if created is None else created)
        item = {
            "kind": "GPUGrant",
            "metadata": {"name": name, "uid": f"grant-{name}", "creationTimestamp": stamp},
            "spec": {"budget": budget, "gpuHours": gpu_hours, "reason": "deadline", **spec},
        }
        write_json(self.folder / "grants" / f"{name}.json", item)

    def correct(self, name: str, budget: str, gpu_hours: Any, effective: int, **spec: Any) -> None:
        """Writes a correction of the period in which the instant `effective` lies."""
        moment = format_instant(effective)
        base = {"budget": budget, "gpuHours": gpu_hours, "effectivePeriod": moment, "reason": "the node had failed"}
        item = {
            "kind": "GPUCorrection",
            "metadata": {"name": name, "uid": f"correction-{name}", "creationTimestamp": format_instant(self.now)},
            "spec": {**base, **spec},
        }
        write_json(self.folder / "corrections" / f"{name}.json", item)

    def pod(
        self, uid: str, namespace: str, *, core: int = 100, model: str = "A100", node: str = "n1", **changes: Any
    ) -> dict[str, Any]:
        """Writes a pod that is bound now and runs on one GPU; returns it without `changes`."""
        stamp = format_instant(self.now)
        device = {"uuid": f"GPU-{uid}", "model": model, "totalMiB": 81920, "core": core, "memoryMiB": 1}
        allocation = {"v": 1, "node": node, "containers": [{"name": "main", "devices": [device]}]}
        limits = {"fairgpu.io/gpu": "1", "fairgpu.io/gpu-core": str(core), "fairgpu.io/gpu-memory": "1"}
        item = {
            "metadata": {
                "uid": uid,
                "name": uid,
                "namespace": namespace,
                "creationTimestamp": stamp,
                "labels": {"fairgpu.io/pod": "gpu"},
                "annotations": {"fairgpu.io/allocation": json.dumps(allocation)},
            },
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp}],
            },
        }
        self.write_pod(item | changes)
        return item

    def pod_of_another_stack(
        self, uid: str, namespace: str = "team-a", *, resource: str = "nvidia.com/gpu", since: int | None = None
    ) -> dict[str, Any]:
        """Writes a running pod with one GPU of another device plugin, bound at an instant or now; returns it."""
        item = self.pod(uid, namespace)
        stamp = format_instant(self.now if since is None else since)
        item["metadata"] |= {"creationTimestamp": stamp, "annotations": {}}
        item["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
        item["status"]["conditions"][0]["lastTransitionTime"] = stamp
        self.write_pod(item)
        return item

    def gated(self, uid: str, namespace: str, core: int = 100) -> None:
        """Writes a pod that admission holds behind the budget's gate."""
        item = self.pod(uid, namespace, core=core)
        item["metadata"]["annotations"] = {}
        item["spec"].pop("nodeName")
        item["spec"]["schedulingGates"] = [{"name": "fairgpu.io/budget"}]
        item["status"] = {"phase": "Pending"}
        self.write_pod(item)

    def source_pod(self, uid: str) -> dict[str, Any]:
        """Returns the pod as its file has it."""
        item: dict[str, Any] = json.loads((self.folder / "pods" / f"{uid}.json").read_text())
        return item

    def finish(self, pod: dict[str, Any], seconds_ago: int = 0) -> None:
        """Writes that a pod's container ended, so many seconds ago."""
        finished = format_instant(self.now - seconds_ago * SECOND)
        state = {"terminated": {"exitCode": 0, "finishedAt": finished}}
        pod["status"] |= {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
        self.write_pod(pod)

    def write_pod(self, pod: dict[str, Any]) -> None:
        """Replaces the pod's file in one step."""
        self._replace(self.folder / "pods" / f"{pod['metadata']['uid']}.json", json.dumps(pod))

    def _replace(self, file: Path, text: str) -> None:
        """Replaces a file by a new one: a file that is rewritten within a tick of the clock would look unchanged."""
        beside = self.folder / f"{file.name}.new"
        beside.write_text(text)
        beside.replace(file)

    def remove(self, uid: str) -> None:
        """Deletes the pod."""
        (self.folder / "pods" / f"{uid}.json").unlink()

    def spent(self, account: str, period: int = MONTH) -> int:
        """Returns the stored spending of a period in microGPU-seconds.

        It first checks the total against the period's entries, its sessions' amounts and its use.

        Args:
            account: the account's name.
            period: the start of the period, in nanoseconds since 1970.
        """
        standing = reading.period_totals(self.client, account, period)
        assert standing is not None
        entries = reading.ledger_page(self.client, account, "", 100_000)
        stored = reading.stored_amounts(self.client, account, period)
        posted = sum(entry.amount for entry in entries if entry.period == period and entry.kind not in KINDS_OF_MONEY)
        unposted = sum(found.amount - found.posted for found in stored.values())
        assert posted + unposted == standing.total
        (found,) = load_accounts(self.client, [account], latest_periods=10_000)
        # Behind a clock that was ahead, use belongs to hours only once it is posted.
        if found.periods[-1].start <= self.now:
            assert self.entered(account) == sum(each.total for each in found.totals.values())
        return standing.total

    def entered(self, account: str) -> int:
        """Returns the part of an account's spending that belongs to hours, or to sessions that run."""
        (usage,) = accounts_usage(self.client, [account], reading.assignments(self.client))
        return sum(row.figures.billed for row in usage.rows())


def report(harness: LedgerHarness, uid: str, seq: int, busy_seconds: float, boot: str = "b") -> None:
    """Submits the usage that the sidecar of a running pod measures on its one device.

    The store must take it, or have taken this or a later report before.
    """
    busy, span = int(busy_seconds * SECOND), 100 * SECOND
    counters = (Counter(f"GPU-{uid}", busy, span, 0),)
    (outcome,) = ReportIntake(harness.client).take([Submission(uid, boot, seq, harness.now, counters)])
    assert outcome in {IntakeOutcome.TAKEN, IntakeOutcome.OLDER}


def published(harness: LedgerHarness, account: str) -> Summary:
    """Returns an account's published figures."""
    return decode_summary(reading.summaries(harness.client, [account])[account])


def state_answer(harness: LedgerHarness, namespace: str) -> dict[str, str]:
    """Returns a namespace's published state."""
    text = harness.client.hget(keys.STATES_VALUES, namespace)
    assert isinstance(text, bytes)
    found: dict[str, str] = json.loads(text)
    return found


@pytest.fixture
def harness(redis_server: RedisServer, tmp_path: Path) -> Iterator[LedgerHarness]:
    with redis_server.client() as client:
        yield LedgerHarness(tmp_path, client)


@contextmanager
def harness_on(version: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[LedgerHarness]:
    """Yields a harness on a Redis of its own, of a version of EACH_REDIS and with options."""
    if version == "Redis 7":
        monkeypatch.setenv("FAIRGPU_REDIS_SERVER", redis_binaries.redis_7())
    for name in ("redis", "harness"):
        (folder / name).mkdir()
    with RedisServer(folder / "redis", *options) as server, server.client() as client:
        yield LedgerHarness(folder / "harness", client)
