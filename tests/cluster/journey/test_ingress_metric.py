"""The webhook says whether its NetworkPolicy lets everybody connect."""

from __future__ import annotations

import urllib.request

from tests.cluster.services.everything import Services
from tests.support.waiting import LIMIT_S, wait_until


def test_the_shipped_policy_is_reported_as_open(services: Services) -> None:
    ports = {ports.https: ports.metrics for ports in services.replicas.ports}

    def metrics_lines() -> set[str]:
        """Those of a replica that is ready; none while none is."""
        lines: set[str] = set()
        for https in services.webhook.ready[:1]:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[https]}/metrics", timeout=LIMIT_S) as response:
                lines |= set(response.read().decode().splitlines())
        return lines

    wait_until(lambda: "fairgpu_webhook_ingress_open 1.0" in metrics_lines(), "the replica has read its policy")
