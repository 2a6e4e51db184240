from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect

from tests.support import dashboard
from tests.support.browser import chromium
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import ACCESS, RestServer

LIMIT_MS = 60_000
MONEY = {"metering": {"currency": {"code": "EUR", "per_gpu_hour": 2.5}}}
ORDINARY = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
"""A desktop, and nothing that moves while figures are awaited: each frame of it has to be drawn."""
SPEAKER = {"subject": "speaker", "namespace": "speech", "verbs": ["get"]}


@dataclass
class Visit:
    """One tab, what it asked for, and what it complained of."""

    page: Page
    server: RestServer
    requests: list[Request] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, address: str = "/") -> Page:
        self.page.goto(self.server.url + address)
        return self.page

    def sign_in(self, token: str) -> None:
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()

    def enter(self, subject: str = "finance", address: str = "/") -> Page:
        """Opens an address and signs in."""
        self.open(address)
        self.sign_in(self.server.signer.person(subject))
        self.page.locator("#board").wait_for()
        self.page.locator("#budgets .body:not(:has(.skeleton))").wait_for()
        return self.page

    def wait_for_all_figures(self) -> None:
        """Waits until each panel shows something: no question is under way then, nor is one asked for a minute."""
        for panel in ("budgets", "usage", "pods", "expected"):
            self.page.locator(f"#{panel} .body > :not(.skeleton)").first.wait_for()


Visiting = Callable[..., Visit]


@pytest.fixture(scope="session")
def store() -> Iterator[RedisServer]:
    """A Redis with ten teams."""
    with tempfile.TemporaryDirectory(prefix="fairgpu-page-") as folder, RedisServer(Path(folder)) as redis_server:
        with redis_server.client() as client:
            dashboard.seed(client)
        yield redis_server


@pytest.fixture(scope="session")
def server(store: RedisServer) -> Iterator[RestServer]:
    """A timekeeper of that Redis, which waits for its answers as long as the tests do."""
    settings = {**MONEY, "redis": {"url": store.url, "timeout_seconds": 60}}
    with (
        tempfile.TemporaryDirectory(prefix="fairgpu-page-") as folder,
        RestServer(Path(folder), store.url, access=[*ACCESS, SPEAKER], settings=settings) as rest,
    ):
        yield rest


@pytest.fixture(scope="package")
def browser(server: RestServer) -> Iterator[Browser]:
    """One for this folder: while it lives, an event loop runs in this thread, which other tests could not bear."""
    expect.set_options(timeout=LIMIT_MS)
    with chromium("127.0.0.1", server.port) as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, server: RestServer) -> Iterator[Visiting]:
    """Opens a tab with a profile of its own; options are playwright's, such as viewport and color_scheme."""
    with tabs(browser, server) as begin:
        yield begin


@pytest.fixture(scope="module")
def board(browser: Browser, server: RestServer) -> Iterator[Page]:
    """The board as it is after signing in, for the tests of a file that only look at it."""
    with tabs(browser, server) as begin:
        yield begin().enter()


@contextmanager
def tabs(browser: Browser, server: RestServer) -> Iterator[Visiting]:
    """Yields a function that opens tabs, and closes them in the end."""
    contexts: list[BrowserContext] = []

    def begin(**options: object) -> Visit:
        context = browser.new_context(**{**ORDINARY, **options})
        context.set_default_timeout(LIMIT_MS)
        contexts.append(context)
        visit = Visit(context.new_page(), server)
        visit.page.on("request", lambda request: visit.requests.append(request))  # noqa: PLW0108 - playwright wraps it
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("console", lambda line: visit.complaints.append(line.text) if line.type == "error" else None)
        return visit

    yield begin
    for context in contexts:
        context.close()
