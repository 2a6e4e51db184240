from __future__ import annotations

import csv
import io
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairgpu.commands import main
from tests.contract.timekeeper_rest.test_reading import assert_problem
from tests.support.ledger.harness import LedgerHarness
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer
from timekeeper.domain.money import SECOND
from timekeeper.domain.timestamps import DAY, format_instant, parse_instant

if TYPE_CHECKING:
    from collections.abc import Iterator

JANUARY_15 = "2026-01-15T00:00:00Z,2026-01-16T00:00:00Z"
TEAMS = ("team-a", "team-b", "team-c")


@pytest.fixture(scope="module")
def used() -> Iterator[RestServer]:
    """A timekeeper after an hour in which three teams held a GPU each, from noon on the 15th of January."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as store,
        tempfile.TemporaryDirectory(prefix="fairgpu-rest-") as folder,
        RedisServer(Path(store)) as server,
        RestServer(Path(folder), server.url) as rest,
    ):
        with server.client() as client:
            harness = LedgerHarness(Path(folder), client)
            for number, team in enumerate(TEAMS, start=1):
                harness.pod(f"p{number}", team, core=10 * number)
            harness.reconcile(0)
            harness.reconcile(1800)
            harness.reconcile(1800)
        yield rest


def usage(rest: RestServer, query: str, subject: str = "finance", path: str = "/v1/usage", **rest_of_it: Any) -> Any:
    return rest.as_person(subject, "GET", f"{path}?window={JANUARY_15}&{query}", **rest_of_it)


def test_use_is_shown_exactly_and_for_people(used: RestServer) -> None:
    document = usage(used, "aggregate=namespace,model&step=1d").document
    assert document["window"] == {"start": "2026-01-15T00:00:00Z", "end": "2026-01-16T00:00:00Z"}
    assert (document["step"], document["aggregate"], document["currency"]) == ("1d", ["namespace", "model"], None)
    assert document["next"] is None
    assert [item["key"] for item in document["items"]] == [{"namespace": team, "model": "A100"} for team in TEAMS]
    assert document["items"][0] == {
        "start": "2026-01-15T00:00:00Z",
        "end": "2026-01-16T00:00:00Z",
        "key": {"namespace": "team-a", "model": "A100"},
        "billed": {"microGPUSeconds": "360000000", "gpuHours": 0.1},
        "core": {"microGPUSeconds": "360000000", "gpuHours": 0.1},
        "memory": {"microGPUSeconds": "43200", "gpuHours": 43200 / 3.6e9},
        "used": None,
        "cost": None,
    }


def test_pages_hold_what_one_answer_holds(used: RestServer) -> None:
    whole = usage(used, "step=1h").document["items"]
    assert len(whole) == 3
    items, query = [], "step=1h&limit=1"
    for _ in range(9):
        answer = usage(used, query)
        items += answer.document["items"]
        if answer.document["next"] is None:
            break
        assert answer.headers["link"].endswith('rel="next"')
        query = f"step=1h&limit=1&cursor={answer.document['next']}"
    assert items == whole


def test_csv_holds_the_same_figures(used: RestServer) -> None:
    for answer in (usage(used, "format=csv"), usage(used, "", headers={"Accept": "text/csv"})):
        assert answer.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(answer.body.decode())))
        assert [row["namespace"] for row in rows] == list(TEAMS)
        assert rows[1]["billed_gpu_hours"] == "0.200000"
        assert rows[1]["billed_micro_gpu_seconds"] == "720000000"
        assert (rows[1]["used_gpu_hours"], rows[1]["cost"]) == ("", "")


def test_an_answer_that_is_still_true_is_not_sent_again(used: RestServer) -> None:
    tag = usage(used, "").headers["etag"]
    again = usage(used, "", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
    assert usage(used, "aggregate=model", headers={"If-None-Match": tag}).status == 200


def test_a_team_reads_its_own_use_and_no_other(used: RestServer) -> None:
    own = usage(used, "", "alice", "/v1/namespaces/team-a/usage").document["items"]
    assert [item["key"] for item in own] == [{"namespace": "team-a"}]
    assert_problem(usage(used, "", "alice", "/v1/namespaces/team-b/usage"), 403)
    assert_problem(usage(used, "", "alice"), 403)
    assert_problem(used.ask("GET", "/v1/usage?window=today"), 401)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("window=", "window"),
        ("", "window"),
        ("window=7days", "window"),
        ("window=7d&step=30m", "step"),
        ("window=50000d&step=1h", "step"),
        ("window=2000d&step=1h", "step"),
        ("window=7d&aggregate=team", "aggregate"),
        ("window=7d&aggregate=namespace,namespace", "aggregate"),
        ("window=7d&aggregate=label:unheard-of", "aggregate"),
        ("window=7d&limit=0", "limit"),
        ("window=7d&limit=10001", "limit"),
        ("window=7d&cursor=%21", "cursor"),
        ("window=7d&cursor=WzFd", "cursor"),
        ("window=7d&cursor=Wy01LCJhIl0", "cursor"),  # [-5,"a"]
        ("window=7d&cursor=WzAsMSwtNSwiYSJd", "cursor"),  # [0,1,-5,"a"]
        ("window=7d&cursor=WzEsMSwwLCJhIl0", "cursor"),  # [1,1,0,"a"]
        ("window=7d&cursor=WzAsOTk5OTk5OTksMCwiYSJd", "cursor"),  # [0,99999999,0,"a"]
        ("window=7d&format=xml", "format"),
        ("window=7d&idle=maybe", "idle"),
        ("window=7d&idle=model", "idle"),
        ("window=7d&aggregat=model", "aggregat"),
    ],
)
def test_a_question_that_cannot_be_answered_is_shown_which_part_and_what_can(
    used: RestServer, query: str, field: str
) -> None:
    answer = used.as_person("finance", "GET", f"/v1/usage?{query}")
    assert_problem(answer, 422)
    assert json.loads(answer.body)["errors"][0]["field"] == field


def shown(
    rest: RestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Returns the exit status and the output of `fairgpu usage`."""
    monkeypatch.setenv("FAIRGPU_SERVER", rest.url)
    monkeypatch.setenv("FAIRGPU_CA_FILE", str(rest.ca_file))
    monkeypatch.setenv("FAIRGPU_TOKEN", rest.signer.person("finance"))
    monkeypatch.setenv("TZ", "UTC")
    status = main(["usage", "--window", JANUARY_15, *arguments])
    return status, capsys.readouterr().out


