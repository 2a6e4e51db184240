"""The page's requests, and the browser's limits on them."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files

from tests.page.conftest import Visiting
from tests.support.servers.rest_server import RestServer

VENDOR = {
    "uPlot.esm.js": "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""Digests of the files in version 1.6.32 of the npm package uplot."""


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_complained_of(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.enter()
    page.wait_for_load_state("networkidle")
    assert {request.url.split("/page/")[0].split("/v1/")[0].rstrip("/") for request in visiting.requests} == {
        visiting.server.url
    }
    assert visiting.complaints == []


def test_a_script_from_elsewhere_is_refused_by_the_policy(visit: Visiting) -> None:
    page = visit().enter()
    refused = page.evaluate(
        """() => new Promise((resolve) => {
            addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
            fetch("https://elsewhere.example/").catch(() => {});
        })"""
    )
    assert refused == "connect-src"


def test_text_never_becomes_markup(visit: Visiting) -> None:
    page = visit().enter()
    failure = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
    )
    assert failure == "TypeError"


def test_the_documents_policy_allows_its_own_files_alone(server: RestServer) -> None:
    policy = server.ask("GET", "/").headers["content-security-policy"]
    sources = set(re.findall(r"[a-z]+-src ([^;]+)", policy))
    assert sources == {"'none'", "'self'"}
    for directive in ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert directive in policy


def test_the_chart_library_is_its_authors_file_to_the_last_byte() -> None:
    folder = files("timekeeper.dashboard") / "static" / "vendor" / "uplot-1.6.32"
    assert {entry.name: sha256(entry.read_bytes()).hexdigest() for entry in folder.iterdir()} == VENDOR


def test_the_page_refuses_to_be_framed(visit: Visiting) -> None:
    visiting = visit()
    page = visiting.open()
    page.evaluate(
        """() => new Promise((loaded) => {
            const frame = document.createElement("iframe");
            frame.src = "/";
            frame.onload = () => loaded();
            document.body.append(frame);
        })"""
    )
    assert [frame for frame in page.frames[1:] if frame.url.startswith("https://127")] == []
