"""Serves the dashboard's files from memory, plain or compressed, under paths that contain a version.

The files are read from the installed package once; there is no build step. The version is a hash of all files, so
browsers may cache each file for ever. They ask again only for the HTML document, whose path has no version.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fairgpu.serving.messages import Request, Response

DOCUMENT = "index.html"
VERSION_MARK = b"{{version}}"
VERSION_LENGTH = 16

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
"""The media type of a file, keyed by the suffix of its name; a file without a suffix is a licence."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the dashboard, ready to be served.

    Attributes:
        body: the file's bytes.
        gzipped: the file's bytes, compressed (RFC 1952).
        content_type: the file's media type.
        etag: the file's entity tag (RFC 9110 section 8.8.3); weak, since the plain and the compressed bytes share it.
    """

    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files of the dashboard, ready to be served.

    Attributes:
        version: a hash of all files, which is a part of the paths under which `by_name` is served.
        document: the HTML document.
        by_name: all other files, keyed by their path in the package.
    """

    version: str
    document: Asset
    by_name: Mapping[str, Asset]


def read_assets() -> Assets:
    """Reads the dashboard's files from the installed package.

    Raises:
        OSError: a file cannot be read.
        KeyError: there is no HTML document, or a file is of an unknown type.
    """
    return assets_of(dict(_read(files(__package__) / "static")))


def assets_of(contents: Mapping[str, bytes]) -> Assets:
    """Hashes and compresses the dashboard's files, to serve them.

    Args:
        contents: the bytes of each file, keyed by its path.

    Raises:
        KeyError: there is no HTML document, or a file is of an unknown type.
    """
    whole = sha256()
    for name, body in sorted(contents.items()):
        whole.update(f"{name}\0{len(body)}\0".encode() + body)
    version = whole.hexdigest()[:VERSION_LENGTH]
    document = contents[DOCUMENT].replace(VERSION_MARK, version.encode())
    others = {name: _asset(name, body) for name, body in contents.items() if name != DOCUMENT}
    return Assets(version, _asset(DOCUMENT, document), others)


def _asset(name: str, body: bytes) -> Asset:
    content_type = CONTENT_TYPES[PurePosixPath(name).suffix]
    return Asset(body, gzip.compress(body, mtime=0), content_type, f'W/"{sha256(body).hexdigest()[:VERSION_LENGTH]}"')


def _read(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


PREFIX = "/page/"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The content security policy: nothing from elsewhere, no inline script or style, forms, frames, or markup from text.

https://www.w3.org/TR/CSP3/, https://www.w3.org/TR/trusted-types/.
"""

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
    """Returns the routes of the dashboard's document and of every other file, keyed by method and path."""
    served = {"/": _route(assets.document, ASK_AGAIN)}
    for name, asset in assets.by_name.items():
        served[f"{PREFIX}{assets.version}/{name}"] = _route(asset, FOR_EVER)
    return {(method, path): route for path, route in served.items() for method in ("GET", "HEAD")}


def of_another_version(assets: Assets, name: str, accept_encoding: str) -> Response | None:
    """Answers a request for the dashboard file `name` under the path of another version; None if there is no such file.

    During a rolling update, a browser that has the document of one replica may ask a replica of another version for
    the document's files. Browsers must not cache the answer.

    Args:
        assets: the files of this replica, which are served.
        name: the file's path in the package.
        accept_encoding: the request's header; empty if there is none.
    """
    asset = assets.by_name.get(name)
    if asset is None:
        return None
    return answer(asset, KEEP_NOT, accept_encoding, if_none_match="")


def answer(asset: Asset, caching: bytes, accept_encoding: str, if_none_match: str) -> Response:
    """Returns the response with a dashboard file, or with status 304 if the client has the file already.

    The file is compressed if the client accepts that (RFC 9110 sections 12.5.3 and 13.1.2).

    Args:
        caching: the value of the header Cache-Control.
        accept_encoding: the request's header; empty if there is none.
        if_none_match: the request's header; empty if there is none.
    """
    headers = (*PROTECTION, (b"cache-control", caching), (b"etag", asset.etag.encode()))
    content_type = asset.content_type.encode()
    if holds(if_none_match, asset.etag):
        return Response(304, b"", content_type, headers)
    if takes_gzip(accept_encoding):
        return Response(200, asset.gzipped, content_type, (*headers, (b"content-encoding", b"gzip")))
    return Response(200, asset.body, content_type, headers)


def takes_gzip(accept_encoding: str) -> bool:
    """Returns whether an Accept-Encoding header names gzip with a weight above 0."""
    for item in accept_encoding.lower().split(","):
        coding, _, weight = item.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return weight.strip("0.") != "" or not weight
    return False


def holds(if_none_match: str, etag: str) -> bool:
    """Returns whether an If-None-Match header is `*` or contains an entity tag, by weak comparison."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags


def _route(asset: Asset, caching: bytes) -> Route:
    async def serve(request: Request) -> Response:
        accepted = request.text_header(b"accept-encoding") or ""
        held = request.text_header(b"if-none-match") or ""
        return answer(asset, caching, accepted, held)

    return serve
