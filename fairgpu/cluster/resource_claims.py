"""The API of Dynamic Resource Allocation, of which an API server may have one of several versions, or none."""

from __future__ import annotations

from typing import Final

from fairgpu.cluster.optional_groups import OptionalGroup

GROUP: Final = "/apis/resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""The versions that FairGPU reads, the newest first."""
RESOURCE: Final = OptionalGroup(GROUP, VERSIONS)
