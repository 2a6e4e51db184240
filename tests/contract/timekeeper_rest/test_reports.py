from __future__ import annotations

import contextlib
import itertools
import json
import signal
import time
import uuid
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.timekeeper_rest.conftest import RUNNING
from tests.contract.timekeeper_rest.test_reading import assert_problem
from tests.support.ledger.seeding import START, Pod, seed_budget
from tests.support.tokens import TokenSigner
from tests.support.waiting import wait_until
from timekeeper.domain.reports import HeldDevice, ReportLimits
from timekeeper.ledger import keys, shared
from timekeeper.ledger.reports import readable_intake, write_report_limits

if TYPE_CHECKING:
    from tests.support.servers.redis_server import RedisServer
    from tests.support.servers.rest_server import Answer, RestServer

DEVICE = {
    "uuid": "GPU-1",
    "busyNs": 5_000_000_000,
    "spanNs": 60_000_000_000,
    "throttledNs": 0,
    "memoryPeakMiB": 4096,
    "launches": 12,
    "oom": 0,
}


def report(boot: str = "b1", seq: int = 1, **device: Any) -> dict[str, Any]:
    return {"v": 1, "boot": boot, "seq": seq, "containers": [{"name": "main", "devices": [{**DEVICE, **device}]}]}


def new_pod(store: RedisServer) -> Pod:
    """A pod of team-a with an open session, and no report yet."""
    pod = Pod(str(uuid.uuid4()), "team-a", f"train-{uuid.uuid4().hex[:8]}")
    with store.client() as client:
        device = HeldDevice(str(DEVICE["uuid"]), 1, Fraction(1), 81920, 1_000_000)
        write_report_limits(client, 1, {pod.uid: ReportLimits(START, (device,))}, {})
        seed_budget(client, "research", ["team-a", "team-a2"], [pod])
    return pod


def boots(store: RedisServer, pod: Pod) -> dict[str, tuple[int, int]]:
    """By start of the sidecar, the latest report and the GPU time that it came to."""
    known = readable_intake(pod.uid, stored(store, pod).get("state"))
    return {boot.name: (boot.sequence, boot.gpu) for boot in known.boots}


def stored(store: RedisServer, pod: Pod) -> dict[str, str]:
    with store.client(decode_responses=True) as client:
        return client.hgetall(keys.report(pod.uid))


def send(rest: RestServer, pod: Pod, body: Any, **claims: Any) -> Answer:
    return rest.ask("POST", "/v1/reports", rest.signer.pod(pod.namespace, pod.name, pod.uid, **claims), body)


def test_a_report_is_stored_and_answered_with_the_next_interval(rest: RestServer, store: RedisServer) -> None:
    pod, before = new_pod(store), time.time_ns()
    answer = send(rest, pod, report())
    assert (answer.status, answer.document) == (200, {"interval_s": 60})
    kept = stored(store, pod)
    assert (boots(store, pod), kept["used"]) == ({"b1": (1, 5_000_000)}, "5000000")
    assert before <= int(kept["at"]) <= time.time_ns()


@pytest.mark.parametrize("seq", [1, 2, 0])
def test_a_sequence_that_does_not_grow_is_ignored_with_200(rest: RestServer, store: RedisServer, seq: int) -> None:
    pod = new_pod(store)
    send(rest, pod, report(seq=2, busyNs=20_000))
    assert send(rest, pod, report(seq=seq, busyNs=50_000)).status == 200
    assert boots(store, pod) == {"b1": (2, 20)}


