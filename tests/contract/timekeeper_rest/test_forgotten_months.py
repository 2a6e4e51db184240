from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from tests.support.servers.redis_server import redis_server
from tests.support.servers.rest_server import RestServer
from tests.support.servers.s3_server import BUCKET, S3Server
from timekeeper.domain.money import GPU_HOUR
from timekeeper.domain.timestamps import HOUR
from timekeeper.domain.usage import Dimensions, Row, UsageFigures
from timekeeper.export import document
from timekeeper.export.destination import destination
from timekeeper.export.document import file_name, window_of
from timekeeper.settings import ExportSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers.redis_server import RedisServer

__all__ = ["redis_server"]

MONTH = "2020-02"
ASKED = "/v1/usage?window=2020-02-01T00:00:00Z,2020-03-01T00:00:00Z&aggregate=budget,namespace&step=month"


def test_a_forgotten_month_is_distinguished_from_the_bucket_and_never_as_nothing(
    redis_server: RedisServer, s3_server: S3Server, tmp_path: Path
) -> None:
    for name, text in (("access_key_id", "AKIAEXPORTER"), ("secret_access_key", "hidden")):
        (tmp_path / name).write_text(text)
    bucket = {"name": BUCKET, "prefix": "gpu", "endpoint": s3_server.url, "credentials_folder": str(tmp_path)}
    place = destination(ExportSettings.model_validate({"bucket": bucket}))
    assert place is not None
    row = Row(window_of(MONTH).start // HOUR, 24, Dimensions("team-a"), UsageFigures(7 * GPU_HOUR, 5, 3, 2))
    place.write(file_name(MONTH), document.write([("research", [row])]).body, None, lambda: True)
    folder = tmp_path / "served"
    with RestServer(folder, redis_server.url, settings={"export": {"bucket": bucket}}) as rest:
        answer = rest.as_person("finance", "GET", ASKED)
        assert answer.status == 200, answer.body
        (item,) = answer.document["items"]
        assert item["key"] == {"budget": "research", "namespace": "team-a"}
        assert item["billed"] == {"microGPUSeconds": str(7 * GPU_HOUR), "gpuHours": 7.0}
        (line,) = csv.DictReader(io.StringIO(rest.as_person("finance", "GET", f"{ASKED}&format=csv").body.decode()))
        assert line["used_micro_gpu_seconds"] == "2"
        tag = {"If-None-Match": answer.headers["etag"]}
        assert rest.as_person("finance", "GET", ASKED, headers=tag).status == 304
        s3_server.refuse_everybody()
        refused = rest.as_person("finance", "GET", ASKED)
        assert refused.status == 503
        assert refused.document["type"] == "urn:fairgpu:problem:export-unavailable"
        assert "retry-after" in refused.headers
        assert BUCKET not in refused.document["detail"]
        assert rest.as_person("finance", "GET", "/v1/usage?window=7d").status == 200
        assert "hidden" not in rest.log()
