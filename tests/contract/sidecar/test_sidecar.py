from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.archive import build
from tests.contract.sidecar.conftest import TOKEN, RunningSidecar
from tests.support.ports import free_port
from tests.support.servers.report_server import Answer, Received, ReportServer, make_certificates, report_server
from tests.support.usage_writer import Device, usage_record, write_usage
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.patient

Start = Callable[..., RunningSidecar]
UUID = "GPU-8f6d2c1e-0a53-4c27-9a3d-5d4f7b1e2c90"


def busy(report: Received, container: str = "main") -> int:
    containers = [item for item in report.body["containers"] if item["name"] == container]
    return sum(device["busyNs"] for item in containers for device in item["devices"])


def test_a_containers_use_is_reported_and_numbered(start: Start, server: ReportServer, tmp_path: Path) -> None:
    write_usage(tmp_path / "run" / "main" / "usage", usage_record(Device(UUID, busy_ns=5, launches=2)))
    start()
    first, second = server.wait_for(lambda reports: len(reports) >= 2)[:2]
    assert (first.path, first.token) == ("/v1/reports", TOKEN)
    assert first.body["v"] == 1
    assert [first.body["seq"], second.body["seq"]] == [1, 2]
    assert first.body["boot"] == second.body["boot"]
    (container,) = first.body["containers"]
    assert container["name"] == "main"
    (device,) = container["devices"]
    assert (device["uuid"], device["busyNs"], device["launches"]) == (UUID, 5, 2)


def test_totals_go_on_over_a_restart_of_the_container(start: Start, server: ReportServer, tmp_path: Path) -> None:
    file = tmp_path / "run" / "main" / "usage"
    write_usage(file, usage_record(Device(UUID, busy_ns=5), epoch_ns=1))
    start()
    server.wait_for(lambda reports: any(busy(report) == 5 for report in reports))
    write_usage(file, usage_record(Device(UUID, busy_ns=3), epoch_ns=2))
    server.wait_for(lambda reports: busy(reports[-1]) == 8 if reports else False)


def test_each_start_of_the_sidecar_has_its_own_boot(start_patient: Start, server: ReportServer) -> None:
    for _ in range(2):
        sidecar = start_patient()
        sidecar.wait_for_event("started")
        assert sidecar.stop() == 0
    boots = {report.body["boot"] for report in server.wait_for(lambda reports: len(reports) >= 2)}
    assert len(boots) == 2


def test_asked_to_stop_while_it_starts_it_ends(archive: Path, tmp_path: Path) -> None:
    """It is its container's first process, to which the kernel passes nothing that has no handler."""
    asked = tmp_path / "asked.pyz"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(asked, "w") as changed:
        for name in source.namelist():
            text = source.read(name).decode()
            if name == "sidecar/__main__.py":
                text = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n" + text.replace("from __future", "#")
            changed.writestr(name, text)
    done = subprocess.run([sys.executable, "-I", "-S", asked], capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_asked_to_stop_it_reports_the_final_figures_and_ends(
    start_patient: Start, server: ReportServer, tmp_path: Path
) -> None:
    server.answer = Answer(body=b'{"interval_s": 300}')
    sidecar = start_patient()
    server.wait_for(lambda reports: len(reports) == 1)
    write_usage(tmp_path / "run" / "main" / "usage", usage_record(Device(UUID, busy_ns=9)))
    assert sidecar.stop() == 0
    assert busy(server.received[-1]) == 9
    assert sidecar.wait_for_event("stopped")["last_report"] == "taken"


def test_only_the_report_with_which_it_ends_says_that_it_is_the_last(
    start_patient: Start, server: ReportServer
) -> None:
    sidecar = start_patient()
    server.wait_for(lambda reports: len(reports) >= 2)
    assert sidecar.stop() == 0
    (last,) = (report for report in server.received if "last" in report.body)
    assert last.body["last"] is True
    assert last.body["seq"] == max(report.body["seq"] for report in server.received)


def test_shown_that_it_is_too_early_it_counts_on_and_comes_back_without_backing_off(
    start: Start, server: ReportServer, tmp_path: Path
) -> None:
    file = tmp_path / "run" / "main" / "usage"
    write_usage(file, usage_record(Device(UUID, busy_ns=5), epoch_ns=1))
    server.answer = Answer(429, b"{}", (("Retry-After", "1"),))
    sidecar = start()
    server.wait_for(lambda reports: len(reports) >= 4)
    write_usage(file, usage_record(Device(UUID, busy_ns=4), epoch_ns=2))
    server.wait_for(lambda reports: busy(reports[-1]) == 9)
    assert sidecar.stop() == 0
    assert not [event for event in sidecar.log if event["event"] == "report_not_taken"]


def test_asked_to_stop_it_does_not_wait_for_a_stuck_timekeeper(start: Start, server: ReportServer) -> None:
    server.answer = Answer(delay_seconds=3 * LIMIT_S)
    sidecar = start()
    server.wait_for(lambda reports: len(reports) == 1)
    assert sidecar.stop() == 0
    assert sidecar.wait_for_event("stopped")["last_report"] == "not taken"


def test_the_token_is_read_again_for_each_report(start: Start, server: ReportServer, tmp_path: Path) -> None:
    start()
    server.wait_for(lambda reports: len(reports) == 1)
    (tmp_path / "token").write_text("renewed")
    server.wait_for(lambda reports: reports[-1].token == "renewed")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(503, b"", (("Retry-After", "1"),)),
        Answer(401, b'{"title": "Unauthorized", "detail": "the token has expired"}'),
        Answer(302, b"", (("Location", "https://example.invalid/"),)),
        Answer(500, b"[" * 100_000),
    ],
    ids=["503", "401", "302", "nonsense"],
)
def test_a_refusal_is_logged_and_reporting_goes_on(start: Start, server: ReportServer, answer: Answer) -> None:
    server.answer = answer
    sidecar = start()
    assert sidecar.wait_for_event("report_not_taken")["status"] == answer.status
    server.answer = Answer()
    sidecar.wait_for_event("timekeeper_back")
    assert sidecar.stop() == 0


