"""Headless Chromium for tests and benchmarks: the system's own, which trusts the key of one server of the test besides.

If the system has Chromium's headless shell, that is used: it draws the same pages for a third of the processor time.
"""

from __future__ import annotations

import base64
import os
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """Returns the browser's path: FAIRGPU_CHROMIUM, else the system's; None for one that playwright installed."""
    return os.environ.get("FAIRGPU_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium(host: str, port: int) -> Iterator[Browser]:
    """Yields a browser that trusts the key which this server presents now; any other certificate error counts."""
    arguments = [f"--ignore-certificate-errors-spki-list={key_of(host, port)}"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # Chromium's sandbox does not start as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


def key_of(host: str, port: int) -> str:
    """Returns the digest of a server's public key, in the form that Chromium takes (RFC 7469 section 2.4)."""
    certificate = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, port), timeout=60).encode())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(sha256(key).digest()).decode()
