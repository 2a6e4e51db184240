"""Two servers of one pod cannot listen on one port: settings that say so stop the start, and name both settings."""

from __future__ import annotations

from typing import Any

import pytest

from fairgpu.listeners import Listens
from fairgpu.settings import Section, SettingsError, fields, load_settings
from nodeagent.settings import Settings as NodeagentSettings
from scheduler.settings import Settings as SchedulerSettings
from timekeeper.settings import Settings as TimekeeperSettings
from webhook.settings import Settings as WebhookSettings

MODELS = [WebhookSettings, TimekeeperSettings, SchedulerSettings, NodeagentSettings]

SERVE = "FAIRGPU_TIMEKEEPER_SERVE_PORT"
SERVE_METRICS = "FAIRGPU_TIMEKEEPER_SERVE_METRICS_PORT"
JOBS_METRICS = "FAIRGPU_TIMEKEEPER_JOBS_METRICS_PORT"


def refused(model: type[Section], environ: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(model, environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "environ", "said"),
    [
        (
            WebhookSettings,
            {"FAIRGPU_WEBHOOK_SERVING_METRICS_PORT": "8443"},
            (
                "webhook.serving.port (FAIRGPU_WEBHOOK_SERVING_PORT), webhook.serving.metrics_port "
                "(FAIRGPU_WEBHOOK_SERVING_METRICS_PORT): given 8443 for both; allowed: a port of its own for each, "
                "since two servers cannot listen on one; write another for one of them, such as 9090 for "
                "webhook.serving.metrics_port"
            ),
        ),
        (WebhookSettings, {"FAIRGPU_WEBHOOK_SERVING_PORT": "9090"}, "such as 8443 for webhook.serving.port"),
        (TimekeeperSettings, {SERVE_METRICS: "8443"}, "such as 9090 for timekeeper.serve.metrics_port"),
        (TimekeeperSettings, {JOBS_METRICS: "9090"}, "such as 9091 for timekeeper.jobs.metrics_port"),
        (TimekeeperSettings, {SERVE: "9091"}, "such as 8443 for timekeeper.serve.port"),
        (
            SchedulerSettings,
            {"FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": "8088"},
            "scheduler.extender.port (FAIRGPU_SCHEDULER_EXTENDER_PORT), scheduler.extender.metrics_port (FAIRGPU_",
        ),
    ],
)
def test_one_port_for_two_servers_is_refused_with_both_settings_and_what_to_write(
    model: type[Section], environ: dict[str, str], said: str
) -> None:
    assert said in refused(model, environ)


def test_each_of_three_servers_on_one_port_but_the_first_is_a_line() -> None:
    lines = refused(TimekeeperSettings, {SERVE: "9090", JOBS_METRICS: "9090"}).splitlines()
    assert ["timekeeper.serve.port (" in line for line in lines] == [True, True]
    assert [line.rpartition(" such as ")[2] for line in lines] == [
        "8443 for timekeeper.serve.port",
        "9091 for timekeeper.jobs.metrics_port",
    ]


def test_a_suggested_port_is_no_other_servers() -> None:
    said = refused(TimekeeperSettings, {SERVE: "9090", SERVE_METRICS: "9090", JOBS_METRICS: "8443"})
    assert said.endswith("such as 9091 for timekeeper.serve.metrics_port")


@pytest.mark.parametrize(
    ("host", "metrics_host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", ""),
        ("0.0.0.0", "127.0.0.1"),  # noqa: S104 - it is what an admin may write
        ("10.0.0.9", "::"),
    ],
)
def test_one_port_is_refused_at_one_address_and_where_one_of_two_is_every_address(host: str, metrics_host: str) -> None:
    assert "given 8088 for both" in refused(SchedulerSettings, at_one_port(host, metrics_host))


@pytest.mark.parametrize(("host", "metrics_host"), [("127.0.0.1", "10.0.0.9"), ("localhost", "extender.example")])
def test_one_port_is_allowed_at_two_addresses(host: str, metrics_host: str) -> None:
    settings = load_settings(SchedulerSettings, at_one_port(host, metrics_host))
    assert settings.scheduler.extender.metrics_port == settings.scheduler.extender.port


def at_one_port(host: str, metrics_host: str) -> dict[str, str]:
    return {
        "FAIRGPU_SCHEDULER_EXTENDER_HOST": host,
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_HOST": metrics_host,
        "FAIRGPU_SCHEDULER_EXTENDER_METRICS_PORT": "8088",
    }


def test_ports_that_the_kernel_chooses_are_never_one() -> None:
    settings = load_settings(TimekeeperSettings, {SERVE: "0", SERVE_METRICS: "0", JOBS_METRICS: "0"})
    assert settings.timekeeper.jobs.metrics_port == 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__module__)
def test_each_port_of_a_service_says_on_which_address_it_listens(model: type[Section]) -> None:
    ports = [path for path in fields(model) if path[-1] == "port" or path[-1].endswith("_port")]
    assert ports
    for path in ports:
        group: Any = model
        for key in path[:-1]:
            group = group.model_fields[key].annotation
        marks = [mark for mark in group.model_fields[path[-1]].metadata if isinstance(mark, Listens)]
        assert [mark.host in group.model_fields for mark in marks] == [True], ".".join(path)
