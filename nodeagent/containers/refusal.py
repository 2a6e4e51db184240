"""The refusal to start a container. The kubelet shows its text at the pod, and tries again by itself."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The causes for which the agent refuses to start a container, one for each remedy."""

    UNKNOWN_CONTAINER = "unknown_container"
    """The kubelet names no pod that holds the slots."""
    AMBIGUOUS = "ambiguous"
    """The slots may belong to more than one container."""
    NO_ALLOCATION = "no_allocation"
    """The pod has no allocation, or none for this container."""
    BAD_ALLOCATION = "bad_allocation"
    """The allocation cannot be read, or does not fit the pod's limits."""
    ANOTHER_NODE = "another_node"
    UNUSABLE_DEVICE = "unusable_device"
    """The GPU is gone, fenced, or smaller than the allocation says."""
    OVERLAP = "overlap"
    """Other containers hold a part of the allocation, or the same slots."""
    NOT_PREPARED = "not_prepared"
    """The node could not write the container's files."""


class PlacementRefusedError(Exception):
    """Raised if the agent refuses to start a container; the kubelet shows the message at the pod.

    Attributes:
        cause: the cause.
        pods: the namespace, name and uid of each pod to which the container may belong; none if no pod is known.
    """

    def __init__(self, cause: Cause, message: str, *pods: tuple[str, str, str]) -> None:
        super().__init__(message)
        self.cause = cause
        self.pods = pods
