from __future__ import annotations

import uuid
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tests.support.ledger.seeding import START, Pod, seed_budget
from timekeeper.domain.reports import HeldDevice, ReportLimits
from timekeeper.ledger.reports import write_report_limits

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import RestServer

COUNTERS = {"spanNs": 0, "throttledNs": 0, "memoryPeakMiB": 0, "launches": 0, "oom": 0}


def test_a_session_shows_what_was_used_beside_what_is_reserved(rest: RestServer, store: RedisServer) -> None:
    pod = Pod(str(uuid.uuid4()), "team-a", f"train-{uuid.uuid4().hex[:8]}")
    with store.client() as client:
        held = tuple(HeldDevice(name, 1, Fraction(1), 81920, 1_000_000) for name in ("GPU-1", "GPU-2"))
        write_report_limits(client, 1, {pod.uid: ReportLimits(START, held)}, {})
        seed_budget(client, "research", ["team-a", "team-a2"], [pod])

    def used() -> Any:
        sessions = rest.as_person("alice", "GET", "/v1/sessions?namespace=team-a").document["sessions"]
        return next(session["used"] for session in sessions if session["uid"] == pod.uid)

    assert used() is None
    devices = [
        {"uuid": name, "busyNs": busy, **COUNTERS} for name, busy in (("GPU-1", 2_000_000_000), ("GPU-2", 1_500))
    ]
    body = {"v": 1, "boot": "b1", "seq": 1, "containers": [{"name": "main", "devices": devices}]}
    rest.ask("POST", "/v1/reports", rest.signer.pod(pod.namespace, pod.name, pod.uid), body)
    assert used()["microGPUSeconds"] == "2000001"
