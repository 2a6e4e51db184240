from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "deploy" / "monitoring" / "rules.yaml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
TESTS = Path(__file__).with_name("alerts.yaml")
DOCUMENT = (ROOT / "docs" / "alerts.md").read_text()


def promtool(*arguments: str, folder: Path) -> str:
    """Runs promtool, which tools/promtool.sh puts beside the interpreter where there is none on the path."""
    program = shutil.which("promtool") or str(Path(sys.executable).with_name("promtool"))
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES["spec"]))
    shutil.copy(TESTS, tmp_path)
    return tmp_path


def test_prometheus_takes_every_rule(folder: Path) -> None:
    count = sum(len(group["rules"]) for group in RULES["spec"]["groups"])
    assert f"SUCCESS: {count} rules found" in promtool("check", "rules", "rules.yaml", folder=folder)


def test_alerts_are_raised_when_they_should_be_and_at_no_other_time(folder: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS.name, folder=folder)


def test_prometheus_takes_the_documented_configuration_which_scrapes_all_that_monitors_do_under_their_labels(
    folder: Path,
) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    (text,) = re.findall(r"^  ```yaml\n(  scrape_configs:.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    (job,) = yaml.safe_load(text)["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [
        {"role": "pod", "namespaces": {"names": ["fairgpu-system", "fairgpu-nodes"]}}
    ]  # which this promtool is built without
    (folder / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml", folder=folder)
    ports, *labels = job["relabel_configs"]
    assert {label["target_label"] for label in labels} == {"namespace", "pod"}
    monitors = list(yaml.safe_load_all((ROOT / "deploy" / "monitoring" / "pod-monitors.yaml").read_text()))
    scraped = {endpoint["port"] for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert set(ports["regex"].split("|")) == scraped


def test_every_alert_is_tested() -> None:
    tested = TESTS.read_text()
    assert [rule["alert"] for rule in ALERTS if rule["alert"] not in tested] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_is_how_bad_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_the_runbook_has_a_section_of_each_alert_and_of_no_other() -> None:
    sections = re.findall(r"^## (FairGPU\w+)$", DOCUMENT, re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]


def test_the_runbook_says_how_bad_each_alert_is() -> None:
    stated = re.findall(r"^## (FairGPU\w+)\n\n\*\*Severity\.\*\* `(\w+)`\.$", DOCUMENT, re.MULTILINE)
    assert stated == [(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS]


@pytest.mark.parametrize(
    "section", re.split(r"^## FairGPU", DOCUMENT, flags=re.MULTILINE)[1:], ids=lambda text: text.split()[0]
)
def test_each_section_says_what_it_means_and_what_to_do(section: str) -> None:
    assert "**What it means.**" in section
    assert "**What to do.**" in section
