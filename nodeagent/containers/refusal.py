"""Why a container is not started. The kubelet shows the text at the pod, and tries again by itself."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The kinds of refusal, one for each remedy."""

    UNKNOWN_CONTAINER = "unknown_container"
    """The kubelet does not say which pod holds the slots."""
    AMBIGUOUS = "ambiguous"
    """More than one container may be meant."""
    NO_ALLOCATION = "no_allocation"
    """The pod has no allocation, or none for this container."""
    BAD_ALLOCATION = "bad_allocation"
    """The allocation cannot be read, or does not fit the pod's limits."""
    ANOTHER_NODE = "another_node"
    UNUSABLE_DEVICE = "unusable_device"
    """The GPU is gone, fenced, or smaller than the allocation says."""
    OVERLAP = "overlap"
    """Others hold what the allocation gives."""
    NOT_PREPARED = "not_prepared"
    """The node could not write the container's files."""


class PlacementRefusedError(Exception):
    """A container that is not to start.

    Attributes:
        cause: the kind of refusal.
        pod: namespace, name and uid of the pod, as far as they are known.
    """

    def __init__(self, cause: Cause, message: str, pod: tuple[str, str, str] | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.pod = pod
