"""deploy/monitoring as a component of an overlay, rendered by kubectl's own kustomize."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml

from tests.cluster.control_plane.build import control_plane_binaries
from tests.support.waiting import LIMIT_S

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_monitoring_component_adds_monitors_rules_and_the_dashboard(tmp_path: Path) -> None:
    overlay = {
        "resources": [os.path.relpath(DEPLOY / "base", tmp_path.resolve())],
        "components": [os.path.relpath(DEPLOY / "monitoring", tmp_path.resolve())],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    kubectl = control_plane_binaries(os.environ) / "kubectl"
    done = subprocess.run([kubectl, "kustomize", tmp_path], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    added = {
        (item["kind"], item["metadata"]["name"]): item
        for item in yaml.safe_load_all(done.stdout)
        if item["kind"] in {"PodMonitor", "PrometheusRule"} or item["metadata"]["name"] == "fairgpu-dashboard"
    }
    assert set(added) == {
        ("PodMonitor", "fairgpu-webhook"),
        ("PodMonitor", "fairgpu-timekeeper"),
        ("PodMonitor", "fairgpu-scheduler"),
        ("PodMonitor", "fairgpu-nodeagent"),
        ("PrometheusRule", "fairgpu"),
        ("ConfigMap", "fairgpu-dashboard"),
    }
    assert {item["metadata"]["namespace"] for item in added.values()} == {"fairgpu-system"}
    dashboard = added["ConfigMap", "fairgpu-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["fairgpu.json"])["title"] == "FairGPU"
