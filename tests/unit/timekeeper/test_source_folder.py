from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import structlog

from timekeeper.sources.base import ChangedMeanwhileError, DepartureProof, ObjectEvent
from timekeeper.sources.folder import FolderSource, write_json

LIMITS = {"resources": {"limits": {"fairgpu.io/gpu": "1"}}}


def gpu_pod(uid: str, **spec: object) -> dict[str, object]:
    return {
        "kind": "Pod",
        "metadata": {"uid": uid, "name": uid, "namespace": "team-a"},
        "spec": {"containers": [LIMITS], **spec},
    }


@pytest.fixture
def source(tmp_path: Path) -> FolderSource:
    (tmp_path / "budgets.yaml").write_text(
        "kind: GPUBudget\nmetadata: {name: team-a}\n---\nkind: GPUGrant\nmetadata: {name: extra}\n"
    )
    write_json(tmp_path / "pods" / "u1.json", gpu_pod("u1"))
    return FolderSource(tmp_path, time.time_ns)


def names(mirror_items: list[dict[str, dict[str, str]]]) -> list[str]:
    return [item["metadata"]["name"] for item in mirror_items]


def test_budgets_grants_and_pods_are_read_from_their_files(source: FolderSource) -> None:
    source.refresh()
    assert names(source.mirrors.budgets.items()) == ["team-a"]
    assert names(source.mirrors.grants.items()) == ["extra"]
    assert names(source.mirrors.pods.items()) == ["u1"]


def test_removing_a_pods_file_deletes_the_pod(source: FolderSource, tmp_path: Path) -> None:
    source.refresh()
    (tmp_path / "pods" / "u1.json").unlink()
    source.refresh()
    [departure] = source.mirrors.pods.take_departures()
    assert departure.proof is DepartureProof.DELETED
    assert source.mirrors.pods.items() == []


@pytest.mark.parametrize("text", ["{", "[" * 500])
def test_a_file_that_is_broken_is_shown_and_stops_nothing(source: FolderSource, tmp_path: Path, text: str) -> None:
    (tmp_path / "pods" / "u2.json").write_text(text)
    (tmp_path / "budgets.yaml").write_text(text)
    source.refresh()
    assert names(source.mirrors.pods.items()) == ["u1"]
    assert source.mirrors.budgets.items() == []


def test_a_gate_is_lifted_once(source: FolderSource, tmp_path: Path) -> None:
    gated = gpu_pod("u3", schedulingGates=[{"name": "other"}, {"name": "fairgpu.io/budget"}])
    write_json(tmp_path / "pods" / "u3.json", gated)
    source.lift_gate(gated)
    assert json.loads((tmp_path / "pods" / "u3.json").read_text())["spec"]["schedulingGates"] == [{"name": "other"}]
    with pytest.raises(ChangedMeanwhileError):
        source.lift_gate(gated)


def test_a_grant_in_a_file_of_its_own_is_shown(source: FolderSource, tmp_path: Path) -> None:
    source.refresh()
    write_json(tmp_path / "grants" / "more.json", {"kind": "GPUGrant", "metadata": {"name": "more"}, "spec": {}})
    source.refresh()
    assert names(source.mirrors.grants.items()) == ["extra", "more"]


def test_all_that_is_shown_and_written_stands_in_files(source: FolderSource, tmp_path: Path) -> None:
    source.write_budget_status("team-a", {"state": "open"})
    source.record_event(ObjectEvent(gpu_pod("u1"), "BudgetExhausted", "nothing is left", warning=True))
    assert json.loads((tmp_path / "status" / "budget-team-a.json").read_text()) == {"state": "open"}
    assert json.loads((tmp_path / "events.jsonl").read_text())["reason"] == "BudgetExhausted"


def test_an_event_that_cannot_be_written_is_logged_and_stops_nothing(source: FolderSource, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with structlog.testing.capture_logs() as logs:
        source.record_event(ObjectEvent(gpu_pod("u1"), "BudgetExhausted", "nothing is left", warning=True))
    assert [(line["event"], line["reason"]) for line in logs] == [("event not written", "BudgetExhausted")]


def test_a_written_status_of_a_budget_and_a_grant_is_read_back(source: FolderSource, tmp_path: Path) -> None:
    source.write_budget_status("team-a", {"state": "grace"})
    source.write_grant_status("extra", {"applied": True})
    later = FolderSource(tmp_path, time.time_ns)
    for found in (source, later):
        found.refresh()
        assert [item["status"] for item in found.mirrors.budgets.items()] == [{"state": "grace"}]
        assert [item["status"] for item in found.mirrors.grants.items()] == [{"applied": True}]


def test_an_object_is_taken_for_changed_when_its_file_or_its_status_is_and_not_otherwise(source: FolderSource) -> None:
    source.refresh()
    (first,) = source.mirrors.budgets.items()
    source.write_budget_status("team-a", {"state": "grace"})
    source.refresh()
    (second,) = source.mirrors.budgets.items()
    source.refresh()
    (third,) = source.mirrors.budgets.items()
    assert "status" not in first
    assert third is second


def test_a_name_that_is_none_is_no_path(tmp_path: Path) -> None:
    write_json(tmp_path / "status" / "budget-x.json", {"state": "grace"})
    for name in ("'../status/budget-x'", '"a\\0"', "[]", "{}", "x/../../x"):
        (tmp_path / "budgets.yaml").write_text(f"kind: GPUBudget\nmetadata: {{name: {name}}}\n")
        source = FolderSource(tmp_path, time.time_ns)
        source.refresh()
        assert [item.get("status") for item in source.mirrors.budgets.items()] == [None]


@pytest.mark.parametrize("metadata", ["", "text", "[name]"])
def test_an_object_without_metadata_hides_no_other(source: FolderSource, tmp_path: Path, metadata: str) -> None:
    budgets = tmp_path / "budgets.yaml"
    budgets.write_text(f"kind: GPUBudget\nmetadata: {metadata}\n---\n{budgets.read_text()}")
    source.refresh()
    source.refresh()
    assert [item["metadata"] for item in source.mirrors.budgets.items()][-1] == {"name": "team-a"}
