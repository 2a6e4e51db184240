"""The bodies that kube-scheduler gets over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kubernetes import client
from prometheus_client import CollectorRegistry

from fairgpu.cluster.api import KubernetesAPI
from fairgpu.serving.lifecycle import Lifecycle
from fairgpu.serving.messages import Request, Response
from fairgpu.serving.options import Address, ServerOptions
from scheduler.application import BINDS_AT_ONCE, Routes, build_application
from scheduler.cluster.acting import Acting
from scheduler.cluster.state import HOLD_SECONDS
from scheduler.extender.binding import GIVE_UP_SECONDS, LATE
from scheduler.measures import PARTS, Measures
from scheduler.settings import ExtenderSettings, LeaseSettings, SchedulerSettings
from tests.support.waiting import LIMIT_S
from tests.unit.scheduler.extended import ApiServer, Time, pod, state_of


def routes(api: ApiServer, registry: CollectorRegistry, *, acts: bool = True) -> Routes:
    """The routes of a replica with one node."""
    return Routes(state_of("n0"), api, Time().clock, lambda _=0.0: acts, Measures(registry))  # type: ignore[arg-type] # a part


def asked(item: dict[str, Any]) -> bytes:
    return json.dumps({"Pod": item, "Nodes": None, "NodeNames": ["n0"]}).encode()


def bind_body(item: dict[str, Any]) -> bytes:
    metadata = item["metadata"]
    named = {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": "n0",
    }
    return json.dumps(named).encode()


class Threads(Lifecycle):
    """Takes each part for one that failed once, and starts none."""

    def __init__(self) -> None:
        super().__init__(ServerOptions("test", Address("127.0.0.1", 0)))
        self.parts: dict[str, Callable[[], None]] = {}

    def run_thread(self, name: str, target: Callable[[], None], failed: Callable[[], object] = lambda: None) -> None:
        self.parts[name] = target
        failed()


def test_the_failures_of_each_part_are_counted_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    lifecycle, registry = Threads(), CollectorRegistry()
    settings = SchedulerSettings(lease=LeaseSettings(namespace="fairgpu-system", pod_name="s-0"))
    build_application(lifecycle, KubernetesAPI(client.ApiClient()), settings, Measures(registry))
    assert sorted(lifecycle.parts) == sorted(PARTS)
    for part in PARTS:
        assert registry.get_sample_value("fairgpu_scheduler_part_failures_total", {"part": part}) == 1


@pytest.mark.parametrize("preempt", [False, True])
def test_kube_scheduler_may_ask_for_victims_only_where_the_admin_lets_it(
    monkeypatch: pytest.MonkeyPatch, *, preempt: bool
) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    settings = SchedulerSettings(extender=ExtenderSettings(preempt=preempt))
    application = build_application(
        Threads(), KubernetesAPI(client.ApiClient()), settings, Measures(CollectorRegistry())
    )
    assert ((b"POST", b"/preempt") in application.immediate) == preempt


def test_a_lease_runs_out_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock stands still meanwhile, and the one since the start of the machine goes on."""
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 1000.0}.__getitem__)
    seen: list[float] = []

    def acts(_: Acting, now: float, seconds: float = 0.0) -> bool:
        seen.append(now + seconds)
        return False

    monkeypatch.setattr(Acting, "acts", acts)
    settings = SchedulerSettings(lease=LeaseSettings(namespace="fairgpu-system", pod_name="s-0"))
    application = build_application(
        Threads(), KubernetesAPI(client.ApiClient()), settings, Measures(CollectorRegistry())
    )
    assert application.immediate[b"POST", b"/filter"](asked(pod("a"))).status == 503
    assert seen == [1000.0]


def test_a_pod_is_filtered_scored_and_bound_in_the_protocols_own_words() -> None:
    item, registry = pod("a"), CollectorRegistry()
    replica = routes(ApiServer(item), registry)
    assert json.loads(replica.filter(asked(item)).body) == {
        "NodeNames": ["n0"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert json.loads(replica.prioritize(asked(item)).body) == [{"Host": "n0", "Score": 0}]
    answer = asyncio.run(replica.bind(Request({}, bind_body(item))))
    assert (answer.status, json.loads(answer.body)) == (200, {"Error": ""})
    for verb in ("filter", "prioritize", "bind"):
        assert registry.get_sample_value("fairgpu_scheduler_calls_total", {"verb": verb, "outcome": "placed"}) == 1


def test_a_bind_that_fails_says_why_in_its_answer() -> None:
    item = pod("a", core=100, gpus=2)
    answer = asyncio.run(routes(ApiServer(item), CollectorRegistry()).bind(Request({}, bind_body(item))))
    assert "the devices on n0 were taken" in json.loads(answer.body)["Error"]


def test_a_replica_that_does_not_lead_answers_nothing() -> None:
    replica, item = routes(ApiServer(pod("a")), CollectorRegistry(), acts=False), pod("a")
    answers = [
        replica.filter(asked(item)),
        replica.prioritize(asked(item)),
        replica.preempt(json.dumps({"Pod": item, "NodeNameToMetaVictims": {}}).encode()),
        asyncio.run(replica.bind(Request({}, bind_body(item)))),
    ]
    assert [answer.status for answer in answers] == [503] * 4


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"Pod":{}}', b'{"Pod":{},"NodeNames":[1]}', b'{"Pod":[],"NodeNames":[]}']
)
def test_a_body_that_is_none_of_the_protocols_is_answered_400(body: bytes) -> None:
    replica = routes(ApiServer(), CollectorRegistry())
    answers = [replica.filter(body), replica.prioritize(body), asyncio.run(replica.bind(Request({}, body)))]
    assert [answer.status for answer in answers] == [400] * 3


