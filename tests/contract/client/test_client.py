from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import timekeeper.api
from fairgpu.client import commands, transport
from fairgpu.client.server import from_environment
from fairgpu.commands import CommandError, build_parser, main
from tests.support.servers.bad_server import Answering, http_answer, serving
from tests.support.servers.report_server import Answer, ReportServer, make_certificates, report_server
from timekeeper.api.problems import ProblemError, answer, invalid, not_found

HOUR = 3_600_000_000


def money(hours: float) -> dict[str, Any]:
    return {"microGPUSeconds": str(int(hours * HOUR)), "gpuHours": hours}


BUDGET = {
    "name": "research",
    "namespaces": ["team-a", "team-b"],
    "state": "grace",
    "enforcement": "enforce",
    "period": {"start": "2030-01-01T00:00:00Z", "end": "2030-02-01T00:00:00Z"},
    "granted": money(10),
    "available": money(110),
    "spent": money(121),
    "remaining": money(-11),
    "rate": {"microGPUSecondsPerSecond": "2850000", "gpus": 2.85},
    "exhaustedAt": "2030-01-20T08:00:00Z",
}
UNLIMITED = {**BUDGET, "name": "free", "state": "unlimited", "available": None, "remaining": None}
SESSION = {
    "uid": "0b1c",
    "namespace": "team-a",
    "pod": "train-0",
    "node": "n1",
    "budget": "research",
    "start": "2020-01-01T00:00:00Z",
    "end": "2020-01-01T03:12:00Z",
    "rate": {"microGPUSecondsPerSecond": "300000", "gpus": 0.3},
    "amount": money(0.96),
    "used": money(0.5),
    "reportedAt": None,
    "heldIdle": False,
    "chargedByRule": [],
}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReportServer]:
    with report_server(tmp_path / "tls") as running:
        monkeypatch.setenv("FAIRGPU_SERVER", running.url)
        monkeypatch.setenv("FAIRGPU_CA_FILE", str(tmp_path / "tls" / "ca.pem"))
        monkeypatch.setenv("FAIRGPU_TOKEN", "t0ken")
        monkeypatch.setenv("TZ", "UTC")
        yield running


@pytest.fixture
def run(server: ReportServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def invoke(*arguments: str, answer: Any = None, status: int = 200) -> tuple[int, str, str]:
        server.answer = Answer(status, json.dumps(answer).encode())
        exit_status = main(arguments)
        return exit_status, *capsys.readouterr()

    return invoke


def test_budgets_are_listed_a_line_each(run: Run, server: ReportServer) -> None:
    status, output, _ = run("budget", "list", answer={"budgets": [BUDGET, UNLIMITED]})
    heading, research, free = output.splitlines()
    assert status == 0
    assert heading.split() == "NAME STATE SPENT AVAILABLE SPENT % REMAINING GPUS NOW PERIOD ENDS".split()  # noqa: SIM905
    assert research.split()[:7] == ["research", "grace", "121.00", "110.00", "110%", "-11.00", "2.85"]
    assert free.split()[:7] == ["free", "unlimited", "121.00", "-", "-", "-", "2.85"]
    assert (server.received[0].path, server.received[0].token) == ("/v1/budgets", "t0ken")


def test_without_budgets_it_is_said_what_that_means(run: Run) -> None:
    assert run("budget", "list", answer={"budgets": []})[1].startswith("There are no budgets: every namespace")


def test_a_budget_is_described(run: Run, server: ReportServer) -> None:
    status, output, _ = run("budget", "get", "research", answer=BUDGET)
    assert status == 0
    assert "Namespaces:          team-a, team-b" in output
    assert "Spent:               121.00 GPU-hours 110%" in output
    assert server.received[0].path == "/v1/budgets/research"


def test_the_budget_of_a_namespace_is_found(run: Run, server: ReportServer) -> None:
    answer = {"namespace": "team-a", "budget": BUDGET, "state": "grace"}
    assert "Name:                research" in run("budget", "get", "-n", "team-a", answer=answer)[1]
    assert server.received[0].path == "/v1/namespaces/team-a/budget"


def test_a_namespace_without_a_budget_is_unlimited(run: Run) -> None:
    answer = {"namespace": "team-c", "budget": None, "state": "unlimited"}
    assert "metered and unlimited" in run("budget", "get", "-n", "team-c", answer=answer)[1]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("budget", "list"), {"budgets": [BUDGET]}),
        (("budget", "get", "research"), BUDGET),
        (("sessions",), {"sessions": [SESSION], "cursor": None}),
    ],
)
def test_json_is_the_answer_itself(run: Run, arguments: tuple[str, ...], answer: dict[str, Any]) -> None:
    status, output, _ = run(*arguments, "-o", "json", answer=answer)
    assert status == 0
    assert json.loads(output).items() <= answer.items()


