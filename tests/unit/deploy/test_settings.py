"""The services understand the settings that the manifests give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.commands import build_parser
from fairgpu.settings import Section, environment_name, fields, load_settings
from scheduler.settings import Settings as SchedulerSettings
from timekeeper.settings import Settings as TimekeeperSettings
from webhook.settings import Settings as WebhookSettings

BASE = Path(__file__).parents[3] / "deploy" / "base"


def containers(part: str) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((BASE / part / "deployment.yaml").read_text())
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    found: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize(
    ("part", "model"), [("webhook", WebhookSettings), ("timekeeper", TimekeeperSettings)], ids=["webhook", "timekeeper"]
)
def test_every_variable_of_a_container_is_a_setting(part: str, model: type[Section]) -> None:
    known = {environment_name(path) for path in fields(model)}
    for container in containers(part):
        given = {variable["name"] for variable in container["env"] if variable["name"].startswith("FAIRGPU_")}
        assert given
        assert given <= known


SERVICES = pytest.mark.parametrize(
    "model", [WebhookSettings, TimekeeperSettings, SchedulerSettings], ids=["webhook", "timekeeper", "scheduler"]
)


@SERVICES
def test_the_settings_file_is_read(model: type[Section]) -> None:
    load_settings(model, {}, BASE / "settings.yaml")


def test_the_ports_are_those_that_the_services_open() -> None:
    webhook, timekeeper = WebhookSettings().webhook.serving, TimekeeperSettings().timekeeper.serve
    wanted = {"webhook": (webhook.port, webhook.metrics_port), "timekeeper": (timekeeper.port, timekeeper.metrics_port)}
    for part, ports in wanted.items():
        opened = {port["name"]: port["containerPort"] for port in containers(part)[0]["ports"]}
        assert (opened["https"], opened["metrics"]) == ports


def test_the_image_of_the_sidecar_is_the_webhooks_own_default() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    (image,) = [g for g in kustomization["configMapGenerator"] if g["name"] == "fairgpu-sidecar-image"]
    repository, tag = (literal.partition("=")[2] for literal in image["literals"])
    assert f"{repository}:{tag}" == WebhookSettings().webhook.sidecar.image


def test_the_jobs_are_probed_where_they_listen_and_lead_by_the_lease_that_they_may_write() -> None:
    jobs = TimekeeperSettings().timekeeper.jobs
    (container,) = [container for container in containers("timekeeper") if container["name"] == "jobs"]
    assert container["ports"] == [{"name": "jobs-metrics", "containerPort": jobs.metrics_port}]
    rules = yaml.safe_load_all((BASE / "access" / "timekeeper.yaml").read_text())
    named = [
        rule.get("resourceNames") for role in rules for rule in role.get("rules", []) if "leases" in rule["resources"]
    ]
    assert [jobs.lease_name] in named


@pytest.mark.parametrize(("part", "command"), [("webhook", ["serve"]), ("timekeeper", ["serve", "jobs"])])
def test_the_containers_run_commands_that_there_are(part: str, command: list[str]) -> None:
    given = [container["args"] for container in containers(part)]
    assert given == [[part, action] for action in command]
    for arguments in given:
        assert build_parser().parse_args(arguments).run


@SERVICES
def test_the_examples_in_the_settings_file_can_be_used_as_they_stand(model: type[Section], tmp_path: Path) -> None:
    _, _, examples = (BASE / "settings.yaml").read_text().partition("\n\n")
    file = tmp_path / "settings.yaml"
    file.write_text("\n".join(line.removeprefix("#") for line in examples.splitlines()))
    assert set(yaml.safe_load(file.read_text())) == {"webhook", "scheduler", "timekeeper"}
    load_settings(model, {}, file)
