"""The API of Dynamic Resource Allocation, of which an API server may have one of several versions, or none."""

from __future__ import annotations

from typing import Final

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.cluster.optional_groups import OptionalGroup

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""The versions that FairGPU reads, the newest first."""
RESOURCE: Final = OptionalGroup(GROUP, VERSIONS)


def served_version(api: KubernetesAPI) -> str:
    """Returns the newest version that the API server has and FairGPU reads; empty where there is none.

    Raises:
        ApiError: the API server does not have the group, or does not answer.
    """
    return RESOURCE.served_version(api)
