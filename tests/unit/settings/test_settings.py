from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from fairgpu.settings import Section, SettingsError, load_settings


class States(Section):
    stale_after_seconds: float = Field(default=300, gt=0)


class Service(Section):
    states: States = States()
    keep: tuple[str, ...] = ()
    listen_port: int = 8443
    redis_password: str = ""


class Settings(Section):
    service: Service = Service()


def test_without_a_file_or_environment_the_defaults_hold() -> None:
    assert load_settings(Settings, {}).service.states.stale_after_seconds == 300


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("service:\n  listen_port: 1\n  states:\n    stale_after_seconds: 5\ntimekeeper:\n  x: 1\n")
    settings = load_settings(Settings, {"FAIRGPU_SERVICE_LISTEN_PORT": "2"}, file)
    assert settings.service.listen_port == 2
    assert settings.service.states.stale_after_seconds == 5


def test_a_list_in_the_environment_is_written_as_in_yaml() -> None:
    assert load_settings(Settings, {"FAIRGPU_SERVICE_KEEP": "[a, b]"}).service.keep == ("a", "b")


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"FAIRGPU_SERVICE_STATES_STALE_AFTER_SECONDS": "-1"}, "service.states.stale_after_seconds"),
        ({"FAIRGPU_SERVICE_STATES_STALE_AFTER_SECONDS": "soon"}, "FAIRGPU_SERVICE_STATES_STALE_AFTER_SECONDS"),
        ({"FAIRGPU_SERVICE_STATES_STALE_AFTER_SECONDS": "nan"}, "finite"),
        ({"FAIRGPU_SERVICE_KEEP": "[2026-02-30]"}, "service.keep"),
        ({"FAIRGPU_SERVICE_KEEP": "[" * 500}, "service.keep"),
        ({"FAIRGPU_SERVICE_STALE_AFTER": "1"}, "there is no such setting"),
        ({"FAIRGPU_SERVICE_LISTEN_PRT": "1"}, "write FAIRGPU_SERVICE_LISTEN_PORT"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_its_key(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(Settings, environ)


@pytest.mark.parametrize("text", ["service: {unknown: 1}", "[1]", "service: [", "service: {listen_port: x}"])
def test_a_bad_file_stops_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        load_settings(Settings, {}, file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("service: {listen_prt: 1}", "service.listen_prt: there is no such setting; write service.listen_port"),
        ("service: {state: {}}", "service.state: there is no such setting; write service.states"),
        ("service: {stale_after_seconds: 5}", "; write service.states.stale_after_seconds"),
        ("service: {states: {zzz: 5}}", "service.states.zzz: there is no such setting; allowed there: stale_after_s"),
    ],
)
def test_a_key_that_is_unknown_in_a_file_is_answered_with_what_may_have_been_meant(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, {}, file)
    assert said in str(caught.value)


def test_a_secret_that_is_wrong_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, {"FAIRGPU_SERVICE_REDIS_PASSWORD": "[hunter2]"})
    assert "hunter2" not in str(caught.value)


def test_the_variables_that_the_kubelet_sets_for_services_are_no_settings() -> None:
    environ = {
        "FAIRGPU_SERVICE_SERVICE_HOST": "10.0.0.1",
        "FAIRGPU_SERVICE_PORT": "tcp://10.0.0.1:443",
        "FAIRGPU_SERVICE_PORT_443_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(Settings, environ) == Settings()
