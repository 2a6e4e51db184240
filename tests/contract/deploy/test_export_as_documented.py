"""The exports of docs/usage.md fit the Deployment, and a timekeeper with these settings writes its months."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.monitoring.scraping import jobs
from tests.support.ledger.harness import LedgerHarness
from tests.support.ports import free_port
from tests.support.servers.redis_server import RedisServer, redis_server
from tests.support.servers.s3_server import S3Server
from tests.support.waiting import wait_until
from timekeeper.domain.windows import month_start
from timekeeper.export.bucket import Bucket
from timekeeper.export.destination import Destination, Folder
from timekeeper.export.document import closed_until, month_at
from timekeeper.ledger.exports import load, note_late_changes
from timekeeper.settings import Settings

__all__ = ["redis_server"]

ROOT = Path(__file__).parents[3]


def documented(heading: str) -> list[Any]:
    """The objects in YAML under a heading of the document."""
    section = (ROOT / "docs" / "usage.md").read_text().split(f"### {heading}\n")[1].split("\n### ")[0]
    return [yaml.safe_load(block.split("\n```")[0]) for block in section.split("```yaml\n")[1:]]


def containers(name: str = "deploy/base/timekeeper/deployment.yaml") -> dict[str, set[str]]:
    """Returns the paths at which each container of the Deployment has a volume mounted."""
    (item,) = (
        found for found in yaml.safe_load_all((ROOT / name).read_text()) if found and found["kind"] == "Deployment"
    )
    return mounts(item["spec"]["template"]["spec"])


def mounts(spec: Any) -> dict[str, set[str]]:
    return {each["name"]: {mount["mountPath"] for mount in each["volumeMounts"]} for each in spec["containers"]}


def test_credentials_are_where_the_deployment_mounts_their_secret_in_both_containers() -> None:
    settings, _ = documented("Into a bucket")
    export = Settings.model_validate(settings).timekeeper.export
    assert all(str(export.bucket.credentials_folder) in mounted for mounted in containers().values())


def test_the_patch_mounts_the_folder_in_both_containers_and_only_the_jobs_may_write() -> None:
    settings, patch = documented("Into a folder")
    export = Settings.model_validate(settings).timekeeper.export
    spec = patch["spec"]["template"]["spec"]
    assert mounts(spec) == {name: {str(export.folder)} for name in containers()}
    read_only = {each["name"]: each["volumeMounts"][0].get("readOnly", False) for each in spec["containers"]}
    assert read_only == {"rest": True, "jobs": False}


@pytest.mark.parametrize("heading", ["Into a folder", "Into a bucket"])
def test_the_jobs_write_months_with_the_documented_settings(
    heading: str, tmp_path: Path, s3_server: S3Server, redis_server: RedisServer
) -> None:
    settings = documented(heading)[0]
    given, place = settings["timekeeper"]["export"], tmp_path / "place"
    place.mkdir()
    if heading == "Into a folder":
        given["folder"] = str(place)
    else:
        (place / "access_key_id").write_text("AKIAEXPORTER\n")
        (place / "secret_access_key").write_text("secret\n")
        given["bucket"] |= {"endpoint": s3_server.url, "credentials_folder": str(place)}
        del given["bucket"]["ca_file"]  # this server speaks no TLS
    settings["timekeeper"]["redis"] = {"url": redis_server.url}
    folder = tmp_path / "cluster"
    folder.mkdir()
    with redis_server.client() as client:
        LedgerHarness(folder, client).budget("research", ["team-a"])
        month = month_at(month_start(closed_until(time.time_ns(), 8), -1))
        note_late_changes(client, [month])
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
        with jobs(folder, free_port()):
            wait_until(lambda: load(client).is_confirmed(month), "the month is written")
    assert f"usage-{month}.csv.gz" in destination(settings).names()


def destination(settings: Any) -> Destination:
    export = Settings.model_validate(settings).timekeeper.export
    if export.folder is not None:
        return Folder(export.folder)
    return Bucket(export.bucket.name or "", export.bucket)
