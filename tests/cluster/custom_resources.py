"""GPUBudgets, GPUGrants and GPUCorrections as people write them, and with faults."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests.cluster.installation import Manifest

BUDGETS = "/apis/fairgpu.io/v1alpha1/gpubudgets"
CORRECTIONS = "/apis/fairgpu.io/v1alpha1/gpucorrections"
GRANTS = "/apis/fairgpu.io/v1alpha1/gpugrants"
DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}


def budget(changes: Mapping[str, Any] | None = None) -> Manifest:
    """A GPUBudget; `changes` are fields of its spec by dotted path, None removes one."""
    document: Manifest = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUBudget",
        "metadata": {"name": "team-a"},
        "spec": {"namespaces": ["team-a"], "allowance": {"gpuHours": 100}, "period": {"every": "month"}},
    }
    return _changed(document, changes or {})


def grant(changes: Mapping[str, Any] | None = None) -> Manifest:
    """A GPUGrant, with changes as above."""
    document: Manifest = {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUGrant",
        "metadata": {"name": "deadline"},
        "spec": {"budget": "team-a", "gpuHours": 10, "reason": "paper deadline", "requestedBy": "admin"},
    }
    return _changed(document, changes or {})


def correction(changes: Mapping[str, Any] | None = None) -> Manifest:
    """A GPUCorrection; None removes a field of its spec."""
    spec = {
        "budget": "research",
        "gpuHours": "-2.5",
        "effectivePeriod": "2026-01-01T00:00:00Z",
        "reason": "node-7 had failed",
        "requestedBy": "admin",
        **(changes or {}),
    }
    return {
        "apiVersion": "fairgpu.io/v1alpha1",
        "kind": "GPUCorrection",
        "metadata": {"name": "node-7"},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def _changed(document: Manifest, changes: Mapping[str, Any]) -> Manifest:
    changed = copy.deepcopy(document)
    for path, value in changes.items():
        *groups, name = path.split(".")
        place = changed["spec"]
        for group in groups:
            place = place.setdefault(group, {})
        if value is None:
            del place[name]
        else:
            place[name] = value
    return changed
