from __future__ import annotations

import asyncio
import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairgpu.serving.messages import Request, Response
from timekeeper.dashboard.serving import (
    PREFIX,
    Assets,
    assets_of,
    holds,
    of_another_version,
    page_routes,
    read_assets,
    takes_gzip,
)

FILES = {"index.html": b'<script src="page/{{version}}/main.js">', "main.js": b"let a", "style/a.css": b"p{}"}


def asked(assets: Assets, path: str, **headers: str) -> Response:
    listed = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(page_routes(assets)["GET", path](Request({"headers": listed}, b"")))


def header(response: Response, name: bytes) -> bytes | None:
    return dict(response.headers).get(name)


def test_the_document_is_asked_for_again_and_its_files_are_kept_for_ever() -> None:
    assets = assets_of(FILES)
    assert header(asked(assets, "/"), b"cache-control") == b"no-cache"
    kept = asked(assets, f"/page/{assets.version}/main.js")
    assert (kept.status, kept.body) == (200, b"let a")
    assert header(kept, b"cache-control") == b"public, max-age=31536000, immutable"


def test_the_document_names_the_version_that_all_files_make() -> None:
    assets = assets_of(FILES)
    assert asked(assets, "/").body == f'<script src="page/{assets.version}/main.js">'.encode()
    for name, body in FILES.items():
        assert assets_of({**FILES, name: body + b" "}).version != assets.version
    assert assets_of({**FILES, "new.js": b""}).version != assets.version


def test_a_client_that_has_a_file_is_not_sent_it_again() -> None:
    assets = assets_of(FILES)
    first = asked(assets, "/")
    again = asked(assets, "/", if_none_match=(header(first, b"etag") or b"").decode())
    assert (again.status, again.body) == (304, b"")


def test_a_client_that_takes_gzip_is_sent_less() -> None:
    answer = asked(assets_of(FILES), "/", accept_encoding="br, gzip")
    assert header(answer, b"content-encoding") == b"gzip"
    assert gzip.decompress(answer.body) == asked(assets_of(FILES), "/").body


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("gzip; q=1", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("identity", False),
        ("", False),
        ("x-gzip-not", False),
    ],
)
def test_gzip_is_sent_to_who_takes_it(accepted: str, *, taken: bool) -> None:
    assert takes_gzip(accepted) is taken


@pytest.mark.parametrize(
    ("header_value", "held"),
    [('W/"a"', True), ('"a"', True), ('"b", W/"a"', True), ("*", True), ('"b"', False), ("", False), ("a", False)],
)
def test_entity_tags_are_compared_weakly(header_value: str, *, held: bool) -> None:
    assert holds(header_value, 'W/"a"') is held


@given(st.text(), st.text())
def test_the_file_is_answered_whatever_a_client_sends_of_its_cache(accepted: str, held: str) -> None:
    response = asked(
        assets_of(FILES), "/", accept_encoding=accepted.encode("ascii", "replace").decode(), if_none_match=""
    )
    assert response.status == 200
    assert holds(held, 'W/"a"') in (True, False)


def test_a_replica_of_another_version_answers_with_its_own_file_and_lets_nobody_keep_it() -> None:
    assets = assets_of(FILES)
    found = of_another_version(assets, "main.js", "")
    assert found is not None
    assert (found.body, header(found, b"cache-control")) == (b"let a", b"no-store")
    assert of_another_version(assets, "../../settings.py", "") is None


def test_every_answer_carries_the_protection() -> None:
    assets = assets_of(FILES)
    for path in ("/", f"{PREFIX}{assets.version}/main.js"):
        assert b"default-src 'none'" in (header(asked(assets, path), b"content-security-policy") or b"")
        assert header(asked(assets, path), b"x-content-type-options") == b"nosniff"


def test_a_file_of_an_unknown_type_is_a_mistake_that_shows_at_the_start() -> None:
    with pytest.raises(KeyError):
        assets_of({**FILES, "tool.exe": b""})


def test_every_file_that_the_page_names_is_there() -> None:
    assets = read_assets()
    body = assets.document.body.decode()
    assert "{{version}}" not in body
    named = re.findall(rf'(?:href|src)="page/{assets.version}/([^"]+)"', body)
    imported = {
        (name.rpartition("/")[0], target)
        for name, asset in assets.by_name.items()
        if name.endswith(".js") and not name.startswith("vendor/")
        for target in re.findall(r'(?:from|import\() ?"(\.[^"]+)"', asset.body.decode())
    }
    reached = {resolved(folder, target) for folder, target in imported} | set(named)
    assert reached <= set(assets.by_name)
    modules = {name for name in assets.by_name if name.endswith((".js", ".css"))}
    assert modules <= reached, "these files are never loaded"


def test_every_module_is_asked_for_at_once_but_those_that_draw_charts() -> None:
    assets = read_assets()
    named = re.findall(r'rel="modulepreload" href="page/[0-9a-f]+/([^"]+)"', assets.document.body.decode())
    modules = {name for name in assets.by_name if name.startswith(("lib/", "views/"))}
    assert set(named) == modules - {"lib/charts.js"}


def resolved(folder: str, target: str) -> str:
    parts = folder.split("/") if folder else []
    for part in target.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def test_no_file_of_the_page_speaks_of_another_host() -> None:
    for name, asset in read_assets().by_name.items():
        if not name.startswith("vendor/"):
            hosts = set(re.findall(rb"https?://([a-z0-9.-]+)", asset.body))
            assert hosts <= {b"www.w3.org"}, name
