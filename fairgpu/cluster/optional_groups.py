"""Groups of the Kubernetes API that a cluster may lack, or have in one of several versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.json_values import mappings


@dataclass(frozen=True, slots=True)
class OptionalGroup:
    """A group of the Kubernetes API that a cluster may lack.

    Attributes:
        path: the path of the group, such as `/apis/resource.k8s.io`.
        versions: the versions that FairGPU reads, the newest first.
    """

    path: str
    versions: tuple[str, ...]

    def served_version(self, api: KubernetesAPI) -> str:
        """Returns the group's newest version that the API server has and FairGPU reads; empty if there is none.

        Raises:
            ApiError: the API server does not have the group, refuses, or does not answer.
        """
        served = {str(item.get("version")) for item in mappings(api.get(self.path).get("versions"))}
        return next((version for version in self.versions if version in served), "")


KUEUE: Final = OptionalGroup("/apis/kueue.x-k8s.io", ("v1beta2", "v1beta1"))
"""Kueue's queues."""
