"""The rows of docs/bad-input.md about requests to the timekeeper are what it answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.timekeeper_rest.conftest import RUNNING
from tests.support.bad_input_document import documented
from tests.support.tokens import TokenSigner

if TYPE_CHECKING:
    from tests.support.servers.rest_server import Answer, RestServer

DOCUMENTED = documented("sent")
STRANGER = TokenSigner(algorithm="ES256")
POD = (RUNNING.namespace, RUNNING.name, RUNNING.uid)
GONE = ("team-a", "gone-0", "0b1c2d3e-0000-4000-8000-00000000dead")
COUNTERS = {"busyNs": 1, "spanNs": 1, "throttledNs": 0, "memoryPeakMiB": 1, "launches": 1, "oom": 0}

Sent = Callable[["RestServer"], "Answer"]


def report(seq: int = 5, boot: str = "b1", **device: Any) -> dict[str, Any]:
    devices = [{"uuid": "GPU-1", **COUNTERS, **device}]
    return {"v": 1, "boot": boot, "seq": seq, "containers": [{"name": "main", "devices": devices}]}


def reported(body: Any) -> Sent:
    return lambda rest: rest.ask("POST", "/v1/reports", rest.signer.pod(*POD), body)


def with_token(token: Callable[[RestServer], str | None]) -> Sent:
    return lambda rest: rest.ask("POST", "/v1/reports", token(rest), report())


def granted(**change: Any) -> Sent:
    body = {"budget": "research", "gpuHours": 1, "reason": "a deadline", "name": "bad-input", **change}
    return lambda rest: rest.as_person("admin", "POST", "/v1/grants", body=body)


def proof_of_life(body: dict[str, Any]) -> Sent:
    return lambda rest: rest.ask("POST", "/budget/team-a/report", rest.signer.pod(*POD), body)


REQUESTS: dict[str, Sent] = {
    "a report without a token": with_token(lambda _: None),
    "a forged token": with_token(lambda _: STRANGER.pod(*POD)),
    "an expired token": with_token(lambda rest: rest.signer.pod(*POD, exp=1)),
    "a token for another audience": with_token(lambda rest: rest.signer.pod(*POD, aud=["elsewhere"])),
    "a token of no pod": with_token(lambda rest: rest.signer.pod(*POD, **{"kubernetes.io": None})),
    "a token sent again after its pod has ended": with_token(lambda rest: rest.signer.pod(*GONE)),
    "a proof of life for another pod": proof_of_life({"usage_factor": 1, "pod_name": "someone-else"}),
    "a counter of -1": reported(report(busyNs=-1)),
    "a counter of 2^63": reported(report(busyNs=2**63)),
    "a counter that is NaN": reported(json.dumps(report(busyNs=float("nan"))).encode()),
    "a report without `seq`": reported({key: value for key, value in report().items() if key != "seq"}),
    "a sequence that goes back": reported(report(seq=1)),
    "the first report of a sidecar that was restarted": reported(report(seq=0, boot="b2")),
    "no JSON": reported(b"{"),
    "10 MB": reported(b" " * 10_000_000),
    "a budget that is not there": lambda rest: rest.as_person("admin", "GET", "/v1/budgets/nosuch"),
    "a namespace that is not there": lambda rest: rest.as_person("admin", "GET", "/v1/namespaces/nosuch/budget"),
    "a namespace that cannot be one": lambda rest: rest.as_person("admin", "GET", "/v1/namespaces/No_Such/budget"),
    "another team's namespace": lambda rest: rest.as_person("alice", "GET", "/v1/namespaces/team-b/budget"),
    "a grant of 10^14 GPU-hours": granted(gpuHours=10**14),
    "a grant of 0.0000001 GPU-hours": granted(gpuHours="0.0000001"),
    "a grant without a reason": granted(reason=" "),
    "a grant with a field that is none": granted(expire="2027-01-01T00:00:00Z"),
}


def shown(answer: Answer) -> tuple[str, str]:
    """A row's answer and what it says, as the document has them."""
    document = answer.document
    if answer.status == 200:
        return "200", str(document.get("state", "taken; the next interval"))
    return f"{answer.status} {document['type'].removeprefix('urn:fairgpu:problem:')}", document["detail"]


def test_each_request_is_answered_as_it_stands_in_the_document(rest: RestServer) -> None:
    reported(report(seq=2))(rest)
    found = {words: shown(ask(rest)) for words, ask in REQUESTS.items()}
    assert found == DOCUMENTED


@pytest.mark.parametrize("amount", [10**14, 2**53 + 1])
def test_amounts_that_doubles_lose_are_shown_exactly(rest: RestServer, amount: int) -> None:
    budget = {10**14: "huge", 2**53 + 1: "free"}[amount]
    spent = rest.as_person("admin", "GET", f"/v1/budgets/{budget}").document["spent"]
    assert spent["microGPUSeconds"] == str(amount)
