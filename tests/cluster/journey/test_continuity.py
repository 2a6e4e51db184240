"""GPU pods are created all the while: nothing that FairGPU does to itself may be seen by those who create them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.control_plane.identities import Identity
from tests.cluster.journey.manifests import pod
from tests.cluster.services.everything import Services
from tests.support.background import in_background
from tests.support.waiting import wait_until

MAX_PODS = 600
PAUSE_SECONDS = 0.25
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-fairgpu"


class Creations:
    """The outcome of the pods that were created meanwhile."""

    def __init__(self) -> None:
        self.whole = 0
        self.failed: list[str] = []
        self.unmutated: list[str] = []


@contextmanager
def creating(user: Identity, namespace: str) -> Iterator[Creations]:
    """Creates GPU pods one after the other in a thread, up to a bound, until the with statement ends."""
    creations, end = Creations(), threading.Event()
    path = f"/api/v1/namespaces/{namespace}/pods"

    def create() -> None:
        for number in range(MAX_PODS):
            if end.wait(PAUSE_SECONDS):
                return
            try:
                created = user.api.create(path, pod(f"pod-{number}", {"fairgpu.io/gpu-core": 10}))
            except RuntimeError as error:
                creations.failed.append(str(error))
                continue
            names = [container["name"] for container in created["spec"].get("initContainers", [])]
            if names == ["fairgpu-sidecar"]:
                creations.whole += 1
            else:
                creations.unmutated.append(created["metadata"]["name"])

    with in_background(create, end.set):
        yield creations


def roll(services: Services) -> None:
    """Replaces both replicas as the Deployment does: a new one is ready before an old one gets SIGTERM."""
    for new, old in ((2, 0), (0, 1)):
        services.replicas.start(new)
        port = services.replicas.ports[new].https
        wait_until(lambda port=port: port in services.webhook.ready, f"replica {new} is ready")
        services.replicas.stop(old)


def test_neither_a_rotation_of_the_ca_nor_a_rolling_restart_costs_a_pod(
    control_plane: ControlPlane, namespace: str, services: Services
) -> None:
    bundles: set[str] = set()

    def rotated() -> bool:
        """Old CA alone, old and new, new alone."""
        configuration = control_plane.admin.api.get(CONFIGURATION)
        bundles.add(configuration["webhooks"][0]["clientConfig"]["caBundle"])
        return len(bundles) >= 3

    with creating(control_plane.namespace_admin(namespace), namespace) as creations:
        roll(services)
        wait_until(rotated, "the CA was renewed and the old one dropped")
        wait_until(lambda: creations.whole >= 100 or creations.failed, "many pods were created meanwhile")
    assert creations.failed == []
    assert creations.unmutated == []
    wait_until(lambda: len(services.webhook.ready) == 2, "two replicas take reviews again")
