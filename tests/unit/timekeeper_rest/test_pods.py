from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timekeeper.identity.pod_tokens import PodIdentity
from timekeeper.rest.pods import FolderPods, others_have_ended

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 1}}
WAITING: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}


def pod(phase: str = "Running", **states: dict[str, Any]) -> dict[str, Any]:
    names = [name.replace("_", "-") for name in states]
    statuses = [{"name": name, "state": state} for name, state in zip(names, states.values(), strict=True)]
    return {
        "metadata": {"uid": "u1"},
        "spec": {"containers": [{"name": name} for name in names]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        (None, True),
        (pod(phase="Succeeded", main=RUNNING), True),
        (pod(phase="Failed", main=RUNNING), True),
        (pod(main=RUNNING, meter=RUNNING), False),
        (pod(main=ENDED, meter=RUNNING), True),
        (pod(main=WAITING, meter=RUNNING), False),
        (pod(one=ENDED, two=RUNNING, meter=RUNNING), False),
        (pod(one=ENDED, two=ENDED, meter=RUNNING), True),
        (pod(main=RUNNING), False),
        (pod(main=ENDED, meter=RUNNING, fairgpu_sidecar=RUNNING), True),
        ({"metadata": {"uid": "u1"}}, False),
        ({"spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}}, False),
    ],
)
def test_an_ancestors_sidecar_ends_once_the_other_containers_have(found: Any, ended: bool) -> None:  # noqa: FBT001
    assert others_have_ended(found) is ended


def test_a_folders_pod_is_found_by_its_uid_and_no_uid_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods" / "u1.json").write_text(json.dumps(pod(main=RUNNING)))
    (tmp_path / "secret.json").write_text("{}")
    pods = FolderPods(tmp_path)
    assert pods.read(PodIdentity("team-a", "train", "u1", 0)) == pod(main=RUNNING)
    for uid in ("u2", "../secret", "..", "."):
        assert pods.read(PodIdentity("team-a", "train", uid, 0)) is None