def test_a_timekeeper_that_is_away_is_met_with_patience(start: Start, tmp_path: Path, server: ReportServer) -> None:
    port = free_port()
    with report_server(tmp_path / "away", port) as gone:
        url = gone.url
    write_usage(tmp_path / "run" / "main" / "usage", usage_record(Device(UUID, busy_ns=4)))
    sidecar = start(FAIRGPU_TIMEKEEPER_URL=url, FAIRGPU_TIMEKEEPER_CA=gone.ca_pem)
    refusal = sidecar.wait_for_event("report_not_taken")
    assert refusal["status"] is None
    assert 1 <= refusal["retry_seconds"] <= 2
    with report_server(tmp_path / "away", port) as back:
        back.wait_for(lambda reports: any(busy(report) == 4 for report in reports))
        assert sidecar.stop() == 0
    assert server.received == []


def test_a_timekeeper_under_another_ca_gets_no_token(start: Start, server: ReportServer, tmp_path: Path) -> None:
    sidecar = start(FAIRGPU_TIMEKEEPER_CA=make_certificates(tmp_path / "other"))
    assert "CERTIFICATE_VERIFY_FAILED" in sidecar.wait_for_event("report_not_taken")["reason"]
    assert server.received == []


def test_a_name_that_cannot_be_looked_up_is_no_end(start: Start) -> None:
    sidecar = start(FAIRGPU_TIMEKEEPER_URL=f"https://{'a' * 70}.example")
    assert "UnicodeError" in sidecar.wait_for_event("report_not_taken")["reason"]
    assert sidecar.stop() == 0


def test_without_its_token_it_waits_for_one(start: Start, server: ReportServer, tmp_path: Path) -> None:
    (tmp_path / "token").rename(tmp_path / "away")
    sidecar = start()
    assert sidecar.wait_for_event("report_not_taken")["reason"].startswith("token: FileNotFoundError")
    (tmp_path / "away").rename(tmp_path / "token")
    server.wait_for(lambda reports: len(reports) >= 1)


def test_a_hostile_container_silences_only_itself(start: Start, server: ReportServer, tmp_path: Path) -> None:
    write_usage(tmp_path / "run" / "main" / "usage", usage_record(Device(UUID, busy_ns=5)))
    (tmp_path / "run" / "hostile").mkdir()
    (tmp_path / "run" / "hostile" / "usage").symlink_to("/dev/zero")
    sidecar = start()
    reports = server.wait_for(lambda reports: any(busy(report) == 5 for report in reports))
    assert busy(reports[-1], "hostile") == 0
    assert sidecar.wait_for_event("usage_unreadable")["container"] == "hostile"


def test_no_log_line_holds_the_token(start: Start, server: ReportServer) -> None:
    server.answer = Answer(401, json.dumps({"title": "Unauthorized"}).encode())
    sidecar = start()
    sidecar.wait_for_event("report_not_taken")
    assert sidecar.stop() == 0
    assert TOKEN not in json.dumps(sidecar.log)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FAIRGPU_TIMEKEEPER_URL", "http://plain"),
        ("FAIRGPU_TIMEKEEPER_CA", "-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n"),
    ],
)
def test_a_wrong_environment_stops_the_start_with_its_name(start: Start, variable: str, value: str) -> None:
    sidecar = start(**{variable: value})
    assert variable in sidecar.wait_for_event("settings_refused")["reason"]
    assert sidecar.ended() == 2


def test_the_same_sources_give_the_same_archive(archive: Path, tmp_path: Path) -> None:
    build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == archive.read_bytes()