def test_sessions_are_listed_with_what_they_hold(run: Run, server: ReportServer) -> None:
    _, output, _ = run("sessions", "-n", "team-a", answer={"sessions": [SESSION], "cursor": None})
    row = output.splitlines()[1].split()
    assert row == ["team-a", "train-0", "n1", "research", "0.30", "3h12m", "0.96", "0.5", "-"]
    assert server.received[0].path == "/v1/sessions?namespace=team-a"


def test_a_namespace_that_holds_nothing_is_named(run: Run) -> None:
    answer: dict[str, Any] = {"sessions": [], "cursor": None}
    assert run("sessions", answer=answer)[1] == "No pod holds a GPU now.\n"
    assert run("sessions", "-n", "team-a", answer=answer)[1] == "No pod of the namespace team-a holds a GPU now.\n"


def test_a_budget_tells_its_busy_gpus_where_they_are_known(run: Run) -> None:
    use = {"busy": 1.254, "known": 2.5, "at": "2020-01-01T00:00:00Z", "source": "prometheus"}
    shown = run("budget", "get", "research", answer={**BUDGET, "presentUse": use})[1]
    assert "  busy now:          1.25 of 2.50 GPUs whose use is known, without prices, by Prometheus, " in shown
    assert "busy now" not in run("budget", "get", "research", answer={**BUDGET, "presentUse": None})[1]


def test_present_use_has_a_column_where_a_source_is_configured_and_no_figure_is_no_0(run: Run) -> None:
    busy = {**SESSION, "presentUse": {"percent": 0.4, "at": "2020-01-01T03:11:30Z", "source": "prometheus"}}
    listed = [busy, {**SESSION, "pod": "train-1", "presentUse": None}]
    answer = {"sessions": listed, "cursor": None, "presentUseFrom": "prometheus"}
    head, first, second, _, note = run("sessions", answer=answer)[1].splitlines()
    assert head.endswith("BUSY NOW   AS OF")
    assert first.split()[9] == "0%"
    assert second.split()[-2:] == ["-", "-"]
    assert note == "BUSY NOW is by Prometheus, advisory, and no part of any bill."
    assert "BUSY" not in run("sessions", answer={**answer, "presentUseFrom": None})[1]
    assert json.loads(run("sessions", "-o", "json", answer=answer)[1])["presentUseFrom"] == "prometheus"


GRANTED = {"name": "rest-1", "budget": "research", "gpuHours": "2.5", "reason": "deadline", "requestedBy": "ada"}


def test_a_grant_is_ordered_under_a_key_of_its_own(run: Run, server: ReportServer) -> None:
    grant = ("grant", "research", "2.5", "--reason", "deadline")
    said = run(*grant, answer=GRANTED, status=201)[1]
    assert said == "granted 2.5 GPU-hours to budget research (grant rest-1)\n"
    run(*grant, answer=GRANTED, status=201)
    first, second = server.received
    assert (first.path, first.body) == ("/v1/grants", {"budget": "research", "gpuHours": "2.5", "reason": "deadline"})
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]


def test_a_grant_with_a_name_can_be_repeated(run: Run, server: ReportServer) -> None:
    said = run("grant", "research", "2.5", "--reason", "deadline", "--name", "deadline-1", answer=GRANTED)[1]
    assert said == "nothing to do: 2.5 GPU-hours to budget research (grant rest-1) was made before\n"
    assert server.received[0].body["name"] == "deadline-1"
    assert "Idempotency-Key" not in server.received[0].headers


def test_a_grant_may_take_away_and_may_say_when_it_expires(run: Run, server: ReportServer) -> None:
    run("grant", "research", "-2.5", "--reason", "moved", answer=GRANTED, status=201)
    expires = "2026-12-31T12:00:00Z"
    answer = {**GRANTED, "expires": expires}
    said = run("grant", "research", "2.5", "--reason", "moved", "--expires", expires, answer=answer, status=201)[1]
    assert said.startswith("granted 2.5 GPU-hours to budget research until 2026-12-31 ")
    assert [received.body.get("expires") for received in server.received] == [None, expires]
    assert server.received[0].body["gpuHours"] == "-2.5"


def test_a_correction_names_its_period_and_may_name_a_namespace(run: Run, server: ReportServer) -> None:
    answer = {
        "name": "rest-2",
        "budget": "research",
        "gpuHours": "-2.5",
        "effectivePeriod": "2026-01-15T00:00:00Z",
        "namespace": "team-a",
        "reason": "a failed node",
        "requestedBy": "ada",
    }
    command = ("correct", "research", "-2.5", "--period", "2026-01-15", "--reason", "a failed node", "-n", "team-a")
    said = run(*command, answer=answer, status=201)[1]
    assert said == (
        "corrected by -2.5 GPU-hours of budget research in the period that holds 2026-01-15T00:00:00Z"
        " (correction rest-2)\n"
    )
    (received,) = server.received
    assert received.path == "/v1/corrections"
    assert received.body == {
        "budget": "research",
        "gpuHours": "-2.5",
        "effectivePeriod": "2026-01-15T00:00:00Z",
        "reason": "a failed node",
        "namespace": "team-a",
    }
    assert received.headers["Idempotency-Key"]