def test_a_restarted_sidecar_starts_a_new_stream(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    send(rest, pod, report(boot="b1", seq=900, busyNs=900_000))
    send(rest, pod, report(boot="b2", seq=1, busyNs=1_000))
    assert send(rest, pod, report(boot="b1", seq=900)).status == 200
    assert (boots(store, pod), stored(store, pod)["used"]) == ({"b1": (900, 900), "b2": (1, 1)}, "901")


def test_a_pod_without_a_session_is_refused_and_nothing_is_kept(rest: RestServer, store: RedisServer) -> None:
    gone = Pod("0b1c2d3e-0000-4000-8000-00000000dead", "team-a", "gone-0")
    answer = send(rest, gone, report())
    assert_problem(answer, 403)
    assert (answer.document["type"], answer.headers["retry-after"]) == ("urn:fairgpu:problem:not-running", "5")
    assert stored(store, gone) == {}


def test_a_token_replayed_after_its_pod_ended_is_refused(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    assert send(rest, pod, report()).status == 200
    with store.client() as client:
        shared.index_sessions(client, 1, [], [(pod.uid, "research")])
    assert send(rest, pod, report(seq=2)).document["type"] == "urn:fairgpu:problem:not-running"


def test_a_uid_that_is_the_beginning_of_anothers_is_not_that_pod(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    part = Pod(pod.uid[:-1], pod.namespace, pod.name)
    assert_problem(send(rest, part, report()), 403)


def test_a_second_report_within_a_second_is_shown_when_to_come_back_and_nothing_is_written(
    rest: RestServer, store: RedisServer
) -> None:
    pod, numbers = new_pod(store), itertools.count(1)
    assert send(rest, pod, report(seq=next(numbers))).status == 200

    def refused() -> Answer | None:
        number = next(numbers)
        before, answer = stored(store, pod), send(rest, pod, report(seq=number, launches=number))
        assert answer.status in {200, 429}
        return answer if answer.status == 429 and stored(store, pod) == before else None

    answer = wait_until(refused, "a report comes within a second of the one before")
    assert_problem(answer, 429)
    assert (answer.document["type"], answer.headers["retry-after"]) == ("urn:fairgpu:problem:too-many-requests", "1")
    wait_until(lambda: send(rest, pod, report(seq=next(numbers))).status == 200, "a report is taken a second later")


def test_the_first_of_a_start_and_the_last_are_taken_at_once(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    assert send(rest, pod, report(boot="b1", seq=1)).status == 200
    assert send(rest, pod, {**report(boot="b1", seq=2), "last": True}).status == 200
    assert send(rest, pod, report(boot="b2", seq=1)).status == 200


def test_a_store_without_room_for_reports_is_shown_and_takes_them_again_once_there_is(
    rest: RestServer, store: RedisServer
) -> None:
    pod, numbers = new_pod(store), itertools.count(1)

    def answer() -> Answer:
        return send(rest, pod, report(seq=next(numbers)))

    with store.client() as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) * 11 // 10)
        try:
            refused = wait_until(lambda: found if (found := answer()).status == 503 else None, "reports are refused")
        finally:
            client.config_set("maxmemory", 0)
    assert_problem(refused, 503)
    assert refused.document["type"] == "urn:fairgpu:problem:store-full"
    assert refused.headers["retry-after"] == "60"
    wait_until(lambda: answer().status == 200, "reports are taken again")


STRANGER = TokenSigner(algorithm="ES256")
NOW = int(time.time())
POD = ("team-a", RUNNING.name, RUNNING.uid)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW - 60},
        {"aud": ["https://kubernetes.default.svc"]},
        {"iss": "https://elsewhere.example"},
        {"nbf": NOW + 36_000},
        {"kubernetes.io": None},
    ],
    ids=["expired", "other audience", "other issuer", "not yet valid", "of no pod"],
)
def test_a_token_that_is_not_good_is_refused(rest: RestServer, claims: dict[str, Any]) -> None:
    assert_problem(rest.ask("POST", "/v1/reports", rest.signer.pod(*POD, **claims), report()), 401)


def test_forged_and_absent_tokens_are_refused_and_not_repeated(rest: RestServer) -> None:
    forged = STRANGER.pod(*POD)
    for token in (forged, "x", None):
        answer = rest.ask("POST", "/v1/reports", token, report())
        assert_problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert token is None or len(token) < 5 or token.encode() not in answer.body
    assert forged not in rest.log()


BAD_DEVICES = {
    "negative": ("busyNs", -1),
    "huge": ("busyNs", 2**63),
    "a float": ("busyNs", 1.5),
    "a text": ("busyNs", "1"),
    "true": ("launches", True),
    "null": ("oom", None),
    "no uuid": ("uuid", ""),
    "a uuid with a blank": ("uuid", "GPU 1"),
}


@pytest.mark.parametrize(("field", "value"), BAD_DEVICES.values(), ids=BAD_DEVICES.keys())
def test_a_counter_is_refused_by_its_field(rest: RestServer, store: RedisServer, field: str, value: Any) -> None:
    pod = new_pod(store)
    answer = send(rest, pod, report(**{field: value}))
    assert_problem(answer, 422)
    assert answer.document["errors"][0]["field"] == f"containers[0].devices[0].{field}"
    assert stored(store, pod).keys() == {"terms", "phase", "epoch"}


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in report().items() if name != field}


BAD_REPORTS: dict[str, tuple[Any, int]] = {
    "no JSON": (b"{", 400),
    "nothing": (b"", 400),
    "NaN": (json.dumps(report(busyNs=float("nan"))).encode(), 422),
    "infinity": (json.dumps(report(busyNs=float("inf"))).encode(), 422),
    "10^400": (json.dumps(report()).replace("5000000000", "1" + "0" * 400).encode(), 422),
    "not UTF-8": (b'{"v": 1, "boot": "\xff"}', 400),
    "a list": ([], 422),
    "deep": (b"[" * 50_000, 400),
    "without v": (without("v"), 422),
    "v 2": ({**report(), "v": 2}, 422),
    "without boot": (without("boot"), 422),
    "boot too long": (report(boot="b" * 65), 422),
    "without seq": (without("seq"), 422),
    "seq negative": (report(seq=-1), 422),
    "seq 2^53": (report(seq=2**53), 422),
    "last as a text": ({**report(), "last": "yes"}, 422),
    "without containers": (without("containers"), 422),
    "a container twice": ({**report(), "containers": [*report()["containers"], *report()["containers"]]}, 422),
    "a device twice": ({**report(), "containers": [{"name": "main", "devices": [DEVICE, DEVICE]}]}, 422),
    "too many devices": (
        {**report(), "containers": [{"name": f"c{n}", "devices": [DEVICE]} for n in range(257)]},
        422,
    ),
    "too long": (b" " * (129 * 1024), 413),
}


