"""What the manifests tell the services is what the services understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairgpu.settings import Section, environment_name, fields, load_settings
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


@pytest.mark.parametrize("model", [WebhookSettings, TimekeeperSettings], ids=["webhook", "timekeeper"])
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
