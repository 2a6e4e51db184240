"""The routes that tell what was used, by whom, of what."""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import urlencode

from flask import Flask, Response, request

from timekeeper.rest.bodies import is_namespace
from timekeeper.rest.guard import may_read_all, may_read_namespace
from timekeeper.rest.paging import only_parameters
from timekeeper.rest.parts import Parts
from timekeeper.rest.problems import invalid
from timekeeper.rest.usage.answers import as_csv, as_json
from timekeeper.rest.usage.finding import Usage, find
from timekeeper.rest.usage.query import PARAMETERS, read_query
from timekeeper.rules.currency import Currency
from timekeeper.rules.timestamps import format_instant
from timekeeper.usage.grouping import FoldedHoursError

JSON, CSV = "application/json", "text/csv"


def add_usage_routes(app: Flask, parts: Parts) -> None:
    """Adds the routes."""

    @app.get("/v1/usage")
    def usage() -> Response:
        may_read_all(parts.authority)
        only_parameters(*PARAMETERS, "idle")
        return _answered(parts, None)

    @app.get("/v1/namespaces/<namespace>/usage")
    def namespace_usage(namespace: str) -> Response:
        may_read_namespace(parts.authority, namespace)
        only_parameters(*PARAMETERS)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        return _answered(parts, namespace)


def _answered(parts: Parts, namespace: str | None) -> Response:
    media = _media()
    now = parts.now()
    query = read_query(request.args, parts.usage_labels, now, namespace)
    try:
        found = find(parts.store, query, now, parts.closed_days, parts.exported)
    except FoldedHoursError as error:
        kept = f"{format_instant(error.start)},{format_instant(error.end)}"
        raise invalid(
            "step" if query.step else "window",
            query.step or request.args.get("window"),
            f"a window and steps that do not cut what is kept as one by now, such as {kept}: write whole days in UTC",
        ) from error
    return _response(found, media, parts.currency)


def _response(found: Usage, media: str, currency: Currency | None) -> Response:
    body = as_json(found, currency) if media == JSON else as_csv(found, currency)
    response = Response(body, mimetype=media)
    response.set_etag(blake2b(body, digest_size=16).hexdigest())
    response.headers["Cache-Control"] = "private, no-cache"
    response.headers["Vary"] = "Accept, Authorization"
    if found.following is not None:
        parameters = {**request.args.to_dict(), "cursor": found.following}
        response.headers["Link"] = f'<{request.path}?{urlencode(parameters)}>; rel="next"'
    response.make_conditional(request)
    return response


def _media() -> str:
    """What the request wants: what `format` says, else what it accepts, else JSON."""
    text = request.args.get("format")
    if text is None:
        return request.accept_mimetypes.best_match([JSON, CSV], JSON)
    known = {"json": JSON, "csv": CSV}
    if text not in known:
        raise invalid("format", text, "json or csv")
    return known[text]
