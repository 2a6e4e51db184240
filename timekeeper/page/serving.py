"""Serves the page's files to anybody: they say nothing of the cluster. All that does is asked for with a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fairgpu.serving.messages import Request, Response
from timekeeper.page.assets import Asset, Assets

PREFIX = "/page/"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing from elsewhere, no script or style inside the document, nowhere to send a form, no frame around it, and no
text that becomes markup (https://www.w3.org/TR/CSP3/, https://www.w3.org/TR/trusted-types/)."""

PROTECTION: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"vary", b"accept-encoding"),
)

FOR_EVER = b"public, max-age=31536000, immutable"
ASK_AGAIN = b"no-cache"
KEEP_NOT = b"no-store"

Route = Callable[[Request], Awaitable[Response]]


def page_routes(assets: Assets) -> dict[tuple[str, str], Route]:
    """The routes of the document and of every file, by method and path."""
    served = {"/": _route(assets.document, ASK_AGAIN)}
    for name, asset in assets.by_name.items():
        served[f"{PREFIX}{assets.version}/{name}"] = _route(asset, FOR_EVER)
    return {(method, path): route for path, route in served.items() for method in ("GET", "HEAD")}


def of_another_version(assets: Assets, name: str, accept_encoding: str) -> Response | None:
    """A file that was asked for under a version that is not this one; None where there is no such file.

    While replicas are being replaced, a document of one may ask the other for its files.
    """
    asset = assets.by_name.get(name)
    if asset is None:
        return None
    return answer(asset, KEEP_NOT, accept_encoding, if_none_match="")


def answer(asset: Asset, caching: bytes, accept_encoding: str, if_none_match: str) -> Response:
    """A file, compressed where the client takes that, or 304 where it has it (RFC 9110 sections 12.5.3 and 13.1.2)."""
    headers = (*PROTECTION, (b"cache-control", caching), (b"etag", asset.etag.encode()))
    content_type = asset.content_type.encode()
    if holds(if_none_match, asset.etag):
        return Response(304, b"", content_type, headers)
    if takes_gzip(accept_encoding):
        return Response(200, asset.gzipped, content_type, (*headers, (b"content-encoding", b"gzip")))
    return Response(200, asset.body, content_type, headers)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip without refusing it."""
    for item in accept_encoding.lower().split(","):
        coding, _, weight = item.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or not weight
    return False


def holds(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match header has an entity tag, by weak comparison."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def _route(asset: Asset, caching: bytes) -> Route:
    async def serve(request: Request) -> Response:
        accepted = (request.header(b"accept-encoding") or b"").decode("latin-1")
        held = (request.header(b"if-none-match") or b"").decode("latin-1")
        return answer(asset, caching, accepted, held)

    return serve
