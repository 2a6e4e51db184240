"""Takes the pictures of docs/dashboard.md: `python -m tests.support.dashboard_pictures [--png] [FOLDER]`."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.support import dashboard
from tests.support.browser import chromium
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.rest_server import RestServer

MONEY = {"metering": {"currency": {"code": "EUR", "per_gpu_hour": 2.5}}}
DESKTOP = {"width": 1280, "height": 1000}
PHONE = {"width": 360, "height": 740}
QUALITY = 82
SHOTS = (
    ("dashboard", "/", {"viewport": {"width": 1280, "height": 1020}, "color_scheme": "light"}, "body"),
    ("dashboard-burn-down", "/?budget=language-models", {"viewport": DESKTOP, "color_scheme": "dark"}, "#burn-down"),
    ("dashboard-usage", "/?idle=1&window=30d", {"viewport": DESKTOP, "color_scheme": "light"}, "#usage"),
    ("dashboard-phone", "/", {"viewport": PHONE, "color_scheme": "dark"}, "#budgets"),
)
"""Each picture's name, its address, the browser's options, and the element that is scrolled to."""


def main(folder: Path) -> None:
    """Writes all pictures into a folder, as WebP; with the option --png, also as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fairgpu-pictures-") as place, RedisServer(Path(place)) as redis_server:
        with redis_server.client() as client:
            dashboard.seed(client)
        with RestServer(Path(place, "rest"), redis_server.url, settings=MONEY) as rest:
            take_all(rest, folder)


def take_all(rest: RestServer, folder: Path) -> None:
    """Takes the picture of the sign-in, then each of SHOTS in a new browser profile."""
    token = rest.signer.person("finance")
    with chromium("127.0.0.1", rest.port) as browser:
        page = browser.new_page(viewport={"width": 760, "height": 700}, color_scheme="light")
        page.goto(rest.url)
        picture(page, folder / "dashboard-sign-in.webp")
        page.close()
        for name, address, options, part in SHOTS:
            context = browser.new_context(**options)
            context.add_init_script(f"sessionStorage.setItem('fairgpu-token', '{token}')")
            page = context.new_page()
            page.goto(rest.url + address)
            page.locator("#usage canvas").wait_for()
            page.locator("#pods table").wait_for()
            page.wait_for_load_state("networkidle")
            page.locator(part).evaluate("(part) => part.scrollIntoView()")
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            picture(page, folder / f"{name}.webp")
            context.close()


def picture(page: Page, file: Path) -> None:
    """Writes a picture of the view as WebP, which playwright itself does not write; with --png, also as PNG."""
    session = page.context.new_cdp_session(page)
    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    file.write_bytes(base64.b64decode(taken["data"]))
    if "--png" in sys.argv:
        page.screenshot(path=file.with_suffix(".png"))


if __name__ == "__main__":
    main(Path(next((word for word in sys.argv[1:] if not word.startswith("-")), "docs/images")))
