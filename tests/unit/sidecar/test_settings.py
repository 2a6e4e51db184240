from __future__ import annotations

import pytest

from sidecar.settings import SettingsError, from_environment

PEM = "-----BEGIN CERTIFICATE-----\n"
ENVIRONMENT = {"FAIRGPU_TIMEKEEPER_URL": "https://timekeeper.example/base/", "FAIRGPU_TIMEKEEPER_CA": PEM}


def test_an_address_and_a_ca_are_enough() -> None:
    settings = from_environment(ENVIRONMENT)
    assert (settings.host, settings.port, settings.base_path) == ("timekeeper.example", 443, "/base")
    assert (settings.token_file, settings.usage_folder) == ("/var/run/secrets/fairgpu/token", "/run/fairgpu")
    assert settings.interval_seconds == 60


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("FAIRGPU_TIMEKEEPER_URL", "", "FAIRGPU_TIMEKEEPER_URL must be like https://"),
        ("FAIRGPU_TIMEKEEPER_URL", "http://timekeeper", "it is 'http://timekeeper'"),
        ("FAIRGPU_TIMEKEEPER_URL", "https://", "FAIRGPU_TIMEKEEPER_URL"),
        ("FAIRGPU_TIMEKEEPER_URL", "https://host:port", "FAIRGPU_TIMEKEEPER_URL"),
        ("FAIRGPU_TIMEKEEPER_URL", "https://user@host", "FAIRGPU_TIMEKEEPER_URL"),
        ("FAIRGPU_TIMEKEEPER_CA", "", "FAIRGPU_TIMEKEEPER_CA holds no certificate"),
        ("FAIRGPU_TIMEKEEPER_CA", f"# équipe\n{PEM}", "FAIRGPU_TIMEKEEPER_CA holds a character that is not ASCII"),
        ("FAIRGPU_REPORT_INTERVAL_SECONDS", "soon", "must be 1 to 300, it is 'soon'"),
        ("FAIRGPU_REPORT_INTERVAL_SECONDS", "0", "must be 1 to 300, it is '0'"),
        ("FAIRGPU_REPORT_INTERVAL_SECONDS", "nan", "must be 1 to 300, it is 'nan'"),
    ],
)
def test_a_wrong_variable_is_named_with_what_was_given(variable: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        from_environment({**ENVIRONMENT, variable: value})
