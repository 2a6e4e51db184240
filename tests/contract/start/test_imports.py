"""The modules that each process loads when it starts: no command or service waits for one that it does not use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STEPS = {
    "fairgpu --help": "fairgpu.commands; fairgpu.commands.build_parser()",
    "fairgpu admit": "webhook.dryrun.command",
    "fairgpu audit": "timekeeper.audit.command",
    "fairgpu timekeeper jobs": "timekeeper.controller.service",
    "fairgpu webhook serve": "webhook.service",
    "fairgpu timekeeper serve": "timekeeper.api.service",
}
"""The imports of each command. One process takes one after the other, so that shared modules are loaded once."""

LOADED = "sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"

OF_THE_WEB = {"a2wsgi", "flask", "gunicorn", "jinja2", "werkzeug"}
OF_SOME_SETTINGS_ALONE = {"kubernetes", "obstore", "requests", "uvloop"}
"""The client of an API server that standalone there is none of, and of a bucket that few export to."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The packages that are not Python's own, once each command has been imported after those before it."""
    script = ["import json, sys"]
    script += [f"import {step}; print(json.dumps({LOADED}))" for step in STEPS.values()]
    shown = subprocess.run([sys.executable, "-c", "\n".join(script)], check=True, capture_output=True, text=True)
    return dict(zip(STEPS, (set(json.loads(line)) for line in shown.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("fairgpu --help", {"cryptography", "pydantic", "redis", "structlog", "urllib3", "yaml"} | OF_THE_WEB),
        ("fairgpu admit", {"cryptography", "prometheus_client", "redis", "structlog"} | OF_THE_WEB),
        ("fairgpu audit", {"apscheduler", "prometheus_client"} | OF_THE_WEB),
        ("fairgpu timekeeper jobs", {"jwt"} | OF_THE_WEB),
        ("fairgpu webhook serve", {"jwt"}),
        ("fairgpu timekeeper serve", set()),
    ],
    ids=STEPS,
)
def test_a_command_loads_nothing_that_it_does_not_use(
    loaded: dict[str, set[str]], command: str, unneeded: set[str]
) -> None:
    assert loaded[command] & (unneeded | OF_SOME_SETTINGS_ALONE) == set()