def test_a_problem_is_shown_in_its_own_words_and_the_status_is_1(run: Run) -> None:
    problem = {"type": "urn:x", "title": "Forbidden", "status": 403, "detail": "'ada' may not create gpugrants"}
    status, output, error = run("grant", "research", "1", "--reason", "x", answer=problem, status=403)
    assert (status, output) == (1, "")
    assert error == "fairgpu: Forbidden (403): 'ada' may not create gpugrants\n"


@pytest.mark.parametrize("command", ["budget list", "budget get research", "sessions", "usage", "usage -o csv"])
def test_a_person_who_may_not_read_all_namespaces_is_shown_how_to_ask_about_one(run: Run, command: str) -> None:
    problem = {"type": "urn:x", "title": "Forbidden", "status": 403, "detail": "'ada' may not list gpubudgets"}
    status, _, error = run(*command.split(), answer=problem, status=403)
    assert status == 1
    first, second = error.splitlines()
    assert first.endswith("'ada' may not list gpubudgets")
    assert second.endswith("take -n NAMESPACE")


@pytest.mark.parametrize("command", ["budget get -n team-a", "sessions -n team-a", "usage -n team-a"])
def test_a_person_who_asks_about_one_namespace_already_is_shown_the_refusal_alone(run: Run, command: str) -> None:
    problem = {"type": "urn:x", "title": "Forbidden", "status": 403, "detail": "'ada' may not get gpubudgets"}
    assert len(run(*command.split(), answer=problem, status=403)[2].splitlines()) == 1


def test_every_fault_of_a_request_has_its_line(run: Run) -> None:
    faults = [
        {"field": "gpuHours", "given": "-1", "allowed": "a number above 0"},
        {"field": "budget", "given": "''", "allowed": "a name"},
    ]
    problem = {"title": "Unprocessable", "status": 422, "detail": "both", "errors": faults}
    assert run("grant", "r", "1", "--reason", "x", answer=problem, status=422)[2].splitlines()[1:] == [
        "    GPU_HOURS: given -1; allowed: a number above 0",
        "    budget: given ''; allowed: a name",
    ]


def test_a_token_that_has_expired_is_answered_with_how_to_make_one(run: Run) -> None:
    error = run("budget", "list", answer={"title": "Unauthorized", "detail": "it has expired"}, status=401)[2]
    assert "kubectl create token" in error
    assert "t0ken" not in error


def test_an_answer_of_something_else_is_no_table(run: Run) -> None:
    status, _, error = run("budget", "list", answer=["no", "timekeeper"])
    assert status == 1
    assert "is FAIRGPU_SERVER the timekeeper?" in error


def test_another_ca_is_named_with_the_variable_to_set(
    run: Run, server: ReportServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path / "other")
    monkeypatch.setenv("FAIRGPU_CA_FILE", str(tmp_path / "other" / "ca.pem"))
    status, _, error = run("budget", "list")
    assert status == 1
    assert "export FAIRGPU_CA_FILE=" in error
    assert server.received == []


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("FAIRGPU_SERVER", "", "kubectl -n fairgpu-system port-forward"),
        ("FAIRGPU_SERVER", "http://localhost", "is 'http://localhost'; allowed: the timekeeper's https:// address"),
        ("FAIRGPU_SERVER", "https://127.0.0.1:1", "does not answer"),
        ("FAIRGPU_CA_FILE", "/nonexistent", "FAIRGPU_CA_FILE is '/nonexistent'"),
    ],
)
def test_a_wrong_variable_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    status, _, error = run("budget", "list")
    assert status == 1
    assert says in error


