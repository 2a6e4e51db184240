"""The routes that answer usage queries."""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import urlencode

from flask import Flask, Response, request

from timekeeper.api.dependencies import Dependencies, may_read_all, may_read_namespace
from timekeeper.api.models import is_namespace
from timekeeper.api.paging import only_parameters
from timekeeper.api.problems import invalid
from timekeeper.api.usage_answers import as_csv, as_json
from timekeeper.api.usage_finding import Usage, find
from timekeeper.api.usage_query import PARAMETERS, read_query
from timekeeper.domain.money import Currency
from timekeeper.domain.timestamps import format_instant
from timekeeper.domain.usage_grouping import MOST_SUMS, FoldedHoursError, TooManySumsError

JSON, CSV = "application/json", "text/csv"


def add_usage_routes(app: Flask, parts: Dependencies) -> None:
    """Adds the routes of usage, over all namespaces and of one."""

    @app.get("/v1/usage")
    def usage() -> Response:
        caller = may_read_all(parts.access)
        only_parameters(*PARAMETERS, "idle")
        with parts.asking.one_more(caller.name):
            return _answered(parts, None)

    @app.get("/v1/namespaces/<namespace>/usage")
    def namespace_usage(namespace: str) -> Response:
        may_read_namespace(parts.access, namespace)
        only_parameters(*PARAMETERS)
        if not is_namespace(namespace):
            raise invalid("namespace", namespace, "the name of a namespace: a DNS label of at most 63 characters")
        return _answered(parts, namespace)


def _answered(parts: Dependencies, namespace: str | None) -> Response:
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
            f"a window and steps that do not divide folded hours, such as {kept}: write whole days in UTC",
        ) from error
    except TooManySumsError as error:
        allowed = (
            f"names, a window and steps that come to at most {MOST_SUMS} sums: leave names out, such as owner or user, "
            "ask for a shorter window or longer steps, or for one namespace, GET /v1/namespaces/NAME/usage"
        )
        raise invalid("aggregate", ",".join(query.aggregate), allowed) from error
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
    """Returns the media type of the answer: by `format`, else by the Accept header, else JSON."""
    text = request.args.get("format")
    if text is None:
        return request.accept_mimetypes.best_match([JSON, CSV], JSON)
    known = {"json": JSON, "csv": CSV}
    if text not in known:
        raise invalid("format", text, "json or csv")
    return known[text]
