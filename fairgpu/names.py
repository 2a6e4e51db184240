"""The fixed names of FairGPU: resources, annotations, accounts, containers, volumes.

Kubernetes calls `fairgpu.io/gpu` and its siblings extended resources; they take whole numbers only
(https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources).
"""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "fairgpu.io"
SYSTEM_NAMESPACE: Final = "fairgpu-system"
SYSTEM_NAMESPACES: Final = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", SYSTEM_NAMESPACE, "fairgpu-nodes"}
)
"""The namespaces of Kubernetes' own pods and of FairGPU's."""
SCHEDULER_NAME: Final = "fairgpu-scheduler"

GPU: Final = "fairgpu.io/gpu"
"""vGPUs: the number of distinct physical GPUs of which the container gets a piece."""
GPU_CORE: Final = "fairgpu.io/gpu-core"
"""GPU time summed over the vGPUs, in percent of one GPU."""
GPU_MEMORY: Final = "fairgpu.io/gpu-memory"
"""Device memory summed over the vGPUs, in MiB."""
GPU_MEMORY_PERCENTAGE: Final = "fairgpu.io/gpu-memory-percentage"
"""Device memory summed over the vGPUs, in percent of one GPU; an alternative to GPU_MEMORY."""
CANONICAL_RESOURCES: Final = (GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_PERCENTAGE)

ANNOTATION_PREFIX: Final = "fairgpu.io/"
ALLOCATION: Final = "fairgpu.io/allocation"
SOURCE_DIALECT: Final = "fairgpu.io/source-dialect"
BUDGET_STATE: Final = "fairgpu.io/budget-state"
CREATED_BY: Final = "fairgpu.io/created-by"
EVICTION_AT: Final = "fairgpu.io/eviction-at"
"""The instant at which the pod of a spent budget is evicted (RFC 3339); the downward API shows it to the pod."""
RECLAIM_AT: Final = "fairgpu.io/reclaim-at"
"""The instant at which the scheduler evicts the pod for another that waits for its devices (RFC 3339)."""
EARMARK: Final = "fairgpu.io/earmark"
"""On a pod that waits: the devices that the scheduler frees and keeps for it."""
RESERVED_ANNOTATIONS: Final = (ALLOCATION, SOURCE_DIALECT, BUDGET_STATE, CREATED_BY, EVICTION_AT, RECLAIM_AT, EARMARK)
"""The reserved annotations of pods."""
NOTICES: Final = (ALLOCATION, EVICTION_AT, RECLAIM_AT, EARMARK)
"""The reserved annotations that a pod cannot have at its creation."""

INVENTORY: Final = "fairgpu.io/inventory"
"""On a Node: the devices that it offers (see fairgpu.inventory)."""
STARTUP_TAINT: Final = "startup-taint.cluster-autoscaler.kubernetes.io/fairgpu"
"""The taint of a new Node that the node agent removes once the Node offers its GPUs.

Cluster Autoscaler counts a Node with a taint of this prefix as one that is starting (its FAQ); Karpenter takes any key
in `startupTaints`."""

USE_GPU_MODEL: Final = "fairgpu.io/use-gpu-model"
AVOID_GPU_MODEL: Final = "fairgpu.io/avoid-gpu-model"
USE_GPU_UUID: Final = "fairgpu.io/use-gpu-uuid"
AVOID_GPU_UUID: Final = "fairgpu.io/avoid-gpu-uuid"
PLACEMENT: Final = "fairgpu.io/placement"
CORE_POLICY: Final = "fairgpu.io/core-policy"
TASK_PRIORITY: Final = "fairgpu.io/task-priority"
GANG: Final = "fairgpu.io/gang"
"""NAME/N: the pod is one of N in its namespace that are placed together or not at all."""
CHOICE_ANNOTATIONS: Final = (
    USE_GPU_MODEL,
    AVOID_GPU_MODEL,
    USE_GPU_UUID,
    AVOID_GPU_UUID,
    PLACEMENT,
    CORE_POLICY,
    TASK_PRIORITY,
    GANG,
)

POD_LABEL: Final = "fairgpu.io/pod"
"""On each GPU pod, set at its creation and guarded: policies and webhooks select GPU pods by it."""
POD_LABEL_VALUE: Final = "gpu"

NAMESPACE_ALLOW: Final = "fairgpu.io/allow"
"""On a Namespace: a comma list of its pods' permissions (elastic, high-priority)."""

NAMESPACE_MODE: Final = "fairgpu.io/mode"
"""On a Namespace: `account` or `share`; without it, the setting `webhook.mode` counts."""

RENDERED_CONDITION: Final = "RenderedFromSettings"
"""The condition of FairGPU's policies that says whether the cluster's policies, bindings and webhook rules follow the
settings."""
POLICIES: Final = (
    "fairgpu-spec",
    "fairgpu-metadata",
    "fairgpu-binding",
    "fairgpu-asking",
    "fairgpu-timekeeper",
    "fairgpu-namespace",
    "fairgpu-bindrequests",
    "fairgpu-claims",
    "fairgpu-deletion",
    "fairgpu-forced-eviction",
    "fairgpu-eviction",
    "fairgpu-orders",
)
"""The admission policies of each installation that has a webhook. The settings are written into the first six."""
COMPONENT_POLICIES: Final = ("fairgpu-nodeagent", "fairgpu-preemption")
"""The admission policies that come with the node agent, and with preemption by kube-scheduler."""

BUDGET_GATE: Final = "fairgpu.io/budget"
"""The scheduling gate that holds a pod until its budget can pay for it."""
METER_FINALIZER: Final = "fairgpu.io/meter"
"""The finalizer that keeps a pod on the API server until the end of its session is in the ledger."""

IN_BUDGET_CLASS: Final = "gpu-in-budget"
OVER_BUDGET_CLASS: Final = "gpu-over-budget"

SIDECAR_CONTAINER: Final = "fairgpu-sidecar"
USAGE_VOLUME: Final = "fairgpu-usage"
TOKEN_VOLUME: Final = "fairgpu-token"  # noqa: S105 - the name of a volume, no secret
USAGE_MOUNT_PATH: Final = "/run/fairgpu"
TOKEN_MOUNT_PATH: Final = "/var/run/secrets/fairgpu"  # noqa: S105 - the path of a mount, no secret
TOKEN_AUDIENCE: Final = "fairgpu-timekeeper"  # noqa: S105 - the name of an audience, no secret

TERMINAL_PHASES: Final = ("Succeeded", "Failed")
"""The phases of pods whose containers have ended for good."""

WEBHOOK_CONFIGURATION: Final = "zz-fairgpu"
WEBHOOK_SERVICE: Final = "fairgpu-webhook"
TIMEKEEPER_SERVICE: Final = "fairgpu-timekeeper"
REDIS_SERVICE: Final = "fairgpu-redis"
TIMEKEEPER_ACCOUNT: Final = "fairgpu-timekeeper"

BUDGET_API: Final = "fairgpu.io/v1alpha1"
