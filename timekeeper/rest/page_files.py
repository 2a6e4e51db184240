"""What Flask serves of the page: the rare request for a file of another version than this replica's."""

from __future__ import annotations

from flask import Flask, Response, request

from timekeeper.page.assets import Assets
from timekeeper.page.serving import PREFIX, of_another_version
from timekeeper.rest.problems import not_found


def add_page_files(app: Flask, assets: Assets) -> None:
    """Adds the route of the files; those of the present version never reach it."""

    @app.get(f"{PREFIX}<version>/<path:name>")
    def page_file(version: str, name: str) -> Response:
        found = of_another_version(assets, name, request.headers.get("Accept-Encoding", ""))
        if found is None:
            raise not_found(f"the page has no file {name!r} in its version {version!r}")
        headers = [(key.decode("ascii"), value.decode("ascii")) for key, value in found.headers]
        return Response(found.body, found.status, headers, content_type=found.content_type.decode("ascii"))