@pytest.mark.parametrize(("body", "status"), BAD_REPORTS.values(), ids=BAD_REPORTS.keys())
def test_a_report_is_refused_whole(rest: RestServer, store: RedisServer, body: Any, status: int) -> None:
    pod = new_pod(store)
    assert_problem(send(rest, pod, body), status)
    assert stored(store, pod).keys() == {"terms", "phase", "epoch"}


def test_the_fields_of_a_later_sidecar_are_passed_over(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    assert send(rest, pod, {**report(joules=5), "mood": "good"}).status == 200
    assert boots(store, pod) == {"b1": (1, 5_000_000)}


@pytest.mark.parametrize("path", ["/v1/reports", "/v1/grants", "/budget/team-a/report"])
def test_ten_megabytes_are_refused(rest: RestServer, path: str) -> None:
    assert_problem(rest.ask("POST", path, rest.signer.pod(*POD), b" " * 10_000_000), 413)


def test_ten_megabytes_that_come_unannounced_are_cut_off_and_the_service_goes_on(rest: RestServer) -> None:
    chunks = (b" " * 65_536 for _ in range(160))
    with contextlib.suppress(OSError):  # it hangs up while they are still being sent
        token = rest.signer.pod(*POD)
        assert rest.ask("POST", "/v1/reports", token, chunks, {"Content-Type": "application/json"}).status == 413
    assert rest.ask("GET", "/healthz").status == 200


def test_reports_go_on_after_redis_was_killed_and_has_forgotten_the_scripts(
    rest: RestServer, store: RedisServer
) -> None:
    pod = new_pod(store)
    assert send(rest, pod, report(seq=1)).status == 200
    store.wait_until_written()
    store.kill()
    assert_problem(send(rest, pod, report(seq=2)), 503)
    store.start()
    pod = new_pod(store)
    assert send(rest, pod, report(seq=3)).status == 200


def test_a_redis_that_hangs_is_answered_for_in_bounded_time_and_probes_go_on(
    rest: RestServer, store: RedisServer
) -> None:
    pod = new_pod(store)
    assert store.process is not None
    store.process.send_signal(signal.SIGSTOP)
    try:
        assert_problem(send(rest, pod, report()), 503)
        assert rest.ask("GET", "/healthz").status == 200
    finally:
        store.process.send_signal(signal.SIGCONT)
    assert send(rest, pod, report(seq=2)).status == 200


def test_the_ancestors_sidecar_proves_life_and_is_shown_when_to_end(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    write_pod(rest, pod, {"main": {"running": {}}, "meter": {"running": {}}})
    body = {"usage_factor": 0.5, "pod_name": pod.name}
    token = rest.signer.pod(pod.namespace, pod.name, pod.uid)
    before = time.time_ns()
    assert rest.ask("POST", "/budget/team-a/report", token, body).document == {"terminate": False}
    assert int(stored(store, pod)["at"]) >= before
    write_pod(rest, pod, {"main": {"terminated": {"exitCode": 0}}, "meter": {"running": {}}})

    def told_to_end() -> bool:
        return bool(rest.ask("POST", "/budget/team-a/report", token, body).document["terminate"])

    wait_until(told_to_end, "the sidecar is asked to end")


def test_a_proof_of_life_leaves_what_was_reported(rest: RestServer, store: RedisServer) -> None:
    pod = new_pod(store)
    send(rest, pod, report())
    write_pod(rest, pod, {"main": {"running": {}}, "meter": {"running": {}}})
    token = rest.signer.pod(pod.namespace, pod.name, pod.uid)
    rest.ask("POST", "/budget/team-a/report", token, {"usage_factor": 1, "pod_name": pod.name})
    assert boots(store, pod) == {"b1": (1, 5_000_000)}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/budget/team-a/report", {"usage_factor": 1, "pod_name": "someone-else"}, 403),
        ("/budget/team-b/report", {"usage_factor": 1, "pod_name": RUNNING.name}, 403),
        ("/budget/team-a/report", {"usage_factor": -1, "pod_name": RUNNING.name}, 422),
        ("/budget/team-a/report", b'{"usage_factor": NaN, "pod_name": "train-0"}', 422),
        ("/budget/team-a/report", {"pod_name": RUNNING.name}, 422),
        ("/budget/team-a/report", b"", 400),
    ],
)
def test_a_proof_of_life_for_others_or_without_sense_is_refused(
    rest: RestServer, path: str, body: Any, status: int
) -> None:
    assert_problem(rest.ask("POST", path, rest.signer.pod(*POD), body), status)


def write_pod(rest: RestServer, pod: Pod, states: dict[str, Any]) -> None:
    document = {
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "spec": {"containers": [{"name": name} for name in states]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": name, "state": state} for name, state in states.items()],
        },
    }
    (rest.folder / "pods" / f"{pod.uid}.json").write_text(json.dumps(document))