def cut_off(body: bytes, more: int) -> Answering:
    """Answers with a body that is announced as so many bytes longer than what comes before the connection ends."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\nContent-Length: {len(body) + more}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def gone(connection: socket.socket) -> None:
    """Takes a request and ends the connection without an answer."""


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def invoke(*arguments: str, answer: Answering) -> tuple[int, str, str]:
        make_certificates(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        monkeypatch.setenv("FAIRGPU_CA_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("FAIRGPU_TOKEN", "t0ken")
        with serving(answer, context) as server:
            monkeypatch.setenv("FAIRGPU_SERVER", server.url)
            return main(arguments), *capsys.readouterr()

    return invoke


@pytest.mark.parametrize("body", [b"", b"start,end\r\n", b"start,end\r\n2026-01-01T00:00:00Z,2026-0"])
def test_an_answer_that_is_cut_off_is_no_file(ask: Run, body: bytes) -> None:
    status, output, error = ask("usage", "-o", "csv", answer=cut_off(body, 9))
    assert (status, output) == (1, "")
    assert f"was cut off after {len(body)} of {len(body) + 9} bytes: run the command again" in error


def test_an_answer_that_is_too_long_is_no_file(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1 << 20)
    status, output, error = ask("usage", "-o", "csv", answer=http_answer("200 OK", b"x" * (1 << 20) + b"x"))
    assert (status, output) == (1, "")
    assert "has more than 1 MiB: ask for less" in error


@pytest.mark.parametrize(
    "answer", [gone, cut_off(b"{", 9), http_answer("503 Service Unavailable", b"{}")], ids=["gone", "cut off", "503"]
)
def test_an_order_that_may_have_been_made_is_not_said_to_have_failed(ask: Run, answer: Answering) -> None:
    status, _, error = ask("grant", "research", "2.5", "--reason", "r", answer=answer)
    assert status == 1
    assert error.endswith(
        "Whether the order was made is not known: kubectl get gpugrants shows it. Do not just repeat the command: "
        "without --name it orders once more.\n"
    )
    correction = ("correct", "research", "2.5", "--period", "2026-01-15", "--reason", "r", "--name", "node-7")
    status, _, error = ask(*correction, answer=answer)
    assert status == 1
    assert error.endswith(
        "Whether the order was made is not known: run the command again, which with --name orders nothing twice.\n"
    )


def test_an_order_that_never_left_is_not_said_to_be_made_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRGPU_SERVER", "https://127.0.0.1:1")
    monkeypatch.setenv("FAIRGPU_TOKEN", "t0ken")
    with pytest.raises(CommandError, match="does not answer") as raised:
        transport.post(from_environment(os.environ), "/v1/grants", {}, {})
    assert not isinstance(raised.value, transport.UnknownOutcomeError)


def kubeconfig(user: dict[str, str]) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "me", "user": user}],
        }
    )


def test_the_kubeconfigs_token_is_used_where_none_is_given(
    run: Run, server: ReportServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(kubeconfig({"token": "from-kubeconfig"}))
    monkeypatch.delenv("FAIRGPU_TOKEN")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert run("budget", "list", answer={"budgets": []})[0] == 0
    assert server.received[0].token == "from-kubeconfig"


@pytest.mark.parametrize("user", [{"username": "me", "password": "x"}, {}])
def test_without_any_token_it_is_said_how_to_make_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, str]
) -> None:
    (tmp_path / "config").write_text(kubeconfig(user))
    monkeypatch.delenv("FAIRGPU_TOKEN")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    status, _, error = run("budget", "list")
    assert status == 1
    assert "FAIRGPU_TOKEN=$(kubectl create token ACCOUNT -n NAMESPACE)" in error


def test_every_command_is_registered() -> None:
    assert build_parser().parse_args(["sessions"]).run is commands._sessions


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (invalid("aggregate", "foo", "a list"), '(422): --by: given "foo"; allowed: a list'),
        (invalid("effectivePeriod", "2026-13-01", "a time"), '(422): --period: given "2026-13-01"; allowed: a time'),
        (invalid("idle", "x", "true; model, too, if aggregate has it"), "allowed: true; model, too, if --by has it"),
        (invalid("namespace", "X", "a name"), '(422): namespace: given "X"; allowed: a name'),
        (
            not_found("there is no budget 'x'; GET /v1/budgets lists those that are"),
            "(404): there is no budget 'x'; `fairgpu budget list` shows those that are",
        ),
    ],
)
def test_a_refusal_names_what_was_typed_and_not_the_fields_of_the_rest_api(
    run: Run, problem: ProblemError, said: str
) -> None:
    status, _, error = run("usage", "--by", "foo", answer=json.loads(answer(problem).body), status=problem.status)
    assert status == 1
    assert said in error
    assert "GET /v1" not in error


def test_the_advice_that_the_command_words_anew_is_what_the_rest_api_says() -> None:
    said = "".join(file.read_text() for file in Path(timekeeper.api.__path__[0]).glob("*.py"))
    assert [question for question, _ in transport._ASKED if question not in said] == []


def test_each_of_several_faults_names_what_was_typed(run: Run) -> None:
    faults = [{"field": field, "given": "x", "allowed": "y"} for field in ("gpuHours", "expires")]
    answer = {"title": "Unprocessable Entity", "status": 422, "detail": "two", "errors": faults}
    error = run("grant", "research", "x", "--reason", "r", answer=answer, status=422)[2]
    assert "    GPU_HOURS: given x; allowed: y\n    --expires: given x; allowed: y" in error