def test_the_command_prints_a_table(
    used: RestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = shown(used, monkeypatch, capsys, "--by", "namespace,model", "--step", "day")
    assert status == 0
    assert [line.split() for line in text.splitlines()] == [
        ["FROM", "(UTC)", "NAMESPACE", "MODEL", "BILLED", "CORE", "MEMORY", "USED", "USED", "%"],
        ["2026-01-15", "00:00", "team-a", "A100", "0.1", "0.1", "0.000012", "-", "-"],
        ["2026-01-15", "00:00", "team-b", "A100", "0.2", "0.2", "0.000012", "-", "-"],
        ["2026-01-15", "00:00", "team-c", "A100", "0.3", "0.3", "0.000012", "-", "-"],
        ["TOTAL", "0.6", "0.6", "0.000036", "-", "-"],
    ]


def test_the_command_prints_all_pages_as_json_and_as_csv(
    used: RestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairgpu.client.usage.PAGE", 2)
    status, text = shown(used, monkeypatch, capsys, "-o", "json")
    assert (status, len(json.loads(text)["items"])) == (0, 3)
    status, text = shown(used, monkeypatch, capsys, "-o", "csv")
    assert status == 0
    assert [row["namespace"] for row in csv.DictReader(io.StringIO(text))] == list(TEAMS)


EUROS = {"metering": {"currency": {"code": "EUR", "per_gpu_hour": 2.5}}}
HALF_AN_HOUR = 1800


@pytest.fixture(scope="module")
def metered_now() -> Iterator[tuple[RestServer, str]]:
    """A timekeeper after half an hour in which a team held a GPU, up to now; and the instant at which it began."""
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-redis-") as store,
        tempfile.TemporaryDirectory(prefix="fairgpu-rest-") as folder,
        RedisServer(Path(store)) as server,
        RestServer(Path(folder), server.url, settings=EUROS) as rest,
    ):
        with server.client() as client:
            harness = LedgerHarness(Path(folder), client)
            harness.now = began = time.time_ns() - HALF_AN_HOUR * SECOND
            harness.pod("p1", "team-a")
            harness.reconcile(0)
            harness.reconcile(HALF_AN_HOUR)
        yield rest, format_instant(began)


def test_a_forecast_stands_beside_the_figures_and_changes_none(metered_now: tuple[RestServer, str]) -> None:
    rest, began = metered_now
    start = parse_instant(began)
    asked = f"/v1/usage?window={format_instant(start - DAY)},{format_instant(start + 2 * DAY)}&aggregate=model"
    plain = rest.as_person("finance", "GET", asked).document
    shown = rest.as_person("finance", "GET", f"{asked}&forecast=today").document
    ((item,), (plain_item,)) = shown["items"], plain["items"]
    forecast = item.pop("forecast")

    assert item == plain_item
    assert "forecast" not in plain
    assert shown["forecast"]["lastDay"]["start"] == began
    for pace in ("lastHour", "lastDay"):
        billed = forecast[pace]["billed"]
        assert int(billed["microGPUSeconds"]) >= int(item["billed"]["microGPUSeconds"])
        assert forecast[pace]["cost"] == pytest.approx(billed["gpuHours"] * 2.5, abs=0.01)


def test_a_forecast_is_in_the_last_columns_of_csv(metered_now: tuple[RestServer, str]) -> None:
    rest, _ = metered_now
    plain, shown = (
        rest.as_person("finance", "GET", f"/v1/usage?window=7d&format=csv{more}").body.decode().splitlines()
        for more in ("", "&forecast=today")
    )
    added = shown[0].removeprefix(f"{plain[0]},").split(",")

    assert added[:3] == [f"expected_by_last_hour_{one}" for one in ("gpu_hours", "micro_gpu_seconds", "cost")]
    assert [name.replace("_day_", "_hour_") for name in added[3:]] == added[:3]
    figures = dict(zip(shown[0].split(","), shown[1].split(","), strict=True))
    assert int(figures["expected_by_last_day_micro_gpu_seconds"]) >= int(figures["billed_micro_gpu_seconds"])


def test_a_team_has_the_forecast_of_its_own(metered_now: tuple[RestServer, str]) -> None:
    rest, _ = metered_now
    answer = rest.as_person("alice", "GET", "/v1/namespaces/team-a/usage?window=month&forecast=month&aggregate=owner")
    assert [item["key"] for item in answer.document["items"]] == [{"owner": "Pod/p1"}]
    refused = rest.as_person("alice", "GET", "/v1/namespaces/team-a/usage?window=month&forecast=month&step=day")
    assert_problem(refused, 422)
    assert refused.document["errors"][0]["field"] == "forecast"


def test_the_command_shows_what_is_expected(
    metered_now: tuple[RestServer, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest, began = metered_now
    monkeypatch.setenv("FAIRGPU_SERVER", rest.url)
    monkeypatch.setenv("FAIRGPU_CA_FILE", str(rest.ca_file))
    monkeypatch.setenv("FAIRGPU_TOKEN", rest.signer.person("finance"))
    assert main(["usage", "--forecast", "--by", "owner"]) == 0
    heading, line, _, note = capsys.readouterr().out.splitlines()
    assert heading.split()[-5:] == ["%", "EUR", "EXPECTED", "EXPECTED", "EUR"]
    assert line.startswith("Pod/p1")
    assert note.endswith(f"at the pace of pods since {began[:16].replace('T', ' ')}.")
    assert main(["usage", "--forecast", "2100-01-01T00:00:00Z"]) != 0
    assert "needs a --window" in capsys.readouterr().err


def test_the_command_says_why_a_question_is_refused(
    used: RestServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(used, monkeypatch, capsys, "--by", "team", "-o", "csv")[0] != 0
    assert shown(used, monkeypatch, capsys, "--idle", "-n", "team-a")[0] != 0