@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod":{"a":"\xff"},"NodeNames":["n0"],"PodName":"\xff","NodeNameToMetaVictims":{}}',
        b'{"Pod":' + b'{"a":' * 100_000,
    ],
    ids=["not UTF-8", "nested"],
)
def test_bytes_that_are_no_text_or_nested_without_end_are_answered_400_by_every_route(body: bytes) -> None:
    replica = routes(ApiServer(), CollectorRegistry())
    answers = [replica.filter(body), replica.prioritize(body), replica.preempt(body)]
    answers.append(asyncio.run(replica.bind(Request({}, body))))
    assert [answer.status for answer in answers] == [400] * 4


def test_names_that_are_not_utf8_are_answered_400() -> None:
    replica, body = routes(ApiServer(), CollectorRegistry()), asked(pod("a")).replace(b'"n0"', b'"\xff"')
    assert [replica.filter(body).status, replica.prioritize(body).status] == [400, 400]


@pytest.mark.parametrize("names", ['[ "n0"]', '["n0" ]', '["n0" , "n0"]'])
def test_whitespace_in_the_list_of_names_changes_no_name_in_the_scores(names: str) -> None:
    replica, body = routes(ApiServer(), CollectorRegistry()), asked(pod("a")).replace(b'["n0"]', names.encode())
    assert {one["Host"] for one in json.loads(replica.prioritize(body).body)} == {"n0"}


def test_many_binds_wait_for_the_api_server_at_once_however_few_cpus_there_are() -> None:
    items = [pod(f"p{number}", core=1) for number in range(BINDS_AT_ONCE)]
    all_there = threading.Barrier(BINDS_AT_ONCE)

    class Waits(ApiServer):
        def create(self, path: str, body: dict[str, Any], query: Any = None) -> dict[str, Any]:
            all_there.wait(LIMIT_S)
            return super().create(path, body, query)

    answering = routes(Waits(*items), CollectorRegistry())

    async def bound(item: dict[str, Any]) -> Response:
        answering.filter(asked(item))
        metadata = item["metadata"]
        named = {"PodName": metadata["name"], "PodNamespace": "team", "PodUID": metadata["uid"], "Node": "n0"}
        return await answering.bind(Request({}, json.dumps(named).encode()))

    async def bind_all() -> list[Response]:
        return await asyncio.gather(*(bound(item) for item in items))

    assert {answer.body for answer in asyncio.run(bind_all())} == {b'{"Error":""}'}


def test_a_bind_that_waited_too_long_behind_others_is_not_sent() -> None:
    """kube-scheduler has given it up by then, and no longer counts the pod on the node."""
    items, time, answers_now = (
        [pod(f"p{number}", core=1) for number in range(BINDS_AT_ONCE + 1)],
        Time(),
        threading.Event(),
    )

    all_there = threading.Barrier(BINDS_AT_ONCE + 1)

    class Slow(ApiServer):
        def create(self, path: str, body: dict[str, Any], query: Any = None) -> dict[str, Any]:
            all_there.wait(LIMIT_S)
            assert answers_now.wait(LIMIT_S)
            return super().create(path, body, query)

    api, state = Slow(*items), state_of("n0")
    answering = Routes(state, api, time.clock, lambda _=0.0: True, Measures(CollectorRegistry()))  # type: ignore[arg-type] # a part

    async def bind_all() -> list[Response]:
        for item in items:
            answering.filter(asked(item))
        binds = [asyncio.create_task(answering.bind(Request({}, bind_body(item)))) for item in items]
        # Each task runs until it waits for a thread.
        await asyncio.sleep(0)
        all_there.wait(LIMIT_S)
        time.wait(GIVE_UP_SECONDS + 1)
        answers_now.set()
        return await asyncio.gather(*binds)

    answers = [json.loads(answer.body)["Error"] for answer in asyncio.run(bind_all())]
    assert answers == [""] * BINDS_AT_ONCE + [LATE]
    assert len(api.posted) == BINDS_AT_ONCE
    state.expire(time.now + HOLD_SECONDS)
    assert state.fleet.held_by(f"uid-p{BINDS_AT_ONCE}") is None
