"""The files of the page, read from the package once: compressed, named by what they hold, and tied together.

There is no build step. Every file is served under a path that carries the version of them all, so that a browser may
keep it for ever; only the document itself is asked for again.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

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
"""By the end of a file's name; the one without is a licence."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is served.

    Attributes:
        body: its bytes.
        gzipped: the same, compressed (RFC 1952).
        content_type: its media type.
        etag: its entity tag (RFC 9110 section 8.8.3); weak, since both codings share it.
    """

    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """All files; `by_name` has their paths in the folder, without the document."""

    version: str
    document: Asset
    by_name: Mapping[str, Asset]


def read_assets() -> Assets:
    """The page as this package has it.

    Raises:
        OSError: a file cannot be read.
        KeyError: there is no document, or a file is of an unknown type.
    """
    return assets_of(dict(_read(files(__package__) / "static")))


def assets_of(contents: Mapping[str, bytes]) -> Assets:
    """Files, by their paths, as they are served.

    Raises:
        KeyError: there is no document, or a file is of an unknown type.
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
