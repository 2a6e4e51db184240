"""The process that keeps the webhook's certificates, and a stand-in for the kubelet that mounts one."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairgpu.cluster.api import ApiError
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.processes import Process
from tests.cluster.services.replicas import ROTATING, environment, service
from tests.support.background import in_background

SECRET = "/api/v1/namespaces/fairgpu-system/secrets/fairgpu-webhook-tls"
MOUNT_SECONDS = 0.5


@contextmanager
def certificates(plane: ControlPlane, name: str = "certificates") -> Iterator[Process]:
    """One `fairgpu webhook certificates` under the account of its Deployment."""
    settings = {**environment(plane, "fairgpu-certificates"), **ROTATING}
    with service(plane, name, ["webhook", "certificates"], settings) as process:
        yield process


@contextmanager
def mounted_certificate(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """The Secret as files of a folder, all changed in one step: each set lies in a folder of its own behind a link.

    https://kubernetes.io/docs/concepts/configuration/secret/#using-secrets-as-files-from-a-pod
    """
    folder.mkdir()
    for name in ("tls.crt", "tls.key"):
        (folder / name).symlink_to(Path("..data", name))
    ending = threading.Event()

    def follow() -> None:
        version = ""
        while not ending.wait(MOUNT_SECONDS):
            try:
                secret = plane.admin.api.get(SECRET)
            except ApiError:
                continue  # it is not there, or no server answers: a kubelet looks again
            if secret["metadata"]["resourceVersion"] != version:
                version = secret["metadata"]["resourceVersion"]
                _mount(folder, version, {key: base64.b64decode(value) for key, value in secret["data"].items()})

    with in_background(follow, ending.set):
        yield


def _mount(folder: Path, version: str, files: dict[str, bytes]) -> None:
    made = folder / f"..{version}"
    made.mkdir(mode=0o700)
    for name, value in files.items():
        (made / name).write_bytes(value)
    (folder / "..data_tmp").symlink_to(made.name)
    (folder / "..data_tmp").replace(folder / "..data")
