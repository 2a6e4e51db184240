"""The reporter that goes into each GPU pod, and the volumes that it and the GPU containers share.

It is a native sidecar (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/), so that Jobs complete
with it, and it passes the Pod Security Standard `restricted`
(https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted).
"""

from __future__ import annotations

from typing import Any

from fairgpu import names
from webhook.admission.json_patch import Operation, add, remove_elements
from webhook.admission.verdict import indexes_named
from webhook.settings import Sidecar

OUR_VOLUMES = (names.USAGE_VOLUME, names.TOKEN_VOLUME)
USAGE_SIZE_LIMIT = "16Mi"
TOKEN_FILE = "token"  # noqa: S105 - the name of a file, no secret
READABLE_MODE = 0o644


def sidecar_container(settings: Sidecar, timekeeper_ca: str) -> dict[str, Any]:
    """The container."""
    amounts = {"cpu": settings.cpu, "memory": settings.memory}
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
    """The volumes: where containers leave what they used, and the token by which that is told."""
    token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": settings.token_seconds, "path": TOKEN_FILE}
    return [
        {"name": names.USAGE_VOLUME, "emptyDir": {"sizeLimit": USAGE_SIZE_LIMIT}},
        {
            "name": names.TOKEN_VOLUME,
            "projected": {"defaultMode": READABLE_MODE, "sources": [{"serviceAccountToken": token}]},
        },
    ]


def usage_mount(container: str) -> dict[str, str]:
    """How a GPU container sees the folder of its own in the shared volume."""
    return {"name": names.USAGE_VOLUME, "mountPath": names.USAGE_MOUNT_PATH, "subPath": container}


def place_sidecar(spec: dict[str, Any], sidecar: dict[str, Any]) -> list[Operation]:
    """Puts the sidecar first among the init containers, in place of any container of its name there."""
    given = spec.get("initContainers")
    path = "/spec/initContainers"
    if not isinstance(given, list):
        return [add(path, [sidecar])]
    ours = indexes_named(given, (names.SIDECAR_CONTAINER,))
    if ours == [0] and given[0] == sidecar:
        return []
    return [*remove_elements(path, ours), add(f"{path}/0", sidecar)]


def place_volumes(spec: dict[str, Any], wanted: list[dict[str, Any]]) -> list[Operation]:
    """Puts the shared volumes among the pod's, in place of any of their names."""
    given = spec.get("volumes")
    path = "/spec/volumes"
    if not isinstance(given, list):
        return [add(path, wanted)]
    missing = list(wanted)
    stale = []
    for index in indexes_named(given, OUR_VOLUMES):
        if given[index] in missing:
            missing.remove(given[index])
        else:
            stale.append(index)
    return [*remove_elements(path, stale), *(add(f"{path}/-", volume) for volume in missing)]


def strange_volumes(spec: dict[str, Any]) -> list[int]:
    """The indexes of volumes that bear a name of ours without being of its kind: somebody meant another thing."""
    kinds = {names.USAGE_VOLUME: "emptyDir", names.TOKEN_VOLUME: "projected"}
    given: Any = spec.get("volumes")
    return [index for index in indexes_named(given, OUR_VOLUMES) if kinds[given[index]["name"]] not in given[index]]
