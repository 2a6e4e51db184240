"""The sidecar that admission adds to each GPU pod, and its volumes: of the usage files, and of the sidecar's token.

The sidecar is a native sidecar (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/), so that Jobs
complete with it, and it passes the Pod Security Standard `restricted`
(https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import orjson

from fairgpu import names
from fairgpu.json_values import mapping
from webhook.admission.json_patch import Operation, add, remove_elements
from webhook.admission.verdict import indexes_named
from webhook.settings import Sidecar

OUR_VOLUMES: Final = (names.USAGE_VOLUME, names.TOKEN_VOLUME)
_KINDS: Final = {names.USAGE_VOLUME: "emptyDir", names.TOKEN_VOLUME: "projected"}
"""The field by which a volume of FairGPU's states its type, keyed by the volume's name."""
USAGE_SIZE_LIMIT: Final = "16Mi"
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file, no secret
READABLE_MODE: Final = 0o644
NOT_STATED: Final = frozenset[str]()
"""The resources of which most pods state an amount for all their containers together: none."""


class Part:
    """A container or a volume that admission adds to every GPU pod.

    Attributes:
        item: the container or the volume as an object of the API.
        json: the JSON of `item`, which is encoded once for all pods.
    """

    def __init__(self, item: dict[str, Any]) -> None:
        self.item: Final = item
        self.json: Final = orjson.Fragment(orjson.dumps(item))


class SidecarParts:
    """The sidecar and the volumes that admission adds to every GPU pod.

    Attributes:
        container: the sidecar.
        volumes: the volume of the containers' usage files, and the volume of the sidecar's token.
    """

    def __init__(self, container: Part, volumes: tuple[Part, ...]) -> None:
        self.container: Final = container
        self.volumes: Final = volumes


@lru_cache(maxsize=8)
def sidecar_parts(settings: Sidecar, timekeeper_ca: str, pod_level: frozenset[str]) -> SidecarParts:
    """Returns the sidecar and the volumes that admission adds to a GPU pod; they are the same for most pods.

    Args:
        settings: the admin's settings of the sidecar.
        timekeeper_ca: the CA that signs the timekeeper's certificate, in PEM.
        pod_level: the resources of which the pod itself states an amount, as `pod_level_resources` returns them.
    """
    volumes = tuple([Part(volume) for volume in shared_volumes(settings)])
    return SidecarParts(Part(sidecar_container(settings, timekeeper_ca, pod_level)), volumes)


def pod_level_resources(spec: dict[str, Any]) -> frozenset[str]:
    """Returns the resources of which a pod itself states an amount for all its containers together; empty for none.

    https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    stated = mapping(spec.get("resources"))
    return frozenset((*mapping(stated.get("limits")), *mapping(stated.get("requests")))) if stated else NOT_STATED


def sidecar_container(settings: Sidecar, timekeeper_ca: str, pod_level: frozenset[str] = NOT_STATED) -> dict[str, Any]:
    """Returns the sidecar's container, as JSON of the API.

    Args:
        settings: the admin's settings of the sidecar.
        timekeeper_ca: the CA that signs the timekeeper's certificate, in PEM.
        pod_level: the resources of which the pod itself states an amount for all its containers. The sidecar requests
            none of them: the author left no room for it, and the API server refuses a pod whose containers together
            request more than the pod.
    """
    own = {"cpu": settings.cpu, "memory": settings.memory}
    amounts = {name: amount for name, amount in own.items() if name not in pod_level}
    return {
        "name": names.SIDECAR_CONTAINER,
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "restartPolicy": "Always",
        "env": [
            {"name": "FAIRGPU_TIMEKEEPER_URL", "value": settings.timekeeper_url},
            {"name": "FAIRGPU_TIMEKEEPER_CA", "value": timekeeper_ca},
        ],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsGroup": settings.run_as_user,
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": names.USAGE_VOLUME, "mountPath": names.USAGE_MOUNT_PATH, "readOnly": True},
            {"name": names.TOKEN_VOLUME, "mountPath": names.TOKEN_MOUNT_PATH, "readOnly": True},
        ],
    }


def shared_volumes(settings: Sidecar) -> list[dict[str, Any]]:
    """Returns the two volumes that admission adds, as JSON of the API: for usage files, and for the sidecar's token.

    Args:
        settings: the admin's settings of the sidecar, with the token's lifetime.
    """
    token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": settings.token_seconds, "path": TOKEN_FILE}
    return [
        {"name": names.USAGE_VOLUME, "emptyDir": {"sizeLimit": USAGE_SIZE_LIMIT}},
        {
            "name": names.TOKEN_VOLUME,
            "projected": {"defaultMode": READABLE_MODE, "sources": [{"serviceAccountToken": token}]},
        },
    ]


def usage_mount(container: str) -> dict[str, str]:
    """Returns the mount, as JSON of the API, by which a GPU container gets its own folder of the usage volume.

    Args:
        container: the container's name, which is also the folder's.
    """
    return {"name": names.USAGE_VOLUME, "mountPath": names.USAGE_MOUNT_PATH, "subPath": container}


def place_sidecar(spec: dict[str, Any], sidecar: Part) -> list[Operation]:
    """Returns the JSON Patch operations that put the sidecar first among a pod's init containers.

    The operations also remove each other init container that has the sidecar's name.
    """
    given = spec.get("initContainers")
    path = "/spec/initContainers"
    if not isinstance(given, list):
        return [add(path, [sidecar.json])]
    ours = indexes_named(given, (names.SIDECAR_CONTAINER,))
    if ours == [0] and given[0] == sidecar.item:
        return []
    return [*remove_elements(path, ours), add(f"{path}/0", sidecar.json)]


def place_volumes(spec: dict[str, Any], wanted: tuple[Part, ...]) -> list[Operation]:
    """Returns the JSON Patch operations that add the wanted volumes that a pod lacks.

    The operations also remove each volume of the pod that has the name of a wanted volume but another content.

    Args:
        spec: the pod's spec, as JSON.
        wanted: the volumes that the pod must have.
    """
    given = spec.get("volumes")
    path = "/spec/volumes"
    if not isinstance(given, list):
        return [add(path, [volume.json for volume in wanted])]
    missing = list(wanted)
    stale = []
    for index in indexes_named(given, OUR_VOLUMES):
        present = [volume for volume in missing if volume.item == given[index]]
        if present:
            missing.remove(present[0])
        else:
            stale.append(index)
    return [*remove_elements(path, stale), *[add(f"{path}/-", volume.json) for volume in missing]]


def strange_volumes(spec: dict[str, Any]) -> list[int]:
    """Returns the indexes of the volumes that have the name of one of FairGPU's volumes, but another type.

    Such a volume is the author's own. Admission replaces it, and warns.
    """
    given: Any = spec.get("volumes")
    return [index for index in indexes_named(given, OUR_VOLUMES) if _KINDS[given[index]["name"]] not in given[index]]
