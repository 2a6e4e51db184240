"""The output of `fairgpu top`, `inspect` and `why` about a cluster that stands still."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairgpu.cluster.api import ApiError
from fairgpu.commands import CommandError, build_parser
from scheduler.cluster.earmarks import Earmark, encode
from scheduler.cluster.objects import read_note
from scheduler.cluster.watches import NODES
from scheduler.placement.holding import Piece
from scheduler.view import commands
from scheduler.view.cluster import Cluster, cluster_of
from scheduler.view.gpus import gpu_rows, node_rows
from scheduler.view.waiting import fitting_nodes, reasons_of, stage_of
from tests.unit.scheduler.extended import ApiServer, api_node, bind_pod, deleted, pod, state_of

CLIENT = Path(__file__).parents[3] / "docs" / "client.md"


def bound(name: str, core: int, node: str = "n0", gpus: int = 2) -> dict[str, Any]:
    item = pod(name, core=core)
    bind_pod(state_of(node, gpus=gpus), ApiServer(item), item, node)
    return item


def waiting(core: int, **changes: Any) -> dict[str, Any]:
    return pod("w", core=core, schedulerName="fairgpu-scheduler", **changes)


def cluster(*pods: dict[str, Any]) -> Cluster:
    """A node of two GPUs, a node of one, and a node whose inventory makes no sense."""
    nodes = [api_node("n0", 2), api_node("n1", 1), api_node("n2", encode=lambda _: "{}")]
    return cluster_of(nodes, [read_note(item) for item in pods])


def test_top_has_a_row_for_each_node_with_what_is_held() -> None:
    seen = cluster(bound("a", 60))
    first, second = node_rows(seen)
    assert (first["node"], first["gpus"], first["pods"]) == ("n0", 2, 1)
    assert (first["held"], first["corePercent"], first["memoryPercent"]) == (0.6, 30, 30)
    assert (second["node"], second["held"]) == ("n1", 0)
    assert set(seen.faults) == {"n2"}


def test_inspect_has_a_row_for_each_gpu_with_the_pods_on_it() -> None:
    rows = gpu_rows(cluster(bound("a", 60)), "n0")
    assert [(row["coreHeld"], row["memoryHeldMiB"], row["containers"]) for row in rows] == [(60, 600, 1), (0, 0, 0)]
    assert rows[0]["pods"] == [{"pod": "team/a", "corePercent": 60, "memoryMiB": 600, "containers": 1}]


def test_why_names_each_cause_with_its_nodes_and_what_helps() -> None:
    reasons = reasons_of(cluster(bound("a", 60), bound("b", 50, "n1", gpus=1)), waiting(100, gpus=2))
    said = {reason.text: reason.nodes for reason in reasons}
    assert said == {
        "gpu: 2 GPUs asked, a node offers at most 1": ("n1",),
        "gpu-memory: 100 percent on each of 2 GPUs asked, at most 40 free": ("n0",),
    }
    assert all(reason.remedy for reason in reasons)


def test_why_says_where_enough_is_free_in_all_but_in_pieces() -> None:
    pieces = bound("a", 60)
    other = bound("b", 60)
    text = other["metadata"]["annotations"]["fairgpu.io/allocation"].replace("n0-0", "n0-1")
    other["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    [in_pieces] = [reason for reason in reasons_of(cluster(pieces, other), waiting(70)) if "n0" in reason.nodes] or [
        None
    ]
    assert in_pieces is None
    full = cluster(pieces, other, bound("c", 50, "n1", gpus=1))
    [reason] = reasons_of(full, waiting(70))
    assert (set(reason.nodes), reason.fragmented) == ({"n0", "n1"}, ("n0",))


def test_devices_kept_for_a_pod_are_free_for_it_and_for_no_other() -> None:
    claimant, other = waiting(100), waiting(100)
    claimant["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    text = encode(Earmark("n1", (Piece("n1-0", 100, 1000, 1),), (), 2**40))
    claimant["metadata"]["annotations"]["fairgpu.io/earmark"] = text
    other["metadata"]["uid"] = "uid-other"
    seen = cluster(bound("a", 60), whole_gpu(), claimant)
    assert (fitting_nodes(seen, claimant), reasons_of(seen, claimant)) == (["n1"], [])
    assert fitting_nodes(seen, other) == []
    assert {node for reason in reasons_of(seen, other) for node in reason.nodes} == {"n0", "n1"}
    [row] = gpu_rows(seen, "n1")
    assert [one["pod"] for one in row["pods"]] == ["team/w (kept for it)"]


def whole_gpu() -> dict[str, Any]:
    """A pod that holds the second GPU of n0."""
    item = bound("whole", 100)
    text = item["metadata"]["annotations"]["fairgpu.io/allocation"].replace("n0-0", "n0-1")
    item["metadata"]["annotations"]["fairgpu.io/allocation"] = text
    return item


@pytest.mark.parametrize(
    ("item", "harness"),
    [
        (waiting(50), "waits for a node"),
        (waiting(50, schedulingGates=[{"name": "fairgpu.io/budget"}]), "held by its budget until there is money"),
        (waiting(50, schedulingGates=[{"name": "kueue"}]), "held by kueue, which FairGPU did not set"),
        (waiting(50, nodeName="n0"), "placed on n0"),
        (deleted(waiting(50)), "deleted, and kept by its finalizers: it is not placed any more"),
        (deleted(waiting(50, nodeName="n0")), "placed on n0"),
        (pod("a", schedulerName="volcano"), "left to the scheduler volcano"),
        (waiting(50) | {"status": {"phase": "Failed"}}, "ended: Failed"),
    ],
)
def test_why_begins_with_what_becomes_of_the_pod(item: dict[str, Any], harness: str) -> None:
    assert stage_of(item) == harness


class Api:
    """Answers as an API server with a node of one GPU and these pods."""

    def __init__(
        self, *pods: dict[str, Any], error: ApiError | None = None, events: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.pods, self.error, self.events = pods, error, list(events)

    def get(self, path: str, *_query: object, **_options: object) -> dict[str, Any]:
        if path.endswith("/pods/w"):
            return self.pods[0]
        if path.endswith("/events"):
            return {"items": self.events}
        if self.error is not None:
            raise self.error
        return {"items": [api_node("n0")] if path == NODES.path else list(self.pods), "metadata": {}}


def run(api: Api, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(commands, "connect", lambda _environ: api)
    arguments = build_parser().parse_args(words)
    status: int = arguments.run(arguments)
    return status


def test_the_commands_print_what_they_find(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    api = Api(waiting(100, gpus=2), bound("a", 60, gpus=1))
    for words in (["top"], ["inspect", "-d"], ["why", "w", "-n", "team", "-v"]):
        assert run(api, monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "0.60 of 1 GPUs are held" in said
    assert "team/a" in said
    assert "1 node: gpu: 2 GPUs asked, a node offers at most 1" in said
    assert "  on: n0" in said


def test_a_person_who_may_not_see_the_cluster_sees_the_pods_own_conditions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    item = waiting(100)
    item["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]}
    api = Api(item, error=ApiError(403, "Forbidden", "nodes is forbidden"))
    assert run(api, monkeypatch, "why", "w", "-n", "team") == 0
    said = capsys.readouterr().out
    assert "kube-scheduler says: 0/1 nodes are available" in said
    assert "this needs `list` of nodes and of pods" in said
    with pytest.raises(CommandError, match="this needs `list` of nodes"):
        run(api, monkeypatch, "top")


def test_a_node_that_offers_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="n7: no such node offers GPUs"):
        run(Api(waiting(100)), monkeypatch, "inspect", "n7")


def test_why_without_a_namespace_asks_in_that_of_the_current_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    context = "{name: a, context: {cluster: c, user: u, namespace: team-a}}"
    file.write_text(
        f"current-context: a\ncontexts: [{context}]\nclusters: [{{name: c, cluster: {{}}}}]\n"
        "users: [{name: u, user: {}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    assert run(Api(waiting(100, gpus=2)), monkeypatch, "why", "w") == 0
    assert "Pod team-a/w: waits for a node" in capsys.readouterr().out
    api = Api(error=ApiError(404, "NotFound", 'pods "x" not found'))
    with pytest.raises(CommandError, match="there is no pod team-a/x; -n names another namespace"):
        run(api, monkeypatch, "why", "x")


@pytest.mark.parametrize(
    ("earmark", "said"),
    [
        (
            Earmark("n0", (Piece("n0-0", 100, 1000, 1),), ("uid-a",), 2**40),
            ["GPUs of n0 are kept for it: 1 pod gets notice and goes first."],
        ),
        (
            Earmark("n0", (Piece("n0-0", 100, 1000, 1),), ("a", "b"), 2**40, ("n7",)),
            [
                "GPUs of n0 are kept for it: 2 pods get notice and go first.",
                "Pods went for it, and it was not placed there, on n7.",
            ],
        ),
        (Earmark("n0", (Piece("n0-0", 9, 90, 1),), (), 2**40), ["GPUs of n0 are kept for it."]),
        (Earmark("", (), (), 0, ("n7", "n8")), ["Pods went for it, and it was not placed there, on n7, n8."]),
    ],
)
def test_why_shows_where_gpus_are_freed_for_a_pod_to_whoever_sees_the_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], earmark: Earmark, said: list[str]
) -> None:
    item = waiting(100)
    item["metadata"]["annotations"]["fairgpu.io/earmark"] = encode(earmark)
    api = Api(item, error=ApiError(403, "Forbidden", "nodes is forbidden"))
    assert run(api, monkeypatch, "why", "w", "-n", "team") == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == said


def test_why_takes_an_annotation_that_is_no_earmark_for_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    item = waiting(100)
    item["metadata"]["annotations"]["fairgpu.io/earmark"] = "{"
    assert run(Api(item), monkeypatch, "why", "w", "-n", "team") == 0
    assert "kept for it" not in capsys.readouterr().out


def event(reason: str, message: str, *, minute: int, author: str = "fairgpu.io/timekeeper", uid: str = "") -> Any:
    about = {"kind": "Pod", "name": "w", "uid": uid or waiting(1)["metadata"]["uid"]}
    at = f"2026-01-01T00:{minute:02}:00.000001Z"
    named = {"reportingComponent": author} if "/" in author else {"source": {"component": author}}
    return {"metadata": {}, "involvedObject": about, "reason": reason, "message": message, "eventTime": at, **named}


def test_why_shows_how_much_money_a_held_pod_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        event("BudgetHoldsPod", "Waits for money: 2 are missing.", minute=5),
        event("BudgetHoldsPod", "Waits for money: 3 are missing.", minute=1),
        event("FailedScheduling", "0/1 nodes", minute=9, author="fairgpu-scheduler"),
        event("Odd", "Of another program.", minute=9, author="other.io/program"),
        event("BudgetHoldsPod", "Of an earlier pod of this name.", minute=9, uid="earlier"),
    ]
    held = waiting(50, schedulingGates=[{"name": "fairgpu.io/budget"}])
    assert run(Api(held, events=events), monkeypatch, "why", "w", "-n", "team") == 0
    said = capsys.readouterr().out
    assert "held by its budget until there is money" in said
    assert "FairGPU's latest event says: Waits for money: 2 are missing." in said
    assert said.count("\n") == 2


def test_why_shows_why_its_node_refuses_a_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [event("PlacementRefused", "The GPU is fenced.", minute=1, author="fairgpu-nodeagent")]
    assert run(Api(waiting(50, nodeName="n0"), events=events), monkeypatch, "why", "w", "-n", "team") == 0
    assert capsys.readouterr().out == "Pod team/w: placed on n0\nFairGPU's latest event says: The GPU is fenced.\n"


def test_each_field_of_the_json_is_in_the_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {
        line.split("|")[1].strip(" `"): line for line in CLIENT.read_text().splitlines() if line.startswith("| `")
    }
    api = Api(bound("a", 60, gpus=1))
    capsys.readouterr()  # what the extender logs as it binds
    for command, collection in (("top", "nodes"), ("inspect", "gpus")):
        assert run(api, monkeypatch, command, "-o", "json") == 0
        document = json.loads(capsys.readouterr().out)
        [row] = document[collection]
        fields = (
            {*document, *row, *(key for pod in row["pods"] for key in pod)}
            if command == "inspect"
            else {*document, *row}
        )
        assert {field for field in fields if f"`{field}`" not in written[command]} == set()
